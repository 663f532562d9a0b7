"""Steering of MLPs: their outputs are turned and keep their length. `vista` and `vti` differ in the direction."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sira_cli.errors import UnsupportedModelError

if TYPE_CHECKING:
    from torch import Tensor


def find_mlps(model: Any, method: str) -> list[Any]:
    """Return the MLP of each decoder layer.

    Raises:
        UnsupportedModelError: a layer has no `mlp`; the message names the method.
    """
    from sira_cli.core.families import find_backbone

    mlps = [getattr(layer, "mlp", None) for layer in find_backbone(model).decoder_layers]
    if None in mlps:
        raise UnsupportedModelError(f"method {method} cannot steer {type(model).__name__}: some layers have no `mlp`")
    return mlps


def steering_hook(shift: Callable[[Tensor], Tensor | None]) -> Callable[..., Any]:
    """Return a forward hook that turns a module's output x into |x| unit(unit(x) + shift(x)), row by row.

    Args:
        shift: from the output in float32, `[B, q, d]`, to what is added to its unit vectors, broadcast to that shape;
            None leaves the output unchanged.
    """
    from torch.nn import functional as F

    def steer(module: Any, args: Any, output: Any) -> Any:
        if isinstance(output, tuple):  # mixtures of experts also return how rows were routed
            return steer(module, args, output[0]), *output[1:]
        x = output.float()
        added = shift(x)
        if added is None:
            return output
        turned = F.normalize(F.normalize(x, dim=-1) + added, dim=-1)
        return (turned * x.norm(dim=-1, keepdim=True)).to(output.dtype)

    return steer
