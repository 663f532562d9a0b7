"""Whether torch.compile has changed a model: compiled code may leave out hooks, or keep removed ones."""

from __future__ import annotations

from typing import Any

from torch import nn

from sira_cli.errors import UnsupportedModelError


def check_uncompiled(model: nn.Module) -> None:
    """Check that no part of the model is compiled: compiled code may leave out hooks, or keep removed ones."""
    for part in model.modules():
        own: Any = part  # torch.compile(model), model.compile(), and model.forward = torch.compile(model.forward)
        forward = vars(part).get("forward")
        if "_orig_mod" in part._modules or own._compiled_call_impl or hasattr(forward, "_torchdynamo_orig_callable"):
            raise UnsupportedModelError(
                f"{type(part).__name__} is compiled, so hooks in it cannot be relied on: attach to the model as it was "
                "loaded, without torch.compile"
            )
