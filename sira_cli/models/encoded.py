"""The image features of the pictures that were encoded last, for the next question about the same picture.

    question 1   pixels -> image encoder -> features -> decoder
    question 2   the same pixels         -> features -> decoder

Two pictures are the same if every number that the encoder gets is. So a picture that a method changes is another one.
Of the families it is known which part of what an encoder gets is one picture; of other types that equal the reference,
only pictures that are asked about one at a time are kept.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sira_cli.core.families import FAMILIES, TESTED

MOST = 4  # pictures; some methods encode each of them twice, the second time changed


class EncodedPictures:
    """Image features by what the encoder was given. They stay where the model put them."""

    def __init__(self) -> None:
        """Begin with none."""
        self._kept: OrderedDict[str, Any] = OrderedDict()

    @contextmanager
    def used_by(self, model: Any, pictures: int) -> Iterator[None]:
        """Let `model` encode no picture inside this context whose features are here.

        Nothing is kept of types outside `TESTED`.

        Args:
            model: a Hugging Face LVLM. Its method that encodes pictures is covered for the time being.
            pictures: how many a batch holds.
        """
        body = model.base_model
        kind = model.config.model_type
        parted = any(family.model_type == kind for family in FAMILIES)
        if kind not in TESTED or "get_image_features" in vars(body) or not hasattr(body, "get_image_features"):
            yield
            return
        encode = body.get_image_features
        signature = inspect.signature(encode)

        @functools.wraps(encode)  # `generate` reads the names of the arguments
        def features(*args: Any, **kwargs: Any) -> Any:
            given = dict(signature.bind(*args, **kwargs).arguments)
            given |= given.pop("kwargs", {})
            return self._features(encode, given, pictures) if parted else self._whole(encode, given, pictures)

        body.get_image_features = features
        try:
            yield
        finally:
            del body.get_image_features

    def _whole(self, encode: Any, given: Mapping[str, Any], pictures: int) -> Any:
        """Keep all that an encoder returns, for all that it gets."""
        plain = all(value is None or isinstance(value, Tensor | bool | int | float | str) for value in given.values())
        if pictures > 1 or not plain:
            return encode(**given)
        name = _digest(given)
        if name not in self._kept:
            self._keep(name, encode(**given))
        return copy.deepcopy(self._get(name))  # a model may change what it gets

    def _features(self, encode: Any, given: Mapping[str, Any], pictures: int) -> Any:
        if not isinstance(given.get("pixel_values"), Tensor):
            return encode(**given)
        whole = _digest(given)
        if whole in self._kept:
            return _joined([self._get(whole)])
        parts = _parts(given)
        names = [_digest(part) for part in parts]
        if pictures == 1 or len(parts) < 2:
            return _joined([self._encoded(encode, whole, given)])
        if len(set(names)) == len(names) and not self._kept.keys() & set(names):
            return encode(**given)  # all of them new: together they are encoded faster
        found: dict[str, Any] = {}
        for name, part in zip(names, parts, strict=True):
            found[name] = found.get(name) or self._encoded(encode, name, part)
        return _joined([found[name] for name in names])

    def _encoded(self, encode: Any, name: str, given: Mapping[str, Any]) -> Any:
        if name not in self._kept:
            self._keep(name, _joined([encode(**given)]))
        return self._get(name)

    def _keep(self, name: str, features: Any) -> None:
        self._kept[name] = features
        if len(self._kept) > MOST:
            self._kept.popitem(last=False)

    def _get(self, name: str) -> Any:
        self._kept.move_to_end(name)
        return self._kept[name]


def _digest(given: Mapping[str, Any]) -> str:
    """Return a hash over every number that an encoder gets."""
    digest = hashlib.sha256()
    for name, value in sorted(given.items()):
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.detach().contiguous().cpu().flatten().view(torch.uint8).numpy().data)
        else:
            digest.update(f"{name} {value!r}".encode())
    return digest.hexdigest()


def _parts(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Part what an encoder gets into what it encodes by itself: pictures, or tiles of pictures; all of it at the least.

    Tensors have a row per picture, but for the patches of pictures of any size, which `image_grid_thw` counts.
    """
    tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
    grid = tensors.get("image_grid_thw")
    count = len(tensors["pixel_values"] if grid is None else grid)
    rows: dict[str, Sequence[Tensor]] = {}
    for name, value in tensors.items():
        if name == "pixel_values" and grid is not None:
            rows[name] = value.split_with_sizes(grid.prod(dim=1).tolist())
        elif len(value) == count:
            rows[name] = value.chunk(count)
        else:
            return [dict(given)]
    return [{**given, **{name: parts[number] for name, parts in rows.items()}} for number in range(count)]


def _joined(outputs: Sequence[Any]) -> Any:
    """Return an encoder's outputs as one, and a new object: `generate` changes what it gets."""
    made: dict[str, Any] = {"pooler_output": _all([output.pooler_output for output in outputs])}
    if getattr(outputs[0], "deepstack_features", None) is not None:
        layers = zip(*(output.deepstack_features for output in outputs), strict=True)
        made["deepstack_features"] = [_all(layer) for layer in layers]
    return type(outputs[0])(**made)  # a decoder reads nothing else of it


def _all(features: Sequence[Any]) -> Any:
    """Join features of pictures: one tensor each, or a list with a tensor per picture."""
    if not isinstance(features[0], Tensor):
        return [picture for pictures in features for picture in pictures]
    return features[0] if len(features) == 1 else torch.cat(list(features))
