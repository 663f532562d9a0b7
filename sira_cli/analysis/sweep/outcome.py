"""The outcome of a sweep: figures with intervals, the best setting, and their record."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sira_cli.analysis.provenance import Provenance
from sira_cli.analysis.sweep import best
from sira_cli.analysis.sweep.cells import GREEDY, Cell, Grid
from sira_cli.analysis.sweep.grid import answer_unit, caption_unit
from sira_cli.analysis.sweep.questions import Question, QuestionSet
from sira_cli.analysis.sweep.units import Units
from sira_cli.errors import PictureError
from sira_cli.eval.figures import (
    add_answer,
    compare_answers,
    compare_captions,
    named_differences,
    named_figures,
    strict,
)
from sira_cli.eval.statistics import Figure, MethodFigures, Tally
from sira_cli.run.events import FailedPicture
from sira_cli.run.lvlm import Lvlm


@dataclass(frozen=True)
class SettingRow:
    """A setting.

    Attributes:
        k, alpha: 0 for greedy.
        neither: answers that are neither yes nor no; POPE's rule reads most of them as yes.
        figures: in percent, with 95 % intervals over pictures: `mean accuracy`, `<split> accuracy`, ..., `CHAIRi`.
        differences: paired differences of the figures from greedy's; empty for greedy.
    """

    k: int
    alpha: float
    neither: int
    figures: dict[str, Figure]
    differences: dict[str, Figure]


@dataclass(frozen=True)
class SweepReport(Provenance):
    """The measurements, and the settings that decided them.

    Attributes:
        questions: number of answered ones, each once even if it is in several splits.
        pictures: number of their pictures.
        captions: whether captions were also measured.
        score: deciding figure of the answers: `accuracy` or `F1`.
        rule: how the best setting is picked.
        best: the best of the rows; None if no row fulfils the rule or is the paper's.
        by_default: whether no setting fulfils the rule, so that `best` is the paper's or None.
        rows: greedy's first, then by K and alpha.
    """

    schema = "sira.sweep/1"

    layers: int
    splits: tuple[str, ...]
    questions: int
    pictures: int
    captions: bool
    failures: tuple[FailedPicture, ...]
    score: str
    rule: str
    best: Cell | None
    by_default: bool
    rows: tuple[SettingRow, ...]

    @classmethod
    def of(
        cls,
        lvlm: Lvlm,
        questions: QuestionSet,
        grid: Grid,
        units: Units,
        *,
        captions: bool = False,
        score: str = "accuracy",
        failures: Sequence[FailedPicture] = (),
    ) -> SweepReport:
        """Make the report from finished units; other questions are left out."""
        answered = [
            (question, units[answer_unit(number)])
            for number, question in enumerate(questions.questions)
            if answer_unit(number) in units
        ]
        if not answered:
            raise PictureError("no question could be answered")
        cells = grid.cells()
        groups = {split: _answers_of(split, answered, cells) for split in questions.splits}
        pictures = {question.picture for question, _ in answered}
        splits = {f"{split} ": compare_answers(tallies) for split, tallies in groups.items()}
        prefixed = {**splits, "mean ": MethodFigures.mean(list(splits.values()))}
        if captions:
            counted = _captions_of(questions, pictures, grid, units)
            prefixed = {"": compare_captions(counted), **prefixed}
        rows = tuple(
            SettingRow(
                cell.k,
                cell.alpha,
                sum(strict(texts[number]) is None for _, texts in answered),
                named_figures(prefixed, cell.name),
                named_differences(prefixed, cell.name, GREEDY.name),
            )
            for number, cell in enumerate(cells)
        )
        figures = {cell: row.figures for cell, row in zip(cells, rows, strict=True)}
        chosen = best.by_captions(figures) if captions else best.by_score(figures, f"mean {score}")
        paper = best.paper(lvlm.layers)
        return cls(
            **cls.fields_of(lvlm),
            layers=lvlm.layers,
            splits=questions.splits,
            questions=len(answered),
            pictures=len(pictures),
            captions=captions,
            failures=tuple(failures),
            score=score,
            rule=best.rule(captions, score),
            best=chosen or (paper if paper in cells else None),
            by_default=chosen is None,
            rows=rows,
        )

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> SweepReport:
        """Make a report from the parsed JSON of `to_json`."""
        fields = {name: value for name, value in record.items() if name not in ("schema", "sira_version")}
        rows = tuple(
            SettingRow(**{**row, **{part: _figures(row[part]) for part in ("figures", "differences")}})
            for row in record["rows"]
        )
        failures = tuple(FailedPicture(**failure) for failure in record["failures"])
        best = Cell(**record["best"]) if "best" in record else None
        return cls(**{**fields, "splits": tuple(record["splits"]), "failures": failures, "best": best, "rows": rows})

    @property
    def figures(self) -> dict[Cell, dict[str, Figure]]:
        """The figures of every setting."""
        return {Cell(row.k, row.alpha): row.figures for row in self.rows}

    def row(self, cell: Cell) -> SettingRow:
        """Return the row of a setting of the grid."""
        return next(row for row in self.rows if (row.k, row.alpha) == cell)

    @property
    def by(self) -> str:
        """The figure that decides which setting is the best."""
        return "CHAIRi" if self.captions else f"mean {self.score}"

    @property
    def greedy(self) -> SettingRow:
        """The row of the model as it is."""
        return self.rows[0]

    def to_json(self) -> str:
        """Return one JSON object, `sira.sweep/1`; without `best` if no setting is best."""
        return self.as_json(best=self.best and self.best._asdict())


def _figures(values: dict[str, Any]) -> dict[str, Figure]:
    return {name: Figure(**figure) for name, figure in values.items()}


def _answers_of(split: str, answered: Sequence[tuple[Question, list[str]]], cells: Sequence[Cell]) -> dict[str, Tally]:
    """Count the answers of one split, by cell."""
    tallies = {cell.name: Tally() for cell in cells}
    for number, (question, texts) in enumerate(answered):
        for time in range(question.splits.count(split)):
            for cell, text in zip(cells, texts, strict=True):
                add_answer(tallies[cell.name], question.picture, f"{number} {time}", text, question.expected)
    return tallies


def _captions_of(questions: QuestionSet, pictures: Collection[str], grid: Grid, units: Units) -> dict[str, Tally]:
    """Count the captions of the pictures that were asked about, by cell."""
    assert questions.count_caption is not None
    tallies = {}
    for cell in grid.cells():
        number = 0 if cell == GREEDY else grid.alphas.index(cell.alpha)
        tallies[cell.name] = Tally(
            {
                picture: questions.count_caption(picture, units[caption_unit(picture, cell.k)][number])
                for picture in pictures
            }
        )
    return tallies
