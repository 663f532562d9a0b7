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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from typing_extensions import override

from sira_cli import methods
from sira_cli.analysis.experiment import Events, ModelReport, Units, draw_line, new_figure, run_missing
from sira_cli.analysis.questions import DECODED, QuestionSet
from sira_cli.core.families import find_backbone
from sira_cli.core.passes import next_token
from sira_cli.core.rules import contrast, plausible
from sira_cli.errors import PictureError, SettingsError, UnfinishedReasoningError
from sira_cli.eval import figures as counted
from sira_cli.eval.statistics import Figure, MethodFigures, Tally
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
        ks = spread(lvlm.layers, largest) if k is None else range(1, largest + 1) if k == "all" else parse_ks(k)
        return cls(tuple(ks), alphas)

    def cells(self) -> list[Cell]:
        """Return all settings, greedy first."""
        return [GREEDY, *(Cell(k, alpha) for k in self.ks for alpha in self.alphas)]


def spread(layers: int, largest: int) -> tuple[int, ...]:
    """Return VALUES values of K from early to late forks, L/2 among them."""
    return tuple(sorted({max(1, min(number * layers // VALUES, largest)) for number in range(1, VALUES + 1)}))


def parse_ks(text: str) -> tuple[int, ...]:
    """Read values of K: `1,2,4`, `1-7`, or both."""
    values: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= low <= high:
            raise SettingsError(f"`k=` {text!r}: expected all, or numbers and ranges such as 1,2,4 or 1-7")
        values |= set(range(low, high + 1))
    return tuple(sorted(values))


def parse_alphas(text: str) -> tuple[float, ...]:
    """Read values of alpha: `0.5,1`."""
    try:
        values = {float(part) for part in text.split(",")}
    except ValueError:
        values = set()
    if not values or not all(0 < value < math.inf for value in values):
        raise SettingsError(f"`alpha=` {text!r}: expected numbers above 0 such as 0.5,1; greedy is always measured")
    return tuple(sorted(values))


def decisive(preset: Preset, questions: QuestionSet, alphas: Sequence[float], captions: bool) -> dict[str, Any]:
    """Return the settings that decide a sweep's texts, besides K and the checkpoint's revision, as JSON holds them."""
    parts, prompts = preset.decisive(), {"caption": preset.prompts.caption} if captions else {}
    for swept in ("k", "k_fraction", "alpha"):
        del parts["sira"][swept]
    if not captions:
        del parts["generation"]  # the first token is always the likeliest
    rows = [
        {"picture": each.picture, "text": each.text, "there": each.expected, "splits": each.splits}
        for each in questions.questions
    ]
    return flat(parts | {"prompts": prompts | {"ask": preset.prompts.ask}}) | {
        "captions": captions,
        "alpha": list(alphas),
        "splits": list(questions.splits),
        "images": questions.folder,
        "questions": len(rows),
        "questions_sha256": hash_of(questions=rows),
    }


def first_tokens(lvlm: LoadedModel, grid: Grid, inputs: Any) -> torch.Tensor:
    """Return the first token that decoding picks in every cell, `[B, cells]`."""
    inputs = lvlm.to_device(inputs)
    z_full, z_cf = next_token(lvlm.model, lvlm.sira, inputs, grid.ks)  # [B, V], and [B, V] for each K
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
        return [[text(token) for token in row] for row in first_tokens(lvlm, self.grid, batch.inputs).tolist()]


@dataclass(frozen=True)
class CaptionsOfCells(Task[list[str]]):
    """A picture's captions in several cells with the same K."""

    lvlms: Sequence[Lvlm]  # the model in each cell

    def answers(self, lvlm: LoadedModel, batch: Batch[list[str]], on_text: Any = None) -> list[list[str]]:
        """Return the captions of the cells for each picture."""
        answers = [each.answer(batch.inputs) for each in self.lvlms]
        for answer in itertools.chain(*answers):
            if answer.error:
                raise UnfinishedReasoningError(f"a caption {answer.error}")
        return [[answer.text for answer in row] for row in zip(*answers, strict=True)]


def sweep(
    lvlm: Lvlm,
    questions: QuestionSet,
    grid: Grid,
    units: Units[list[str]],
    *,
    captions: bool = False,
    batch_size: BatchSize | None = None,
) -> Events:
    """Measure what is missing in `units`, and yield events. A picture that fails is an event once; the others go on.

    Args:
        lvlm: the loaded model, under SIRA.
        questions: labelled yes/no questions.
        grid: values of K and alpha.
        units: the answers so far, to which new ones are added.
        captions: also caption each picture under every setting.
        batch_size: as for `Runner`.

    Raises:
        PictureError: a picture cannot be captioned.
        SettingsError: `units` are of other questions or settings.
    """
    lvlm.check_prompts((each.text, each.picture) for each in questions.questions)
    own = {"k": list(grid.ks), "checkpoint": lvlm.revision, "dtype": str(lvlm.model.dtype)}
    settings = decisive(lvlm.preset, questions, grid.alphas, captions) | {"quantization": lvlm.quantization}
    units.begin(settings | own)
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
            presets = [lvlm.preset.with_settings(k=k or None, alpha=alpha) for alpha in (grid.alphas if k else [0.0])]
            cells = CaptionsOfCells([lvlm.under(method, preset) for preset in presets])
            items = (
                Item[list[str]](questions.picture(name), name, prompts.caption, CAPTION_UNIT.format(name, k))
                for name in questions.pictures
            )
            for event in run_missing(lvlm, cells, items, units, batch_size, len(presets)):
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


def best_setting(rows: Sequence[SettingRow], captions: bool) -> tuple[Cell, bool]:
    """Return the best setting, and whether it fulfils the rule for captions or for answers; greedy's row is first."""
    measured = {Cell(row.k, row.alpha): row for row in rows[1:]}
    if captions:
        return by_captions({cell: row.differences for cell, row in measured.items()})
    return by_score({cell: row.figures for cell, row in measured.items()}), True


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
        named = {ANSWER_UNIT.format(number): question for number, question in enumerate(questions.questions)}
        answered = [(question, units[unit]) for unit, question in named.items() if unit in units]
        if not answered:
            raise PictureError("no question could be answered")
        cells, pictures = grid.cells(), {question.picture for question, _ in answered}
        groups = dict[str, MethodFigures]()
        if captions and questions.count_caption is not None:
            tallies = {cell.name: Tally() for cell in cells}
            for cell, picture in itertools.product(cells, pictures):
                number = grid.alphas.index(cell.alpha) if cell.k else 0
                caption = units[CAPTION_UNIT.format(picture, cell.k)][number]
                tallies[cell.name].counts[picture] = questions.count_caption(picture, caption)
            groups[""] = counted.compare_captions(tallies)
        splits = dict[str, MethodFigures]()
        for split in questions.splits:
            tallies = {cell.name: Tally() for cell in cells}
            for number, (question, texts) in enumerate(answered):
                for time, (tally, text) in itertools.product(
                    range(question.splits.count(split)), zip(tallies.values(), texts, strict=True)
                ):
                    tally.add(question.picture, f"{number} {time}", *counted.count_answer(text, question.expected))
            splits[f"{split} "] = counted.compare_answers(tallies)
        groups |= {**splits, "mean ": MethodFigures.mean(list(splits.values()))}
        rows = tuple(
            SettingRow(
                cell.k,
                cell.alpha,
                sum(counted.strict(texts[number]) is None for _, texts in answered),
                counted.named_figures(groups, cell.name),
                counted.named_figures(groups, cell.name, GREEDY.name),
            )
            for number, cell in enumerate(cells)
        )
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
            rows=rows,
        )

    @property
    def figures(self) -> dict[Cell, dict[str, Figure]]:
        """The figures of every setting."""
        return {Cell(row.k, row.alpha): row.figures for row in self.rows}

    @property
    def by(self) -> str:
        """The figure that decides which setting is the best."""
        return "CHAIRi" if self.captions else MEAN

    def table(self) -> Iterator[Table | str]:
        """Yield the table, a row per setting, then what was measured, and the best setting."""
        captions = CAPTIONS * self.captions
        chosen, best = None, ""
        sections: dict[int, list[list[str]]] = {}
        for row in self.rows:
            cells = [
                *((str(row.k), f"{row.alpha:g}") if row.k else ("-", "greedy")),
                *(f"{row.figures[f'{split} {SCORE}']}" for split in self.splits),
                *(f"{row.figures[MEAN]}", f"{row.differences[MEAN]:+}" if row.k else ""),
                *(f"{row.figures['mean yes'].value:.1f}", str(row.neither)),
                *(f"{row.figures[name]}" for name in captions),
            ]
            sections.setdefault(row.k, []).append(cells)
            if self.best == Cell(row.k, row.alpha):
                chosen, apart = cells, row.differences[self.by]
                best = f"{self.best.name}: {self.by} {row.figures[self.by]}, {apart.value:+.1f} against greedy, "
                best += f"95 % interval {apart.low:+.1f} to {apart.high:+.1f}"
                if apart.low <= 0 <= apart.high:
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

        ks, alphas = sorted({row.k for row in self.rows[1:]}), sorted({row.alpha for row in self.rows[1:]})
        k, alpha, figures = self.best.k, self.best.alpha, self.figures
        over = [(ks, [Cell(value, alpha) for value in ks], f"(a) alpha = {alpha:g}")]
        over += [([0, *alphas], [GREEDY, *(Cell(k, value) for value in alphas)], f"(b) K = {k}")]  # type: ignore[list-item]
        panels = {SCORE: {split: f"{split} {SCORE}" for split in self.splits}}  # a figure per line's label
        if self.captions:
            panels |= {name: {name: name} for name in ("CHAIRi", "coverage")}
        plot = new_figure(1 + 3.2 * len(panels))
        grid = plot.subplots(len(panels), 2, sharey="row", squeeze=False)
        for axes_row, (title, lines) in zip(grid, panels.items(), strict=True):
            axes_row[0].set_ylabel(f"{title}, percent")
            for axes, (values, cells, _) in zip(axes_row, over, strict=True):
                for n, (label, name) in enumerate(lines.items()):
                    drawn = [figures[cell][name] for cell in cells]
                    colour = draw_line(axes, values, [(each.value, each.low, each.high) for each in drawn], label, n)
                    axes.axhline(figures[GREEDY][name].value, color=colour, linestyle="--", linewidth=1)
                axes.grid(alpha=0.3)
            axes_row[0].xaxis.set_major_locator(MaxNLocator(integer=True))
        for axes, (_, _, title) in zip(grid[0], over, strict=True):
            axes.set_title(title)
        grid[-1][0].set_xlabel(f"layers after the fork, K (of L = {self.layers})")
        grid[-1][1].set_xlabel("contrast strength, alpha")
        handles, labels = grid[0][0].get_legend_handles_labels()
        plot.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4), frameon=False)
        measured = f"{self.questions:,} questions, {self.pictures:,} pictures"
        plot.suptitle(f"{self.preset or self.model}: {measured}, 95 % intervals; dashed: greedy")
        return plot
