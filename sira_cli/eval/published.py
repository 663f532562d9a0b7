"""What greedy decoding should give: the range of published figures, and whether a measured figure lies in it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from sira_cli.eval.statistics import Figure

PUBLISHED = Path(__file__).parent / "published.yaml"
LEFT_OUT = "left_out"  # why a row does not widen a band
SOURCE = "source"
Verdict = Literal["inside", "near", "outside"]
IN_WORDS: dict[Verdict, str] = {
    "inside": "inside",
    "near": "outside, but its interval reaches it",
    "outside": "outside: look at prompt, precision, pictures",
}


@dataclass(frozen=True)
class Expected:
    """A figure of greedy decoding, next to the range that others publish for the model; in percent.

    Attributes:
        group: the split, length or dimension, as in the rows of a report.
        low, high: the smallest and the largest published figure.
        verdict: `near`: the value is outside, but its 95 % interval, over the pictures, is not.
        sources: where the figures of the range are published.
        remark: what to know about the published rows of the group, if anything.
    """

    group: str
    figure: str
    value: float
    low: float
    high: float
    verdict: Verdict
    sources: tuple[str, ...]
    remark: str = ""

    def line(self, digits: str) -> str:
        """Return it as a line; `digits` is the format of the figure."""
        band = f"{self.low:{digits}}"
        if self.high > self.low:
            band += f" to {self.high:{digits}}"
        count = len(self.sources)
        rows = f"{count} row{'s' if count > 1 else ''}"
        measured = f"greedy, {self.group}, {self.figure} {self.value:{digits}}"
        return f"{measured}: published {band} ({rows}): {IN_WORDS[self.verdict]}"


def expected(model: str, benchmark: str, group: str, figures: Mapping[str, Figure]) -> list[Expected]:
    """Return those figures of greedy decoding that others publish for a model, by its preset's name."""
    every = published()["models"].get(model, {}).get(benchmark, {}).get(group, ())
    remark = published()["remarks"].get(benchmark, {}).get(group, "")
    found = []
    for name, figure in figures.items():
        having = [row for row in every if name in row and LEFT_OUT not in row]
        if not having:
            continue
        values = [row[name] for row in having]
        low = min(values)
        high = max(values)
        verdict = _verdict(figure, low, high)
        sources = tuple(row[SOURCE] for row in having)
        found.append(Expected(group, name, figure.value, low, high, verdict, sources, remark))
    return found


def _verdict(figure: Figure, low: float, high: float) -> Verdict:
    if low <= figure.value <= high:
        return "inside"
    if figure.low <= high and figure.high >= low:
        return "near"
    return "outside"


@functools.cache
def published() -> dict[str, dict[str, Any]]:
    """Return the published rows in `models`, by model, benchmark and group; and `remarks` by benchmark and group."""
    content: dict[str, dict[str, Any]] = yaml.safe_load(PUBLISHED.read_text(encoding="utf-8"))
    return content
