"""The outcome of a sweep: figures with intervals, the best setting, the table, and the paper's Figure 3."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from sira_cli.analysis.experiment import ModelReport, Table, Units
from sira_cli.analysis.plots import STYLES, new_figure
from sira_cli.analysis.sweep.questions import GREEDY, Cell, Grid, Question, QuestionSet, answer_unit, caption_unit
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

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Plot

SCORE = "accuracy"  # the deciding figure of answers
CAPTIONS = ("CHAIRs", "CHAIRi", "coverage")  # figures in the table
# Rules for the best setting, which were fixed before any measurement.
SCORE_RULE = f"the highest mean {SCORE} over the splits"
CAPTIONS_RULE = (
    "of the settings whose coverage is at most one point below greedy's, whose adversarial accuracy is not below it "
    "and whose CHAIRi is, the one with the least CHAIRi; "
    "without such a setting the paper's K = L/2 and alpha = 0.5, if measured"
)
Figures = Mapping[str, Figure]
T = TypeVar("T")


def by_score(figures: Mapping[Cell, Figures]) -> Cell:
    """Return the setting with the highest mean score; on a tie the smaller K, then the smaller alpha."""
    cells = sorted(cell for cell in figures if cell != GREEDY)
    return max(cells, key=lambda cell: round(figures[cell][f"mean {SCORE}"].value, 9))  # the first on a tie


def by_captions(figures: Mapping[Cell, Figures]) -> Cell | None:
    """Return the setting that CAPTIONS_RULE picks; None if no setting fulfils it."""
    return by_captions_among({cell: figures[cell] for cell in sorted(figures) if cell != GREEDY}, figures[GREEDY])


def by_captions_among(figures: Mapping[T, Figures], greedy: Figures) -> T | None:
    """Return the setting of any method that CAPTIONS_RULE picks, the first on a tie; None if none fulfils it."""
    fit = [
        setting
        for setting, row in figures.items()
        if captions_fit(row, greedy) and row["adversarial accuracy"].value >= greedy["adversarial accuracy"].value
    ]
    return min(fit, key=lambda setting: figures[setting]["CHAIRi"].value, default=None)


def captions_fit(row: Figures, greedy: Figures) -> bool:
    """Return whether a setting fulfils CAPTIONS_RULE for captions."""
    return row["coverage"].value >= greedy["coverage"].value - 1 and row["CHAIRi"].value < greedy["CHAIRi"].value


def paper(layers: int) -> Cell:
    """Return the paper's setting on both of its models, for a model of L layers."""
    return Cell(layers // 2, 0.5)


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

    @property
    def cell(self) -> Cell:
        """K and alpha."""
        return Cell(self.k, self.alpha)


@dataclass(frozen=True, kw_only=True)
class SweepReport(ModelReport):
    """The measurements, and the settings that decided them.

    Attributes:
        questions: number of answered ones, each once even if it is in several splits.
        pictures: number of their pictures.
        captions: whether captions were also measured.
        score: deciding figure of the answers.
        rule: how the best setting is picked.
        best: the best of the rows; None if no row fulfils the rule or is the paper's.
        by_default: whether no setting fulfils the rule, so that `best` is the paper's or None.
        rows: greedy's first, then by K and alpha.
    """

    schema = "sira.sweep/1"
    optional = ("best",)

    layers: int
    splits: tuple[str, ...]
    questions: int
    pictures: int
    captions: bool
    failures: tuple[FailedPicture, ...]
    score: str
    rule: str
    best: Cell | None = None
    by_default: bool
    rows: tuple[SettingRow, ...]

    @classmethod
    def of(
        cls,
        lvlm: Lvlm,
        questions: QuestionSet,
        grid: Grid,
        units: Units[list[str]],
        captions: bool = False,
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
        splits = {f"{split} ": compare_answers(_answers_of(split, answered, cells)) for split in questions.splits}
        pictures = {question.picture for question, _ in answered}
        groups = {**splits, "mean ": MethodFigures.mean(list(splits.values()))}
        if captions:
            groups = {"": compare_captions(_captions_of(questions, pictures, grid, units)), **groups}
        rows = tuple(
            SettingRow(
                cell.k,
                cell.alpha,
                sum(strict(texts[number]) is None for _, texts in answered),
                named_figures(groups, cell.name),
                named_differences(groups, cell.name, GREEDY.name),
            )
            for number, cell in enumerate(cells)
        )
        figures = {row.cell: row.figures for row in rows}
        chosen = by_captions(figures) if captions else by_score(figures)
        return cls(
            **cls.fields_of(lvlm),
            layers=lvlm.layers,
            splits=questions.splits,
            questions=len(answered),
            pictures=len(pictures),
            captions=captions,
            failures=tuple(units.failures.values()),
            score=SCORE,
            rule=CAPTIONS_RULE if captions else SCORE_RULE,
            best=chosen or (paper(lvlm.layers) if paper(lvlm.layers) in cells else None),
            by_default=chosen is None,
            rows=rows,
        )

    @property
    def figures(self) -> dict[Cell, dict[str, Figure]]:
        """The figures of every setting."""
        return {row.cell: row.figures for row in self.rows}

    @property
    def by(self) -> str:
        """The figure that decides which setting is the best."""
        return "CHAIRi" if self.captions else f"mean {self.score}"

    def table(self) -> Iterator[Table | str]:
        """Yield the table, a row per setting, then what was measured, and the best setting."""
        mean, chosen = f"mean {self.score}", None
        sections: dict[int, list[list[str]]] = {}
        for row in self.rows:
            cells = [
                str(row.k or "-"),
                f"{row.alpha:g}" if row.k else "greedy",
                *(f"{row.figures[f'{split} {self.score}']}" for split in self.splits),
                f"{row.figures[mean]}",
                f"{row.differences[mean]:+}" if row.k else "",
                f"{row.figures['mean yes'].value:.1f}",
                str(row.neither),
                *(f"{row.figures[name]}" for name in CAPTIONS if self.captions),
            ]
            sections.setdefault(row.k, []).append(cells)
            chosen = cells if row.cell == self.best else chosen
        heads = ["K", "alpha", *self.splits, mean, "- greedy", "mean yes", "neither"]
        heads += CAPTIONS if self.captions else ()
        yield Table((), heads, list(sections.values()), chosen=chosen, tight=True)
        yield f"{self.questions:,} questions about {self.pictures:,} pictures; in percent, ± half a 95 % interval"
        yield "yes: answers that count as yes by POPE's rule; neither: number of answers that are neither yes nor no"
        yield f"best: {self._best()}"
        yield f"{'no setting fulfils the rule' if self.by_default else 'picked by the rule'}: {self.rule}"

    def _best(self) -> str:
        """Return the best setting, and what its difference to greedy means, given the 95 % interval."""
        if self.best is None:
            return "none of these settings"
        row = next(row for row in self.rows if row.cell == self.best)
        apart = row.differences[self.by]
        line = f"{self.best.name}: {self.by} {row.figures[self.by]}, {apart.value:+.1f} against greedy, "
        line += f"95 % interval {apart.low:+.1f} to {apart.high:+.1f}"
        return line + ", which holds 0: no difference to greedy is shown" * (apart.low <= 0 <= apart.high)

    def draw(self) -> Plot:
        """Draw Figure 3: (a) the score over K at the best alpha, (b) over alpha, from greedy on, at the best K.

        With captions, more rows have the figures of their rule. If no setting is best, the one nearest to the paper's
        is drawn.
        """
        from matplotlib.ticker import MaxNLocator

        ks, alphas = sorted({row.k for row in self.rows[1:]}), sorted({row.alpha for row in self.rows[1:]})
        shown = self.best or paper(self.layers)
        k = min(ks, key=lambda value: abs(value - shown.k))
        alpha = min(alphas, key=lambda value: abs(value - shown.alpha))
        panels = {self.score: {split: f"{split} {self.score}" for split in self.splits}}  # a figure per line's label
        if self.captions:
            panels |= {name: {name: name} for name in ("CHAIRi", "coverage")}
        plot = new_figure(1 + 3.2 * len(panels))
        for number, (title, lines) in enumerate(panels.items()):
            over_k = plot.add_subplot(len(panels), 2, 2 * number + 1)
            over_alpha = plot.add_subplot(len(panels), 2, 2 * number + 2, sharey=over_k)
            self._panel(over_k, lines, ks, [Cell(value, alpha) for value in ks])
            self._panel(over_alpha, lines, [0, *alphas], [GREEDY, *(Cell(k, value) for value in alphas)])
            over_k.xaxis.set_major_locator(MaxNLocator(integer=True))
            over_k.set_ylabel(f"{title}, percent")
            if number == 0:
                over_k.set_title(f"(a) alpha = {alpha:g}")
                over_alpha.set_title(f"(b) K = {k}")
                handles, labels = over_k.get_legend_handles_labels()
        over_k.set_xlabel(f"layers after the fork, K (of L = {self.layers})")
        over_alpha.set_xlabel("contrast strength, alpha")
        plot.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4), frameon=False)
        plot.suptitle(
            f"{self.preset or self.model}: {self.questions:,} questions, {self.pictures:,} pictures, "
            "95 % intervals; dashed: greedy"
        )
        return plot

    def _panel(self, axes: Any, lines: Mapping[str, str], values: Sequence[float], cells: Sequence[Cell]) -> None:
        """Draw a line per figure over cells, with its interval as a band, and greedy's value."""
        figures = self.figures
        for number, (label, name) in enumerate(lines.items()):
            colour, marker = STYLES[number % len(STYLES)]
            drawn = [figures[cell][name] for cell in cells]
            axes.plot(values, [each.value for each in drawn], color=colour, marker=marker, markersize=4, label=label)
            band = [each.low for each in drawn], [each.high for each in drawn]
            axes.fill_between(values, *band, color=colour, alpha=0.15, linewidth=0)
            axes.axhline(figures[GREEDY][name].value, color=colour, linestyle="--", linewidth=1)
        axes.grid(alpha=0.3)


def _answers_of(split: str, answered: Sequence[tuple[Question, list[str]]], cells: Sequence[Cell]) -> dict[str, Tally]:
    """Count the answers of one split, by cell."""
    tallies = {cell.name: Tally() for cell in cells}
    for number, (question, texts) in enumerate(answered):
        for time in range(question.splits.count(split)):
            for cell, text in zip(cells, texts, strict=True):
                add_answer(tallies[cell.name], question.picture, f"{number} {time}", text, question.expected)
    return tallies


def _captions_of(
    questions: QuestionSet, pictures: Collection[str], grid: Grid, units: Units[list[str]]
) -> dict[str, Tally]:
    """Count the captions of the pictures that were asked about, by cell."""
    count = questions.count_caption
    assert count is not None
    tallies = {}
    for cell in grid.cells():
        number = 0 if cell == GREEDY else grid.alphas.index(cell.alpha)
        tallies[cell.name] = Tally(
            {picture: count(picture, units[caption_unit(picture, cell.k)][number]) for picture in pictures}
        )
    return tallies
