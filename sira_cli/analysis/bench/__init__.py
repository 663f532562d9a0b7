"""The cost of a decoder: time, memory and cache compared with greedy, measured in one run."""

from __future__ import annotations

from pathlib import Path

SHAPES = Path(__file__).parent / "shapes"


def shape_names() -> list[str]:
    """Return the names of the real models whose shapes are bundled; each is also a preset's name."""
    return sorted(path.stem for path in SHAPES.glob("*.yaml"))
