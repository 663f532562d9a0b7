"""The image features of the latest pictures, for the next question about the same picture.

Two pictures are the same if all numbers in the encoder's input are equal. Which part of the input is one picture is
known of the families; features of other types are kept only if pictures are asked about one at a time. A method may
hook the encoder (`vti`), and a second look runs without it: features of both are kept apart.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sira_cli.core.families import FAMILIES, TESTED

MOST = 4  # pictures; some methods encode each of them a second time, changed


class EncodedPictures:
    """Image features by the encoder's input. They stay on the model's device."""

    def __init__(self) -> None:
        self._cache: OrderedDict[str, Any] = OrderedDict()

    @contextmanager
    def used_by(self, model: Any, pictures: int) -> Iterator[None]:
        """Inside this context, `model` (of `TESTED`) uses stored features instead of encoding a picture again."""
        body, kind = model.base_model, model.config.model_type
        known = kind in TESTED and hasattr(body, "get_image_features") and "get_image_features" not in vars(body)
        if not known or model.device.type == "meta":  # vLLM has the weights
            yield
            return
        encode = body.get_image_features
        signature, divides = inspect.signature(encode), any(family.model_type == kind for family in FAMILIES)

        @functools.wraps(encode)  # `generate` reads the names of the arguments
        def features(*args: Any, **kwargs: Any) -> Any:
            given = dict(signature.bind(*args, **kwargs).arguments)
            given |= given.pop("kwargs", {})
            hooks = _hooks_of(model)
            if divides and isinstance(given.get("pixel_values"), Tensor):
                return self._in_parts(encode, given, pictures, hooks)
            plain = all(each is None or isinstance(each, Tensor | bool | int | float | str) for each in given.values())
            if divides or pictures > 1 or not plain:
                return encode(**given)
            return copy.deepcopy(self._get(_digest(given, hooks), lambda: encode(**given)))  # a model may change it

        body.get_image_features = features
        try:
            yield
        finally:
            del body.get_image_features

    def _in_parts(self, encode: Any, given: Mapping[str, Any], pictures: int, hooks: int) -> Any:
        """Store an encoder's output for each part of its input that is one picture."""
        parts = [dict(given)] if pictures == 1 else _parts(given)
        names = [_digest(part, hooks) for part in parts]
        by_name = dict(zip(names, parts, strict=True))
        if 1 < len(parts) == len(by_name) and not self._cache.keys() & by_name.keys():
            return encode(**given)  # all are new: encoding them together is faster
        found = {name: self._get(name, functools.partial(_encoded, encode, part)) for name, part in by_name.items()}
        return _joined([found[name] for name in names])

    def _get(self, name: str, encode: Callable[[], Any]) -> Any:
        if name not in self._cache:
            self._cache[name] = encode()
            if len(self._cache) > MOST:
                self._cache.popitem(last=False)
        self._cache.move_to_end(name)
        return self._cache[name]


def _encoded(encode: Any, part: Mapping[str, Any]) -> Any:
    return _joined([encode(**part)])


def _hooks_of(model: Any) -> int:
    """Return the number of hooks on the image encoder, without those that transformers puts there in its first run.

    It is 0 if it is not known which module is the encoder.
    """
    encoder = model.get_encoder(modality="image")
    if encoder in (model, model.base_model):
        return 0
    hooks = [hook for module in encoder.modules() for hook in module._forward_hooks.values()]
    return sum(not getattr(hook, "__module__", "").startswith("transformers.") for hook in hooks)


def _digest(given: Mapping[str, Any], hooks: int) -> str:
    digest = hashlib.sha256(str(hooks).encode())
    for name, value in sorted(given.items()):
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.detach().contiguous().cpu().flatten().view(torch.uint8).numpy().data)
        else:
            digest.update(f"{name} {value!r}".encode())
    return digest.hexdigest()


def _parts(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Split an encoder's input into parts that it encodes separately: pictures, or tiles; at least one part."""
    tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
    grid = tensors.get("image_grid_thw")  # of pictures of any size: the number of their patches
    count = len(tensors["pixel_values"] if grid is None else grid)
    sizes = {name: [1] * count for name in tensors}
    if grid is not None:
        sizes["pixel_values"] = grid.prod(dim=1).tolist()
    if any(sum(sizes[name]) != len(value) for name, value in tensors.items()):
        return [dict(given)]
    rows = {name: value.split_with_sizes(sizes[name]) for name, value in tensors.items()}
    return [{**given, **{name: parts[number] for name, parts in rows.items()}} for number in range(count)]


def _joined(outputs: Sequence[Any]) -> Any:
    """Join an encoder's outputs in a new object: `generate` changes it."""
    made: dict[str, Any] = {"pooler_output": _all([output.pooler_output for output in outputs])}
    if getattr(outputs[0], "deepstack_features", None) is not None:
        layers = zip(*(output.deepstack_features for output in outputs), strict=True)
        made["deepstack_features"] = [_all(layer) for layer in layers]
    return type(outputs[0])(**made)  # a decoder reads nothing else


def _all(features: Sequence[Any]) -> Any:
    """Join features of pictures: one tensor each, or a list with a tensor per picture."""
    if not isinstance(features[0], Tensor):
        return [picture for pictures in features for picture in pictures]
    return features[0] if len(features) == 1 else torch.cat(list(features))
