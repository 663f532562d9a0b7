"""What the pages of `sira report`, `sira serve` and `sira view` share."""

from __future__ import annotations

from pathlib import Path


def base_style() -> str:
    """Return the CSS of colours, light and dark, and plain elements."""
    return Path(__file__).with_name("base.css").read_text(encoding="utf-8")
