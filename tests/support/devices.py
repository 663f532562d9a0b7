"""Several devices without any: tensors that compute on the CPU, but say that they are elsewhere, and do not mix.

torch lends a device type to backends that are written in Python. A tensor of `Placed` wraps one on the CPU; whatever
torch is asked to do with tensors of two devices raises as it does for two GPUs, with the same exceptions: a tensor
without dimensions may be on the CPU, so may indices, and `copy_` and `to` go from one device to another.

To import this registers the devices for good, so it is for processes of their own.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import dispatch_model
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from sira_cli.core.families import find_backbone
from tests.support.tiny import Tiny

_setup_privateuseone_for_python_backend("card")
CARDS = ONE, TWO, THREE = tuple(torch.device("card", index) for index in range(3))
CPU = torch.device("cpu")
INDEXING = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default, torch.ops.aten._index_put_impl_.default)


class Placed(torch.Tensor):
    """A tensor that says that it is on another device."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor, device: torch.device) -> Placed:
        like = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, **like, device=device)
        made.inner = inner
        return made

    def __repr__(self) -> str:
        return f"Placed({self.inner!r}, {self.device})"

    def tolist(self) -> Any:
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.Tensor)]
    wanted = kwargs.get("device")
    if wanted is not None:
        kwargs = {**kwargs, "device": CPU}
    places = {each.device for each in tensors if each.ndim or each.device != CPU}
    if func in INDEXING:
        places -= {CPU}
    if func is torch.ops.aten.copy_.default:
        places = {tensors[0].device}
    if len(places) > 1:
        raise RuntimeError(f"{func}: expected all tensors to be on the same device, but found {places}")
    place = torch.device(wanted) if wanted is not None else next(iter(places), CPU)
    if func is torch.ops.aten.histc.default:  # the CPU has none of whole numbers, which is all that it is used for
        return _at(torch.histc(args[0].inner.float(), *args[1:], **kwargs).to(args[0].dtype), place)
    inner_args, inner_kwargs = tree_map(lambda each: each.inner if isinstance(each, Placed) else each, (args, kwargs))
    result = func(*inner_args, **inner_kwargs)
    written = [value.alias_info is not None and value.alias_info.is_write for value in func._schema.returns]
    if written == [True]:  # in place: the same tensor comes back
        return kwargs["out"] if "out" in kwargs else args[0]
    return tree_map(lambda each: _at(each, place) if isinstance(each, torch.Tensor) else each, result)


def _at(tensor: torch.Tensor, place: torch.device) -> torch.Tensor:
    return tensor if place == CPU or isinstance(tensor, Placed) else Placed(tensor, place)


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """The functions that ask the device itself for memory."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.tensor and kwargs.get("device") is not None:
            place = torch.device(kwargs.pop("device"))
            data = tree_map(lambda each: each.tolist() if isinstance(each, Placed) else each, args[0])
            return func(data, **kwargs).to(place)
        if func is torch.Tensor.new_tensor:
            like, data = args
            return torch.tensor(data, dtype=like.dtype).to(like.device)
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):  # a list becomes a tensor there
            found = args[1] if isinstance(args[1], tuple) else (args[1],)
            index = tuple(
                torch.tensor(each, dtype=None if each else torch.long) if isinstance(each, list) else each
                for each in found
            )
            return func(args[0], index, *args[2:])
        return func(*args, **kwargs)


@contextmanager
def several_devices() -> Iterator[None]:
    """Let `ONE`, `TWO` and `THREE` be devices inside the block."""
    with torch.no_grad(), _Functions(), _Dispatch():
        yield


def place_of(model: Any) -> dict[str, torch.device]:
    """Return where each part is to be: a third of the layers on each device, the output matrix on that of the norm.

    Where the output matrix is that of the embeddings, both are on the first one, as accelerate puts them.
    """
    backbone = find_backbone(model)
    layers, head = backbone.decoder_layers, model.get_output_embeddings()
    tied = head.weight is model.get_input_embeddings().weight
    last = {id(backbone.norm)} if tied else {id(backbone.norm), id(head)}
    places: dict[str, torch.device] = {}
    for name, part in model.named_modules():
        if all(inside is not layers for inside in part.modules()):
            continue
        parts = [*part.named_children(), *part.named_parameters(recurse=False)]
        for number, (own, each) in enumerate(parts):
            place = CARDS[number * len(CARDS) // len(layers)] if part is layers else THREE if id(each) in last else ONE
            places[f"{name}.{own}".lstrip(".")] = place
    return {name: place for name, place in places.items() if not any(other.startswith(f"{name}.") for other in places)}


def spread(case: Tiny) -> Tiny:
    """Return a model on all devices, with accelerate's hooks as `from_pretrained` puts them on, and its inputs."""
    model = copy.deepcopy(case.model)
    model.tie_weights()
    model = dispatch_model(model, place_of(model), main_device=ONE, skip_keys=model._skip_keys_device_placement)
    return dataclasses.replace(case, model=model, inputs=to_first(case.inputs))


def to_first(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs on the first device."""
    return {name: value.to(ONE) if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}
