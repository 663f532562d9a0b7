"""The kinds of layers that can run two streams."""

from __future__ import annotations

from typing import Any

from sira_cli.vllm.layers import FullAttention, Kind
from sira_cli.vllm.recurrent import Recurrent

KINDS: tuple[Kind, ...] = (FullAttention(), Recurrent())


def kind_of(layer: Any) -> Kind | None:
    """Return the kind of a layer, if it has one."""
    return next((kind for kind in KINDS if isinstance(layer, kind.takes)), None)
