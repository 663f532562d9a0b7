"""K and alpha over yes/no questions: the paper's Figure 3.

An answer is read from its first token, so one prefill gives the answers of a question in every cell: z_full does not
depend on K, and z_cf not on alpha (`core.passes`).
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from typing_extensions import override

from sira_cli import methods
from sira_cli.analysis.experiment import Events, ModelReport, Units, draw_line, new_figure, run_missing
from sira_cli.analysis.questions import DECODED, Question, QuestionSet
from sira_cli.core.families import find_backbone
from sira_cli.core.passes import next_token
from sira_cli.core.rules import contrast, plausible
from sira_cli.errors import PictureError, SettingsError, UnfinishedReasoningError
from sira_cli.eval import figures as counted
from sira_cli.eval.statistics import Figure, Tally
from sira_cli.models.model import LoadedModel
from sira_cli.models.preset import Preset
from sira_cli.run.events import FailedPicture, StageStarted
from sira_cli.run.items import Batch, Item, Task
from sira_cli.run.lvlm import Lvlm
from sira_cli.run.records import flat, hash_of
from sira_cli.run.reports import Table
from sira_cli.run.runner import BatchSize

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Plot

VALUES = 6  # number of values of K, unless they are given
SCORE, MEAN = "accuracy", "mean accuracy"  # the deciding figure of answers
CAPTIONS = ("CHAIRs", "CHAIRi", "coverage")  # figures in the table
COVERAGE = 1.0  # points of coverage that a setting may cost
ACCURACY = "adversarial accuracy"
# Rules for the best setting: the same for SIRA and, in `tools.choose`, for every other method.
SCORE_RULE = f"the highest {MEAN} over the splits"
CAPTIONS_RULE = (
    "of the settings whose coverage is at most one point below greedy's, whose adversarial accuracy is not shown to be "
    "below it (the paired 95 % interval of the change does not end below 0) and whose CHAIRi is below it, the one with "
    "the least CHAIRi; without such a setting the one that misses these limits by the fewest points in all"
)
ANSWER_UNIT, CAPTION_UNIT = "question {}", "captions of scene {}, K = {}"
Figures = Mapping[str, Figure]
T = TypeVar("T")


@dataclass(frozen=True, order=True)
class Cell:
    """A setting; K = 0 stands for greedy."""

    k: int
    alpha: float

    @property
    def name(self) -> str:
        """Its name in reports and messages."""
        return f"K = {self.k}, alpha = {self.alpha:g}" if self.k else "greedy"


GREEDY = Cell(0, 0.0)


@dataclass(frozen=True)
class Grid:
    """Every K with every alpha, both ascending."""

    ks: tuple[int, ...]
    alphas: tuple[float, ...]

    @classmethod
    def of(cls, lvlm: LoadedModel, k: str | None, alphas: tuple[float, ...]) -> Grid:
        """Return the grid of a model: `k` is `all`, or as `parse_ks` reads it; None: `spread`."""
        largest = lvlm.layers - find_backbone(lvlm.model).first_boundary
        if k is None:
            return cls(spread(lvlm.layers, largest), alphas)
        ks = range(1, largest + 1) if k == "all" else parse_ks(k)
        return cls(tuple(ks), alphas)

    def cells(self) -> list[Cell]:
        """Return all settings, greedy first."""
        return [GREEDY, *itertools.starmap(Cell, itertools.product(self.ks, self.alphas))]


def spread(layers: int, largest: int) -> tuple[int, ...]:
    """Return VALUES values of K from early to late forks, L/2 among them."""
    evenly = [number * layers // VALUES for number in range(1, VALUES + 1)]
    return tuple(sorted({max(1, min(k, largest)) for k in evenly}))


def parse_ks(text: str) -> tuple[int, ...]:
    """Read values of K: `1,2,4`, `1-7`, or both."""
    values: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        numbers = range(int(match[1]), int(match[2] or match[1]) + 1) if match else ()
        if not numbers or 0 in numbers:
            raise SettingsError(f"`k=` {text!r}: expected all, or numbers and ranges such as 1,2,4 or 1-7")
        values.update(numbers)
    return tuple(sorted(values))


def parse_alphas(text: str) -> tuple[float, ...]:
    """Read values of alpha: `0.5,1`."""
    try:
        values = sorted(set(map(float, text.split(","))))
    except ValueError:
        values = []
    if not values or not all(0 < value < math.inf for value in values):
        raise SettingsError(f"`alpha=` {text!r}: expected numbers above 0 such as 0.5,1; greedy is always measured")
    return tuple(values)


def decisive(preset: Preset, questions: QuestionSet, alphas: Sequence[float], captions: bool) -> dict[str, Any]:
    """Return the settings that decide a sweep's texts, besides K and the checkpoint's revision, as JSON holds them."""
    parts = preset.decisive()
    for swept in ("k", "k_fraction", "alpha"):
        del parts["sira"][swept]
    prompts = {}
    if captions:
        prompts["caption"] = preset.prompts.caption
    else:
        del parts["generation"]  # the first token is always the likeliest
    parts["prompts"] = prompts | {"ask": preset.prompts.ask}
    rows = []
    for question in questions.questions:
        row = {"picture": question.picture, "text": question.text, "there": question.expected}
        rows.append(row | {"splits": question.splits})
    return flat(parts) | {
        "captions": captions,
        "alpha": list(alphas),
        "splits": list(questions.splits),
        "images": questions.folder,
        "questions": len(rows),
        "questions_sha256": hash_of(questions=rows),
    }


def first_tokens(lvlm: LoadedModel, grid: Grid, inputs: Any) -> torch.Tensor:
    """Return the first token that decoding picks in every cell, `[B, cells]`."""
    z_full, z_cf = next_token(lvlm.model, lvlm.sira, lvlm.to_device(inputs), grid.ks)  # [B, V], and [B, V] for each K
    picked = [z_full.argmax(dim=-1)]  # [B]
    for cell in grid.cells()[1:]:
        z_cd = contrast(z_full, z_cf[cell.k], cell.alpha)  # [B, V], (1 + alpha) z_full - alpha z_cf
        if lvlm.sira.beta is not None:
            z_cd = plausible(z_cd, z_full, lvlm.sira.beta)
        picked.append(z_cd.argmax(dim=-1))
    return torch.stack(picked, dim=1)


@dataclass(frozen=True)
class FirstTokens(Task[list[str]]):
    """The first token of the answer to each question, in every cell of a grid: one prefill for all cells."""

    grid: Grid

    @override
    def skips_thought(self) -> bool:
        """Return True: the first token is read as the answer."""
        return True

    @override
    def kept_open(self) -> int:
        """Return the number of pictures whose samples wait for the next question about them."""
        return DECODED

    def answers(self, lvlm: LoadedModel, batch: Batch[list[str]], on_text: Any = None) -> list[list[str]]:
        """Return the texts of `grid.cells()` for each question."""
        text = functools.cache(lambda token: lvlm.vocabulary.text([token]).strip())
        rows = first_tokens(lvlm, self.grid, batch.inputs).tolist()
        return [list(map(text, tokens)) for tokens in rows]


@dataclass(frozen=True)
class CaptionsOfCells(Task[list[str]]):
    """A picture's captions in several cells with the same K."""

    lvlms: Sequence[Lvlm]  # the model in each cell

    def answers(self, lvlm: LoadedModel, batch: Batch[list[str]], on_text: Any = None) -> list[list[str]]:
        """Return the captions of the cells for each picture."""
        captions = []
        for cell in self.lvlms:
            answers = cell.answer(batch.inputs)
            for answer in answers:
                if answer.error:
                    raise UnfinishedReasoningError(f"a caption {answer.error}")
            captions.append([answer.text for answer in answers])
        return list(map(list, zip(*captions, strict=True)))


def sweep(
    lvlm: Lvlm,
    questions: QuestionSet,
    grid: Grid,
    units: Units[list[str]],
    *,
    captions: bool = False,
    batch_size: BatchSize | None = None,
) -> Events:
    """Measure what is missing in `units`, and yield events.

    A picture that fails in the questions is an event once, and the others go on.

    Args:
        lvlm: the loaded model, under SIRA.
        questions: labelled yes/no questions.
        grid: values of K and alpha.
        units: the answers so far, to which new ones are added.
        captions: also caption each picture under every setting.
        batch_size: as for `Runner`.

    Raises:
        PictureError: a picture cannot be captioned.
        SettingsError: `units` are of other questions or settings, or captions could not be counted.
    """
    if captions and questions.count_caption is None:
        raise SettingsError("`captions=` is for pictures whose objects are known: leave it out")
    lvlm.check_prompts((question.text, question.picture) for question in questions.questions)
    settings = decisive(lvlm.preset, questions, grid.alphas, captions)
    settings |= {"quantization": lvlm.quantization, "k": list(grid.ks)}
    settings |= {"checkpoint": lvlm.revision, "dtype": str(lvlm.model.dtype)}
    units.begin(settings)
    prompts = lvlm.preset.prompts
    asked = []
    for number, question in enumerate(questions.questions):
        prompt = prompts.asking(question.text)
        unit = ANSWER_UNIT.format(number)
        picture = questions.picture(question.picture).known(prompt=prompt, id=unit)
        asked.append(Item[list[str]](picture, question.picture, prompt, unit))
    yield StageStarted("questions", len(asked))
    yield from run_missing(lvlm, FirstTokens(grid), asked, units, batch_size)
    if captions:
        yield StageStarted("captions", len(questions.pictures) * len(grid.cells()))
        for k in (GREEDY.k, *grid.ks):
            method = methods.find("sira" if k else "greedy")
            alphas = grid.alphas if k else (GREEDY.alpha,)
            cells = [lvlm.under(method, lvlm.preset.with_settings(k=k or None, alpha=alpha)) for alpha in alphas]
            items = []
            for name in questions.pictures:
                unit = CAPTION_UNIT.format(name, k)
                items.append(Item[list[str]](questions.picture(name), name, prompts.caption, unit))
            for event in run_missing(lvlm, CaptionsOfCells(cells), items, units, batch_size, len(cells)):
                if isinstance(event, FailedPicture):
                    raise PictureError(event.error)
                yield event
    units.complete()


def by_score(figures: Mapping[Cell, Figures]) -> Cell:
    """Return the setting with the highest mean score; on a tie the smaller K, then the smaller alpha."""
    return max(sorted(figures), key=lambda cell: round(figures[cell][MEAN].value, 9))  # the first on a tie


def by_captions(changes: Mapping[T, Figures]) -> tuple[T, bool]:
    """Return the setting of any method that CAPTIONS_RULE picks, and whether it fulfils the rule.

    Args:
        changes: figures of each setting minus greedy's, paired, in points. On a tie the first is picked.
    """
    fit = [setting for setting, change in changes.items() if fulfils(change)]
    if fit:
        return min(fit, key=lambda setting: changes[setting]["CHAIRi"].value), True
    return min(changes, key=lambda setting: missed_points(changes[setting])), False


def captions_fit(change: Figures) -> bool:
    """Return whether the captions of a setting fulfil CAPTIONS_RULE; its answers may not."""
    return change["coverage"].value >= -COVERAGE and change["CHAIRi"].value < 0


def fulfils(change: Figures) -> bool:
    """Return whether a setting fulfils CAPTIONS_RULE."""
    return captions_fit(change) and change[ACCURACY].high >= 0


def missed_points(change: Figures) -> float:
    """Return by how many points in all a setting misses the limits of CAPTIONS_RULE."""
    coverage = max(0.0, -COVERAGE - change["coverage"].value)
    hallucination = max(0.0, change["CHAIRi"].value)
    accuracy = max(0.0, -change[ACCURACY].high)
    return coverage + hallucination + accuracy


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
    """Return the best setting, and whether it fulfils the rule for captions or for answers; greedy's row is first."""
    if captions:
        return by_captions({row.cell: row.differences for row in rows[1:]})
    return by_score({row.cell: row.figures for row in rows[1:]}), True


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
        cls, lvlm: Lvlm, questions: QuestionSet, grid: Grid, units: Units[list[str]], captions: bool = False
    ) -> SweepReport:
        """Make the report from finished units; other questions are left out."""
        answered: list[tuple[Question, list[str]]] = []  # each question with its answers in the cells
        for number, question in enumerate(questions.questions):
            unit = ANSWER_UNIT.format(number)
            if unit in units:
                answered.append((question, units[unit]))
        if not answered:
            raise PictureError("no question could be answered")
        cells = grid.cells()
        pictures = {question.picture for question, _ in answered}
        described: dict[str, Tally] = {}
        if captions:
            assert questions.count_caption is not None  # as `sweep` has checked
            for cell in cells:
                number = grid.alphas.index(cell.alpha) if cell.k else 0
                counts = {}
                for picture in pictures:
                    caption = units[CAPTION_UNIT.format(picture, cell.k)][number]
                    counts[picture] = questions.count_caption(picture, caption)
                described[cell.name] = Tally(counts)
        splits = {split: {cell.name: Tally() for cell in cells} for split in questions.splits}
        for number, (question, texts) in enumerate(answered):
            for time, split in enumerate(question.splits):
                for tally, text in zip(splits[split].values(), texts, strict=True):
                    tally.add(question.picture, f"{number} {time}", *counted.count_answer(text, question.expected))
        groups = counted.compared(described, splits)
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
        captions = CAPTIONS if self.captions else ()
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
        panels = {SCORE: {split: f"{split} {SCORE}" for split in self.splits}}  # a figure per line's label
        if self.captions:
            panels |= {name: {name: name} for name in ("CHAIRi", "coverage")}
        plot = new_figure(1 + 3.2 * len(panels))
        grid = plot.subplots(len(panels), 2, sharey="row", squeeze=False)
        for axes_row, (title, lines) in zip(grid, panels.items(), strict=True):
            axes_row[0].set_ylabel(f"{title}, percent")
            for axes, figures in zip(axes_row, (over_k, over_alpha), strict=True):
                for n, (label, name) in enumerate(lines.items()):
                    values = [astuple(row[name]) for row in figures.values()]
                    colour = draw_line(axes, [*figures], values, label, n)
                    axes.axhline(self.rows[0].figures[name].value, color=colour, linestyle="--", linewidth=1)
                axes.grid(alpha=0.3)
            axes_row[0].xaxis.set_major_locator(MaxNLocator(integer=True))
        grid[0][0].set_title(f"(a) alpha = {best.alpha:g}")
        grid[0][1].set_title(f"(b) K = {best.k}")
        grid[-1][0].set_xlabel(f"layers after the fork, K (of L = {self.layers})")
        grid[-1][1].set_xlabel("contrast strength, alpha")
        handles, labels = grid[0][0].get_legend_handles_labels()
        plot.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4), frameon=False)
        measured = f"{self.questions:,} questions, {self.pictures:,} pictures"
        plot.suptitle(f"{self.preset or self.model}: {measured}, 95 % intervals; dashed: greedy")
        return plot
