"""Answers and captions under many values of K and alpha, for the paper's Figure 3 (`sweep_report.py`).

An answer is read from its first token, so one prefill gives the answers of a question in every cell: z_full does not
depend on K, and z_cf not on alpha (`core.passes`).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from typing_extensions import override

from sira_cli.analysis.experiment import Events, Units, run_stage
from sira_cli.analysis.questions import DECODED, QuestionSet
from sira_cli.core.families import find_backbone
from sira_cli.core.passes import next_token
from sira_cli.core.rules import contrast, plausible
from sira_cli.errors import SettingsError, UnfinishedReasoningError
from sira_cli.models.model import LoadedModel
from sira_cli.models.preset import Preset
from sira_cli.run.events import StageStarted
from sira_cli.run.items import Batch, Task
from sira_cli.run.lvlm import Lvlm
from sira_cli.run.records import flat, hash_of
from sira_cli.run.runner import BatchSize

DEFAULT_K_COUNT = 6  # number of values of K at most, unless they are given
# Names of units, each with the texts of several settings; the second one's values are a picture's name and K.
ANSWER_UNIT = "question {}"
CAPTION_UNIT = "captions of scene {}, K = {}"


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
        cells = [GREEDY]
        for k in self.ks:
            for alpha in self.alphas:
                cells.append(Cell(k, alpha))
        return cells


def spread(layers: int, largest: int) -> tuple[int, ...]:
    """Return up to DEFAULT_K_COUNT values of K, at most `largest`, in ascending order, L/2 among them."""
    evenly = [number * layers // DEFAULT_K_COUNT for number in range(1, DEFAULT_K_COUNT + 1)]
    return tuple(sorted({max(1, min(k, largest)) for k in evenly}))


def parse_ks(text: str) -> tuple[int, ...]:
    """Read values of K: `1,2,4`, `1-7`, or both; up to 9999, more layers than a model has."""
    values: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,4})\s*(?:-\s*(\d{1,4})\s*)?", part)
        numbers = range(int(match[1]), int(match[2] or match[1]) + 1) if match else ()
        if not numbers or 0 in numbers:
            raise SettingsError(f"`k=` {text!r}: expected all, or numbers and ranges such as 1,2,4 or 1-7, up to 9999")
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
    """Return the settings that decide a sweep's texts, as JSON holds them.

    K, the checkpoint's revision, `quantization` and `dtype` are not among them: `sweep` adds these.
    """
    parts = preset.decisive()
    for swept in ("k", "k_fraction", "alpha"):
        del parts["sira"][swept]
    prompts = {}
    if captions:
        prompts["caption"] = preset.prompts.caption
    else:
        del parts["generation"]  # none of it counts: an answer is the likeliest first token, after an empty thought
    parts["prompts"] = prompts | {"ask": preset.prompts.ask}
    rows = []
    for question in questions.questions:
        row = {
            "picture": question.picture,
            "text": question.text,
            "there": question.expected,
            "splits": question.splits,
        }
        rows.append(row)
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
    _, *forked = grid.cells()  # greedy is first
    for cell in forked:
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

        @functools.cache  # most cells and questions have one of a few tokens
        def text(token: int) -> str:
            return lvlm.vocabulary.text([token]).strip()

        rows = first_tokens(lvlm, self.grid, batch.inputs).tolist()
        return [list(map(text, tokens)) for tokens in rows]


@dataclass(frozen=True)
class CaptionsOfCells(Task[list[str]]):
    """A picture's captions in several cells with the same K."""

    lvlms: Sequence[Lvlm]  # the model in each cell

    def answers(self, lvlm: LoadedModel, batch: Batch[list[str]], on_text: Any = None) -> list[list[str]]:
        """Return the captions of the cells for each picture."""
        seeds = batch.seeds(lvlm)
        captions = []
        for lvlm_of_cell in self.lvlms:
            answers = lvlm_of_cell.answer(batch.inputs, seeds=seeds)
            for answer in answers:
                if answer.error:
                    raise UnfinishedReasoningError(f"a caption {answer.error}")
            captions.append([answer.text for answer in answers])
        return list(map(list, zip(*captions, strict=True)))  # from a list per cell to a list per picture


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

    A picture that fails in the questions is an event for each of them, and once in `units.failures`; the others go on.
    One without an answer has no captions.

    Args:
        lvlm: the loaded model, under SIRA.
        questions: labelled yes/no questions.
        grid: values of K and alpha.
        units: the answers so far, to which new ones are added.
        captions: also caption each picture with an answer under every setting.
        batch_size: as for `Runner`.

    Raises:
        PictureError: a picture with an answer cannot be captioned.
        SettingsError: `units` are of other questions or settings, or captions could not be counted.
    """
    if captions and questions.count_caption is None:
        raise SettingsError("`captions=` is for pictures whose objects are known: leave it out")
    lvlm.check_prompts((question.text, question.picture) for question in questions.questions)
    settings = {
        **decisive(lvlm.preset, questions, grid.alphas, captions),
        "quantization": lvlm.quantization,
        "k": list(grid.ks),
        "checkpoint": lvlm.revision,
        "dtype": str(lvlm.model.dtype),
    }
    units.begin(settings)
    prompts = lvlm.preset.prompts
    names: dict[str, str] = {}  # of pictures, by unit
    asked = []
    for number, question in enumerate(questions.questions):
        unit = ANSWER_UNIT.format(number)
        names[unit] = question.picture
        picture = questions.picture_of(question.picture)
        asked.append(picture.known(prompt=prompts.asking(question.text), id=unit))
    yield StageStarted("questions", len(asked))
    task = FirstTokens(grid)
    yield from run_stage(lvlm, task, asked, units, batch_size, name=lambda picture: names[picture.id])
    if captions:
        answered = dict.fromkeys(name for unit, name in names.items() if unit in units)
        ks = (GREEDY.k, *grid.ks)
        yield StageStarted("pictures at each K", len(answered) * len(ks))
        for k in ks:
            pictures = []
            for name in answered:
                unit = CAPTION_UNIT.format(name, k)
                pictures.append(questions.picture_of(name).known(prompt=prompts.caption, id=unit))
            task_at_k = CaptionsOfCells(_lvlms_at(lvlm, grid, k))
            yield from run_stage(lvlm, task_at_k, pictures, units, batch_size, all_needed=True)
    units.complete()


def _lvlms_at(lvlm: Lvlm, grid: Grid, k: int) -> list[Lvlm]:
    """Return a loaded model under the setting of each cell of a grid that has this K."""
    if k == GREEDY.k:
        return [lvlm.under("greedy", lvlm.preset.with_settings(alpha=GREEDY.alpha))]
    lvlms = []
    for alpha in grid.alphas:
        lvlms.append(lvlm.under("sira", lvlm.preset.with_settings(k=k, alpha=alpha)))
    return lvlms
