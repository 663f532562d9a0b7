"""What the pages of `sira report`, `sira serve` and `sira view` share."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent


def base_style() -> str:
    """Return the CSS of colours, light and dark, and plain elements."""
    return (_HERE / "base.css").read_text(encoding="utf-8")


def marks_style() -> str:
    """Return the CSS of marked words: by grounding, by Δ, not supported; and of the legend that explains them."""
    return (_HERE / "marks.css").read_text(encoding="utf-8")
