"""Colours that text is written in, read from the style sheets: WCAG 2 wants a contrast of 4.5:1 for small text."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "sira_cli"
BASE = PACKAGE / "analysis" / "page" / "base.css"
SHADES = [f"{hue}{strength}" for hue in "pn" for strength in range(1, 5)]  # behind marked words: blue, orange
# What each colour of text stands on. Lines and bars may have other colours, and what is behind them matters less.
BEHIND = {
    "ink": ["paper", "tint", *SHADES],
    "soft": ["paper", "tint", "p1"],
    "pale": ["paper", "tint"],
    "paper": ["above"],
}


def schemes() -> dict[str, dict[str, str]]:
    """The colours of light and dark by name, as `#rgb` or `#rrggbb`."""
    light, dark = re.findall(r":root \{(.*?)\}", BASE.read_text(encoding="utf-8"), re.DOTALL)
    return {name: dict(re.findall(r"--(\w+): (#\w+);", rules)) for name, rules in (("light", light), ("dark", dark))}


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


def test_contrast_is_that_of_the_standard():
    assert contrast("#fff", "#000000") == 21
    assert contrast("#767676", "#fff") >= 4.5 > contrast("#777777", "#fff")  # the greys next to the limit


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_small_text_can_be_read(scheme):
    colours = schemes()[scheme]
    found = {
        f"{text} on {behind}": contrast(colours[text], colours[behind])
        for text, places in BEHIND.items()
        for behind in places
    }
    assert {place: ratio for place, ratio in found.items() if ratio < 4.5} == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_borders_of_fields_and_buttons_can_be_seen(scheme):
    """WCAG 2 wants 3:1 for what shows where a control is."""
    colours = schemes()[scheme]
    sheet = (PACKAGE / "serve" / "page" / "style.css").read_text(encoding="utf-8")
    rules = re.findall(r"^[^{\n]*\b(?:input|textarea)\b[^{\n]*\{[^}]*?border: 1px solid var\(--(\w+)\)", sheet, re.M)
    assert rules
    assert min(contrast(colours[line], colours["paper"]) for line in rules) >= 3


def test_text_has_no_other_colours():
    sheets = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.css")]
    assert len(sheets) == 4
    used = {*chain.from_iterable(re.findall(r"(?<![\w-])color: ([^;}]+?) *[;}]", sheet) for sheet in sheets)}
    assert used == {"inherit", *(f"var(--{name})" for name in BEHIND)}


def test_light_and_dark_have_the_same_names():
    light, dark = schemes().values()
    assert light.keys() == dark.keys() >= BEHIND.keys()
