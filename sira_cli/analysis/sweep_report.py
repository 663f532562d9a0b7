"""What a sweep has measured: its figures under every setting, the best of these, a table and the paper's Figure 3."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

from sira_cli.analysis.caption_rule import CAPTIONS_RULE, Figures, by_captions
from sira_cli.analysis.experiment import FailedPicture, ModelReport, Units, draw_line, new_figure
from sira_cli.analysis.questions import Question, QuestionSet
from sira_cli.analysis.sweep import ANSWER_UNIT, CAPTION_UNIT, GREEDY, Cell, Grid
from sira_cli.errors import PictureError
from sira_cli.eval import figures as counted
from sira_cli.eval.statistics import Figure, Tally
from sira_cli.run.lvlm import Lvlm
from sira_cli.run.reports import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Plot

SCORE = "accuracy"  # the figure that decides between answers, of one split
MEAN = f"mean {SCORE}"  # over the splits
SCORE_RULE = f"the highest {MEAN} over the splits"
CAPTION_FIGURES = ("CHAIRs", "CHAIRi", "coverage")  # those of the table
Answered = tuple[Question, list[str]]  # a question, and its answer in every cell


def by_score(figures: Mapping[Cell, Figures]) -> Cell:
    """Return the setting with the highest mean score; on a tie the smaller K, then the smaller alpha."""
    return max(sorted(figures), key=lambda cell: round(figures[cell][MEAN].value, 9))  # the first on a tie


@dataclass(frozen=True)
class SettingRow:
    """A setting; greedy's K and alpha are 0, and it has no differences."""

    k: int
    alpha: float
    neither: int  # answers that are neither yes nor no; POPE's rule reads most of them as yes
    figures: dict[str, Figure]  # in percent, with 95 % intervals over pictures: `mean accuracy`, ..., `CHAIRi`
    differences: dict[str, Figure]  # paired, from greedy's

    @property
    def cell(self) -> Cell:
        """The setting itself."""
        return Cell(self.k, self.alpha)


def best_setting(rows: Sequence[SettingRow], captions: bool) -> tuple[Cell, bool]:
    """Return the best setting, and whether it fulfils the rule.

    Args:
        rows: greedy's first, then those to choose from.
        captions: whether CAPTIONS_RULE picks; else SCORE_RULE, which the picked setting always fulfils.
    """
    if captions:
        return by_captions({row.cell: row.differences for row in rows[1:]})
    return by_score({row.cell: row.figures for row in rows[1:]}), True


def _count_captions(
    questions: QuestionSet, pictures: Iterable[str], grid: Grid, units: Units[list[str]]
) -> dict[str, Tally]:
    """Return the counts of the captions of some pictures, by setting."""
    assert questions.count_caption is not None  # as `sweep` has checked
    tallies = {}
    for cell in grid.cells():
        number = grid.alphas.index(cell.alpha) if cell.k else 0  # a unit has a text for each alpha
        counts = {}
        for picture in pictures:
            caption = units[CAPTION_UNIT.format(picture, cell.k)][number]
            counts[picture] = questions.count_caption(picture, caption)
        tallies[cell.name] = Tally(counts)
    return tallies


def _count_answers(
    answered: Sequence[Answered], splits: Sequence[str], cells: Sequence[Cell]
) -> dict[str, dict[str, Tally]]:
    """Return the counts of answers, by split and setting."""
    tallies = {split: {cell.name: Tally() for cell in cells} for split in splits}
    for number, (question, texts) in enumerate(answered):
        for repetition, split in enumerate(question.splits):  # a split may ask it more than once
            for tally, text in zip(tallies[split].values(), texts, strict=True):
                tally.add(question.picture, f"{number} {repetition}", *counted.count_answer(text, question.expected))
    return tallies


@dataclass(frozen=True, kw_only=True)
class SweepReport(ModelReport):
    """The measurements, and the settings that decided them."""

    schema = "sira.sweep/1"

    layers: int
    splits: tuple[str, ...]
    questions: int  # answered ones, each once even if it is in several splits
    pictures: int  # of these
    captions: bool  # whether they were also measured
    failures: tuple[FailedPicture, ...]
    score: str  # deciding figure of the answers
    rule: str  # for the best setting
    best: Cell
    fulfils: bool  # whether `best` fulfils the rule; if not, it misses it by the least
    rows: tuple[SettingRow, ...]  # greedy's first, then by K and alpha

    @classmethod
    def of(
        cls,
        lvlm: Lvlm,
        questions: QuestionSet,
        grid: Grid,
        units: Units[list[str]],
        captions: bool = False,
    ) -> SweepReport:
        """Make the report from finished units; questions without one are left out."""
        answered: list[Answered] = []
        for number, question in enumerate(questions.questions):
            unit = ANSWER_UNIT.format(number)
            if unit in units:
                answered.append((question, units[unit]))
        if not answered:
            raise PictureError("no question could be answered")
        cells = grid.cells()
        pictures = {question.picture for question, _ in answered}
        groups = counted.compared(
            _count_captions(questions, pictures, grid, units) if captions else {},
            _count_answers(answered, questions.splits, cells),
        )
        rows = []
        for number, cell in enumerate(cells):
            neither = sum(counted.strict(texts[number]) is None for _, texts in answered)
            figures = counted.named_figures(groups, cell.name)
            differences = counted.named_figures(groups, cell.name, GREEDY.name)
            rows.append(SettingRow(cell.k, cell.alpha, neither, figures, differences))
        best, fit = best_setting(rows, captions)
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
            best=best,
            fulfils=fit,
            rows=tuple(rows),
        )

    @property
    def by(self) -> str:
        """The figure that decides which setting is the best."""
        return "CHAIRi" if self.captions else MEAN

    def table(self) -> Iterator[Table | str]:
        """Yield the table, a row per setting, then what was measured, and the best setting."""
        captions = CAPTION_FIGURES if self.captions else ()
        chosen = None
        best = ""
        sections: dict[int, list[list[str]]] = {}
        for row in self.rows:
            figures = row.figures
            cells = [str(row.k), f"{row.alpha:g}"] if row.k else ["-", "greedy"]
            cells += [f"{figures[f'{split} {SCORE}']}" for split in self.splits]
            difference = f"{row.differences[MEAN]:+}" if row.k else ""
            cells += [f"{figures[MEAN]}", difference, f"{figures['mean yes'].value:.1f}", str(row.neither)]
            cells += [f"{figures[name]}" for name in captions]
            sections.setdefault(row.k, []).append(cells)
            if row.cell == self.best:
                chosen = cells
                change = row.differences[self.by]
                best = f"{self.best.name}: {self.by} {figures[self.by]}, {change.value:+.1f} against greedy, "
                best += f"95 % interval {change.low:+.1f} to {change.high:+.1f}"
                if change.low <= 0 <= change.high:
                    best += ", which holds 0: no difference to greedy is shown"
        heads = ["K", "alpha", *self.splits, MEAN, "- greedy", "mean yes", "neither", *captions]
        yield Table((), heads, list(sections.values()), chosen=chosen, tight=True)
        yield f"{self.questions:,} questions about {self.pictures:,} pictures; in percent, ± half a 95 % interval"
        yield "yes: answers that count as yes by POPE's rule; neither: number of answers that are neither yes nor no"
        yield f"best: {best}"
        how = "picked by the rule" if self.fulfils else "no setting fulfils the rule; this one misses it by the least"
        yield f"{how}: {self.rule}"

    def draw(self) -> Plot:
        """Draw Figure 3: (a) the score over K at the best alpha, (b) over alpha, from greedy on, at the best K.

        With captions, more rows have the figures of their rule. Each figure is a line with its interval as a band, and
        greedy's value is dashed.
        """
        from matplotlib.ticker import MaxNLocator

        best = self.best
        over_k: dict[float, dict[str, Figure]] = {row.k: row.figures for row in self.rows if row.alpha == best.alpha}
        over_alpha = {row.alpha: row.figures for row in self.rows if row.k in (GREEDY.k, best.k)}
        # A row of panels for each title; in it, the figure of each line, by its label.
        panels = {SCORE: {split: f"{split} {SCORE}" for split in self.splits}}
        if self.captions:
            panels |= {name: {name: name} for name in ("CHAIRi", "coverage")}
        plot = new_figure(1 + 3.2 * len(panels))
        axes_of_panels = plot.subplots(len(panels), 2, sharey="row", squeeze=False)
        for axes_row, (title, lines) in zip(axes_of_panels, panels.items(), strict=True):
            axes_row[0].set_ylabel(f"{title}, percent")
            for axes, figures in zip(axes_row, (over_k, over_alpha), strict=True):
                for style, (label, name) in enumerate(lines.items()):
                    values = [astuple(row[name]) for row in figures.values()]
                    colour = draw_line(axes, [*figures], values, label, style)
                    axes.axhline(self.rows[0].figures[name].value, color=colour, linestyle="--", linewidth=1)
                axes.grid(alpha=0.3)
            axes_row[0].xaxis.set_major_locator(MaxNLocator(integer=True))
        axes_of_panels[0][0].set_title(f"(a) alpha = {best.alpha:g}")
        axes_of_panels[0][1].set_title(f"(b) K = {best.k}")
        axes_of_panels[-1][0].set_xlabel(f"layers after the fork, K (of L = {self.layers})")
        axes_of_panels[-1][1].set_xlabel("contrast strength, alpha")
        handles, labels = axes_of_panels[0][0].get_legend_handles_labels()
        plot.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4), frameon=False)
        measured = f"{self.questions:,} questions, {self.pictures:,} pictures"
        plot.suptitle(f"{self.preset or self.model}: {measured}, 95 % intervals; dashed: greedy")
        return plot
