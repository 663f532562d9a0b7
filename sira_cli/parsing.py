"""Parse JSON that somebody else wrote, within limits: thousands of brackets end Python's stack, here or later on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

DEEPEST = 200  # values inside each other; an answer that follows a schema has half as many, and records hold it


def from_json(text: str | bytes, most: int = DEEPEST, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """Parse JSON with at most `most` values inside each other; `parse_constant` gets NaN and infinities.

    Raises:
        ValueError: it is no JSON (then a `JSONDecodeError`), or too deep.
    """
    too_deep = f"it has more than {most} values inside each other"
    try:
        value = json.loads(text, parse_constant=parse_constant)
    except RecursionError:
        raise ValueError(too_deep) from None
    containers = _containers([value])
    for _ in range(most):
        containers = _contained(containers)
    if containers:
        raise ValueError(too_deep)
    return value


def _contained(containers: list[Any]) -> list[Any]:
    """Return the lists and objects directly inside others."""
    found: list[Any] = []
    for container in containers:
        values = container.values() if isinstance(container, dict) else container
        found += _containers(values)
    return found


def _containers(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if isinstance(value, dict | list)]
