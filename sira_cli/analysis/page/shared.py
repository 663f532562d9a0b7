"""Shared parts of the pages of `sira report` and `sira serve`."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent


def shared_style() -> str:
    """Return the CSS of colours, light and dark, plain elements, marked words and the legend that explains them."""
    return _read("base.css") + _read("marks.css")


def element_script() -> str:
    """Return the JavaScript function `element`, to stand at the end of a page's own script."""
    return _read("element.js")


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
