"""The figures of a grid with intervals, the best setting, and their record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sira_cli._version import __version__
from sira_cli.analysis.sweep import best
from sira_cli.analysis.sweep.benchmark import Asked, Benchmark
from sira_cli.analysis.sweep.cells import GREEDY, Cell, Grid
from sira_cli.analysis.sweep.grid import answer_unit, caption_unit
from sira_cli.analysis.sweep.units import Units
from sira_cli.demo.evaluate import answer_counts, caption_counts, columns
from sira_cli.demo.figures import Counts, Report
from sira_cli.demo.scenes import Scene
from sira_cli.errors import PictureError
from sira_cli.eval.stats.bootstrap import Figure
from sira_cli.models.lvlm import Lvlm


@dataclass(frozen=True)
class Failure:
    """A picture about which not all questions could be answered, and why."""

    picture: str
    error: str


@dataclass(frozen=True)
class Row:
    """A setting.

    Attributes:
        k, alpha: 0 for greedy.
        neither: answers that are neither yes nor no; POPE's rule takes most of them for yes.
        figures: in percent, with 95 % intervals over pictures: `mean accuracy`, `<split> accuracy`, ..., `CHAIRi`.
        differences: of the figures to greedy's, paired; none for greedy.
    """

    k: int
    alpha: float
    neither: int
    figures: dict[str, Figure]
    differences: dict[str, Figure]


@dataclass(frozen=True)
class SweepReport:
    """What was measured, and the settings that decided it.

    Attributes:
        questions: how many were answered, each once, whatever number of splits it belongs to.
        pictures: how many they are about.
        captions: whether captions were measured, too.
        score: `accuracy` or `F1`: of answers, what is looked at.
        rule: how the best setting is picked.
        best: it.
        by_default: no setting fulfils the rule, so `best` is the paper's, which may not be in the grid.
        rows: greedy's first, then by K and alpha.
    """

    preset: str
    model: str
    revision: str
    quantization: str | None
    dtype: str
    layers: int
    splits: tuple[str, ...]
    questions: int
    pictures: int
    captions: bool
    failures: tuple[Failure, ...]
    score: str
    rule: str
    best: Cell
    by_default: bool
    rows: tuple[Row, ...]

    @classmethod
    def of(
        cls,
        lvlm: Lvlm,
        benchmark: Benchmark,
        grid: Grid,
        units: Units,
        *,
        captions: bool = False,
        score: str = "accuracy",
        failures: Sequence[Failure] = (),
    ) -> SweepReport:
        """From finished units; questions without one are left out.

        Raises:
            PictureError: there is none.
        """
        answered = [
            (asked, units[answer_unit(number)])
            for number, asked in enumerate(benchmark.questions)
            if answer_unit(number) in units
        ]
        if not answered:
            raise PictureError("no question could be answered")
        cells = grid.cells()
        counts = {cell.name: _counts(benchmark.splits, answered, number) for number, cell in enumerate(cells)}
        if captions:
            pictures = {asked.picture for asked, _ in answered}
            asked_about = [of for of in benchmark.scenes if str(of.seed) in pictures]
            for cell in cells:
                counts[cell.name] |= _caption_counts(asked_about, grid, units, cell)
        report = Report.of(counts, {})
        rows = tuple(
            Row(
                cell.k,
                cell.alpha,
                sum(texts[number].strip(" .,!").lower() not in ("yes", "no") for _, texts in answered),
                report.figures[cell.name],
                report.differences.get(cell.name, {}),
            )
            for number, cell in enumerate(cells)
        )
        figures = {cell: row.figures for cell, row in zip(cells, rows, strict=True)}
        chosen = best.by_captions(figures) if captions else best.by_score(figures, f"mean {score}")
        return cls(
            preset=lvlm.preset.name,
            model=lvlm.preset.model,
            revision=lvlm.revision,
            quantization=lvlm.quantization,
            dtype=lvlm.dtype,
            layers=lvlm.layers,
            splits=benchmark.splits,
            questions=len(answered),
            pictures=report.scenes,
            captions=captions,
            failures=tuple(failures),
            score=score,
            rule=best.rule(captions, score),
            best=chosen or best.paper(lvlm.layers),
            by_default=chosen is None,
            rows=rows,
        )

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> SweepReport:
        """The inverse of `to_json`, once that is read."""
        fields = {name: value for name, value in record.items() if name not in ("schema", "sira_version")}
        rows = tuple(
            Row(**{**row, **{part: _figures(row[part]) for part in ("figures", "differences")}})
            for row in record["rows"]
        )
        failures = tuple(Failure(**failure) for failure in record["failures"])
        best = Cell(**record["best"])
        return cls(**{**fields, "splits": tuple(record["splits"]), "failures": failures, "best": best, "rows": rows})

    @property
    def figures(self) -> dict[Cell, dict[str, Figure]]:
        """Of every setting."""
        return {Cell(row.k, row.alpha): row.figures for row in self.rows}

    def row(self, cell: Cell) -> Row | None:
        """Of a setting; None if it is not in the grid."""
        return next((row for row in self.rows if (row.k, row.alpha) == cell), None)

    @property
    def by(self) -> str:
        """The figure that decides which setting is the best."""
        return "CHAIRi" if self.captions else f"mean {self.score}"

    @property
    def greedy(self) -> Row:
        """The model as it is."""
        return self.rows[0]

    def to_json(self) -> str:
        """One JSON object, `sira.sweep/1`."""
        record = {"schema": "sira.sweep/1", **asdict(self), "best": self.best._asdict(), "sira_version": __version__}
        return json.dumps(record, ensure_ascii=False, allow_nan=False)


def _figures(values: dict[str, Any]) -> dict[str, Figure]:
    return {name: Figure(**figure) for name, figure in values.items()}


def _counts(splits: Sequence[str], answered: Sequence[tuple[Asked, list[str]]], cell: int) -> Counts:
    """POPE's counts of one cell by picture: `[N]` each."""
    by_picture: dict[str, list[tuple[bool, Sequence[str], str]]] = {}
    for asked, texts in answered:
        by_picture.setdefault(asked.picture, []).append((asked.there, asked.splits, texts[cell]))
    return columns([answer_counts(splits, about) for about in by_picture.values()])


def _caption_counts(scenes: Sequence[Scene], grid: Grid, units: Units, cell: Cell) -> Counts:
    """CHAIR's counts of one cell by scene."""
    number = 0 if cell == GREEDY else grid.alphas.index(cell.alpha)
    return columns([caption_counts(of, units[caption_unit(of, cell.k)][number]) for of in scenes])
