"""The figures of decoders on drawn scenes, and how they are shown."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sira_cli.demo.questions import SPLITS
from sira_cli.eval.stats.compared import MethodFigures
from sira_cli.eval.stats.intervals import Figure
from sira_cli.eval.stats.named import compare_answers, compare_captions, named_differences, named_figures
from sira_cli.eval.stats.pope import FIGURES
from sira_cli.eval.stats.tally import Counts, Tally
from sira_cli.models.loading.presets import BUNDLED_FOLDER

CAPTION_FIGURES = ("CHAIRs", "CHAIRi", "coverage", "words")


@dataclass(frozen=True)
class SceneReport:
    """The measurements. Intervals are 95 % intervals over scenes; differences are paired.

    Attributes:
        scenes: number of scenes.
        settings: by method, those that decide the outcome: k, alpha, ...
        figures: by method; `mean accuracy` and the like are means over the splits.
        differences: by method except the first, each figure minus the first method's.
        outcomes: by method except the first, numbers of captions that name `fewer`, `more` or `as many` absent objects
            than the first method's.
    """

    scenes: int
    settings: dict[str, dict[str, Any]]
    figures: dict[str, dict[str, Figure]]
    differences: dict[str, dict[str, Figure]]
    outcomes: dict[str, dict[str, int]]

    @classmethod
    def of(cls, tallies: Mapping[str, Mapping[str, Tally]], settings: dict[str, dict[str, Any]]) -> SceneReport:
        """Make the report of tallies by group and method, over the same scenes (see `measure.measure`)."""
        splits = {f"{group} ": each for group, each in tallies.items() if group in SPLITS}
        compared = {
            group: compare_answers(each) if group else compare_captions(each)
            for group, each in {"": tallies["captions"], **splits}.items()
        }
        if splits:
            compared["mean "] = MethodFigures.mean([compared[group] for group in splits])
        methods = list(tallies["captions"])
        return cls(
            scenes=len(tallies["captions"][methods[0]].counts),
            settings=settings,
            figures={method: named_figures(compared, method) for method in methods},
            differences={method: named_differences(compared, method, methods[0]) for method in methods[1:]},
            outcomes={
                method: outcomes(tallies["captions"][methods[0]].counts, tallies["captions"][method].counts)
                for method in methods[1:]
            },
        )

    @classmethod
    def shipped(cls) -> SceneReport:
        """Return the measurements on the test scenes from the making of the bundled model."""
        return cls.from_json(read_figures())

    def to_json(self) -> dict[str, Any]:
        """Return the report for `json.dumps`; `from_json` reads it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> SceneReport:
        """Make a report from the JSON of `to_json`."""
        figures, differences = (
            {method: {name: Figure(**figure) for name, figure in row.items()} for method, row in content[part].items()}
            for part in ("figures", "differences")
        )
        return cls(content["scenes"], content["settings"], figures, differences, content["outcomes"])

    def captions_table(self) -> str:
        """Return CHAIRs, CHAIRi (lower is better), coverage and length in Markdown."""
        return self._table([""], [[]], CAPTION_FIGURES, "")

    def outcomes_line(self) -> str:
        """State in how many captions each method names fewer, more or as many absent objects as the first."""
        first = next(iter(self.figures))
        return "\n".join(
            f"Compared with {first}'s, {method}'s captions name fewer absent objects in {count['fewer']} of "
            f"{self.scenes:,} scenes, more in {count['more']}, as many in {count['as many']}."
            for method, count in self.outcomes.items()
        )

    def answers_table(self) -> str:
        """Return POPE's figures in its three splits in Markdown."""
        return self._table(["split", ""], [[split] for split in SPLITS], FIGURES, "{} ")

    def table(self) -> str:
        """Return the figures of captions, and the accuracy in each of POPE's splits, in Markdown."""
        return self._table([""], [[]], (*CAPTION_FIGURES, *(f"{split} accuracy" for split in SPLITS)), "")

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


def read_figures(folder: Path = BUNDLED_FOLDER) -> dict[str, Any]:
    """Return the measurements of the model in `folder`: a report as JSON, and `words`."""
    figures: dict[str, Any] = json.loads((folder / "figures.json").read_text(encoding="utf-8"))
    more = yaml.safe_load((folder / "outcomes.yaml").read_text(encoding="utf-8"))
    words = {name: row | {"by_doubt": more["by_doubt"][name]} for name, row in figures["words"].items()}
    return figures | {"words": words, "outcomes": more["outcomes"]}


def outcomes(first: Mapping[str, Counts], other: Mapping[str, Counts]) -> dict[str, int]:
    """Count the captions in which the other method names fewer, more or as many absent objects."""
    found = {"fewer": 0, "more": 0, "as many": 0}
    for picture, counts in first.items():
        change = other[picture]["hallucinated mentions"] - counts["hallucinated mentions"]
        found["fewer" if change < 0 else "more" if change else "as many"] += 1
    return found


def markdown(rows: list[list[str]]) -> str:
    """Return a Markdown table with columns of even width; the first row is its head."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])
