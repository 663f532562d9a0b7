"""Colours that text is written in, read from the style sheets: WCAG 2 wants a contrast of 4.5:1 for small text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "sira_cli"
SHEETS = {path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.css")}
ROOTS = re.findall(r":root \{(.*?)\}", SHEETS["analysis/page/base.css"], re.DOTALL)
LIGHT, DARK = (dict(re.findall(r"--(\w+): (#\w+);", rules)) for rules in ROOTS)
SHADES = [f"{hue}{strength}" for hue in "pn" for strength in range(1, 5)]  # behind marked words: blue, orange
# What each colour of text stands on. Lines and bars may have other colours, and what is behind them matters less.
BEHIND = {
    "ink": ["paper", "tint", *SHADES],
    "soft": ["paper", "tint", "p1"],
    "pale": ["paper", "tint"],
    "paper": ["above"],
}


def luminance(colour: str) -> float:
    digits = colour.removeprefix("#")
    pairs = [2 * digit for digit in digits] if len(digits) == 3 else re.findall("..", digits)
    red, green, blue = (
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in (int(pair, 16) / 255 for pair in pairs)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_small_text_and_the_borders_of_fields_can_be_seen(colours):
    """WCAG 2 wants 3:1 for what shows where a control is."""
    assert contrast("#767676", "#fff") >= 4.5 > contrast("#777777", "#fff")  # the greys next to the limit
    pairs = [(text, behind) for text, places in BEHIND.items() for behind in places]
    assert [pair for pair in pairs if contrast(colours[pair[0]], colours[pair[1]]) < 4.5] == []
    field = r"^[^{\n]*\b(?:input|textarea)\b[^{\n]*\{[^}]*?border: 1px solid var\(--(\w+)\)"
    lines = re.findall(field, SHEETS["serve/page/style.css"], re.MULTILINE)
    assert lines
    assert min(contrast(colours[line], colours["paper"]) for line in lines) >= 3


def test_text_has_no_other_colours():
    assert len(SHEETS) == 4
    used = {colour for sheet in SHEETS.values() for colour in re.findall(r"(?<![\w-])color: ([^;}]+?) *[;}]", sheet)}
    assert used == {"inherit", *(f"var(--{name})" for name in BEHIND)}
    assert LIGHT.keys() == DARK.keys() >= BEHIND.keys()
