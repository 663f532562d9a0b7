"""State of a prompt that a model keeps outside the cache, restored after a pass over another prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sira_cli.core.families import POSITION_STATE

PositionState = Sequence[tuple[Any, str]]  # modules, and the names of their attributes


def position_state(model: Any) -> PositionState:
    """Return the modules and attributes that keep state outside the cache (`POSITION_STATE`)."""
    return [(module, name) for module in model.modules() for name in POSITION_STATE if hasattr(module, name)]


@contextmanager
def positions_kept(state: PositionState) -> Iterator[None]:
    """Restore the state when the context ends, also after an error."""
    kept = [(module, name, getattr(module, name)) for module, name in state]
    try:
        yield
    finally:
        for module, name, value in kept:
            setattr(module, name, value)
