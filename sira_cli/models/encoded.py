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
        body = model.base_model
        kind = model.config.model_type
        encode = getattr(body, "get_image_features", None)
        changed = "get_image_features" in vars(body)
        if kind not in TESTED or encode is None or changed or model.device.type == "meta":  # vLLM has the weights
            yield
            return
        signature = inspect.signature(encode)
        divides = any(family.model_type == kind for family in FAMILIES)

        @functools.wraps(encode)  # `generate` reads the names of the arguments
        def features(*args: Any, **kwargs: Any) -> Any:
            arguments = dict(signature.bind(*args, **kwargs).arguments)
            arguments |= arguments.pop("kwargs", {})
            hooks = _hooks_of(model)
            if divides and isinstance(arguments.get("pixel_values"), Tensor):
                return self._in_parts(encode, arguments, pictures, hooks)
            if divides or pictures > 1 or not all(map(_is_plain, arguments.values())):
                return encode(**arguments)
            stored = self._get(_digest(arguments, hooks), lambda: encode(**arguments))
            return copy.deepcopy(stored)  # a model may change it

        body.get_image_features = features
        try:
            yield
        finally:
            del body.get_image_features

    def _in_parts(self, encode: Any, arguments: Mapping[str, Any], pictures: int, hooks: int) -> Any:
        """Store an encoder's output for each part of its input that is one picture."""
        parts = [dict(arguments)] if pictures == 1 else _parts(arguments)
        names = [_digest(part, hooks) for part in parts]
        by_name = dict(zip(names, parts, strict=True))
        if 1 < len(parts) == len(by_name) and not self._cache.keys() & by_name.keys():
            return encode(**arguments)  # all are new: encoding them together is faster
        features = {}
        for name, part in by_name.items():
            features[name] = self._get(name, functools.partial(_encoded, encode, part))
        return _joined([features[name] for name in names])

    def _get(self, name: str, encode: Callable[[], Any]) -> Any:
        if name not in self._cache:
            self._cache[name] = encode()
            if len(self._cache) > MOST:
                self._cache.popitem(last=False)
        self._cache.move_to_end(name)
        return self._cache[name]


def _encoded(encode: Any, part: Mapping[str, Any]) -> Any:
    return _joined([encode(**part)])


def _is_plain(argument: object) -> bool:
    return argument is None or isinstance(argument, Tensor | bool | int | float | str)


def _hooks_of(model: Any) -> int:
    """Return the number of hooks on the image encoder, without those that transformers puts there in its first run.

    It is 0 if it is not known which module is the encoder.
    """
    encoder = model.get_encoder(modality="image")
    if encoder in (model, model.base_model):
        return 0
    count = 0
    for module in encoder.modules():
        for hook in module._forward_hooks.values():
            count += not getattr(hook, "__module__", "").startswith("transformers.")
    return count


def _digest(arguments: Mapping[str, Any], hooks: int) -> str:
    digest = hashlib.sha256(str(hooks).encode())
    for name, value in sorted(arguments.items()):
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.detach().contiguous().cpu().flatten().view(torch.uint8).numpy().data)
        else:
            digest.update(f"{name} {value!r}".encode())
    return digest.hexdigest()


def _parts(arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Split an encoder's input into parts that it encodes separately: pictures, or tiles; at least one part."""
    tensors = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
    grid = tensors.get("image_grid_thw")  # of pictures of any size: the number of their patches
    count = len(tensors["pixel_values"] if grid is None else grid)
    parts = [dict(arguments) for _ in range(count)]
    for name, value in tensors.items():
        sizes = [1] * count
        if grid is not None and name == "pixel_values":
            sizes = grid.prod(dim=1).tolist()
        if sum(sizes) != len(value):
            return [dict(arguments)]
        for part, rows in zip(parts, value.split_with_sizes(sizes), strict=True):
            part[name] = rows
    return parts


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
