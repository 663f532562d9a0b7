"""The figures of decoders on drawn scenes, and how they are shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sira_cli.demo.questions import SPLITS
from sira_cli.eval.stats.bootstrap import Figure
from sira_cli.eval.stats.compared import Compared
from sira_cli.eval.stats.named import answer_figures, caption_figures, named_differences, named_figures
from sira_cli.eval.stats.pope import FIGURES
from sira_cli.eval.stats.tally import Tally

CAPTION_FIGURES = ("CHAIRs", "CHAIRi", "coverage", "words")


@dataclass(frozen=True)
class SceneReport:
    """What was measured. Intervals are 95 % bootstrap intervals over scenes; differences are paired.

    Attributes:
        scenes: how many.
        settings: by method, what decides the outcome: k, alpha, ...
        figures: by method; `mean accuracy` and the like are means over the splits.
        differences: by method without the first, each figure less that of the first method.
    """

    scenes: int
    settings: dict[str, dict[str, Any]]
    figures: dict[str, dict[str, Figure]]
    differences: dict[str, dict[str, Figure]]

    @classmethod
    def of(cls, tallies: Mapping[str, Mapping[str, Tally]], settings: dict[str, dict[str, Any]]) -> SceneReport:
        """Make the report of tallies by group and method, over the same scenes (see `measure.measure`)."""
        splits = {f"{group} ": each for group, each in tallies.items() if group in SPLITS}
        compared = {
            group: Compared.of(each, answer_figures if group else caption_figures)
            for group, each in {"": tallies["captions"], **splits}.items()
        }
        if splits:
            compared["mean "] = Compared.mean([compared[group] for group in splits])
        methods = list(tallies["captions"])
        return cls(
            scenes=len(tallies["captions"][methods[0]].counts),
            settings=settings,
            figures={method: named_figures(compared, method) for method in methods},
            differences={method: named_differences(compared, method, methods[0]) for method in methods[1:]},
        )

    def to_json(self) -> dict[str, Any]:
        """Return the report for `json.dumps`; `from_json` reads it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> SceneReport:
        """Make a report of what `to_json` returned."""
        figures, differences = (
            {method: {name: Figure(**figure) for name, figure in row.items()} for method, row in content[part].items()}
            for part in ("figures", "differences")
        )
        return cls(content["scenes"], content["settings"], figures, differences)

    def captions_table(self) -> str:
        """Return CHAIRs, CHAIRi (lower is better), coverage and length in Markdown."""
        return self._table([""], [[]], CAPTION_FIGURES, "")

    def answers_table(self) -> str:
        """Return POPE's figures in its three splits in Markdown."""
        return self._table(["split", ""], [[split] for split in SPLITS], FIGURES, "{} ")

    def _table(self, head: list[str], groups: list[list[str]], names: tuple[str, ...], prefix: str) -> str:
        rows = [[*head, *names]]
        for group in groups:
            start = prefix.format(*group)
            for method, row in self.figures.items():
                rows.append([*group, method, *(f"{row[start + name]}" for name in names)])
            for method, row in self.differences.items():
                changes = (row[start + name] for name in names)
                rows.append([*group, f"{method} - {next(iter(self.figures))}", *(f"{change:+}" for change in changes)])
        return markdown(rows)


def markdown(rows: list[list[str]]) -> str:
    """Return a Markdown table with columns of even width; the first row is its head."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])
