"""A sweep: SIRA over K and alpha on yes/no questions.

units = Units(Path("sweep.jsonl"))
sweep = Sweep(from_files(["coco_pope_random.json"], "val2014/"), load("llava-1.5-7b"), units)
for event in sweep.events():
    print(event)
print(sweep.report().best)

An answer is read from its first token, so one prefill gives the answers of a question in every cell: z_full does not
depend on K, and z_cf not on alpha (`core.passes`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from sira_cli import methods
from sira_cli.analysis.experiment import Units, run_missing
from sira_cli.analysis.sweep.questions import (
    ALPHAS,
    GREEDY,
    Cell,
    Grid,
    QuestionSet,
    answer_unit,
    caption_unit,
    decisive,
    spread,
)
from sira_cli.analysis.sweep.report import SweepReport
from sira_cli.core.families import find_backbone
from sira_cli.core.passes import next_token
from sira_cli.core.rules import contrast, plausible
from sira_cli.errors import PictureError, UnfinishedReasoningError
from sira_cli.models.memory import PictureMemory, peak_memory
from sira_cli.models.model import LoadedModel
from sira_cli.models.placement import devices_of
from sira_cli.pictures.cache import Cache
from sira_cli.run.batch import Batch, BatchSize, Item, check_batch_size, most_that_fit
from sira_cli.run.events import Advanced, FailedPicture, Halved, StageStarted
from sira_cli.run.lvlm import Lvlm
from sira_cli.run.task import Task

MOST_CAPTIONS = 32  # at once, where memory decides
DECODED = 2  # pictures whose bytes and samples wait for the next question about them


def first_tokens(lvlm: LoadedModel, grid: Grid, inputs: Any) -> torch.Tensor:
    """Return the first token that decoding picks in every cell, `[B, cells]`."""
    inputs = lvlm.to_device(inputs)
    z = next_token(lvlm.model, lvlm.sira, inputs, grid.ks)
    picked = [z.full.argmax(dim=-1)]  # [B]
    for cell in grid.cells()[1:]:
        z_cd = contrast(z.full, z.cf[cell.k], cell.alpha)  # [B, V], (1 + alpha) z_full - alpha z_cf
        if lvlm.sira.beta is not None:
            z_cd = plausible(z_cd, z.full, lvlm.sira.beta)
        picked.append(z_cd.argmax(dim=-1))
    return torch.stack(picked, dim=1)


@dataclass(frozen=True)
class FirstTokens(Task[list[str]]):
    """The first token of the answer to each question, in every cell of a grid: one prefill for all cells."""

    grid: Grid

    at_once = True
    opened = DECODED

    def answers(self, lvlm: LoadedModel, batch: Batch[list[str]], on_text: Any = None) -> list[list[str]]:
        """Return the texts of `grid.cells()` for each question."""
        text = functools.cache(lambda token: lvlm.vocabulary.text([token]).strip())
        return [[text(token) for token in row] for row in first_tokens(lvlm, self.grid, batch.inputs).tolist()]

    def largest_batch(self, lvlm: LoadedModel, inputs: Any) -> int:
        """Run the prompt of one question, and return the number of questions that fit."""

        def measure() -> PictureMemory:
            with peak_memory(*devices_of(lvlm.model)) as peak:
                first_tokens(lvlm, self.grid, inputs)
            return PictureMemory(peak.bytes, 0)  # no text follows the first token

        return most_that_fit(lvlm.model, measure, "a question takes {prompt:.3f} GB")


@dataclass(frozen=True)
class CaptionsOfCells(Task[list[str]]):
    """A picture's captions in several cells with the same K."""

    lvlms: Sequence[Lvlm]  # the model in each cell

    def largest_batch(self, lvlm: LoadedModel, inputs: Any) -> int:
        """Return the number of pictures that fit into memory, at most `MOST_CAPTIONS`."""
        return min(super().largest_batch(lvlm, inputs), MOST_CAPTIONS)

    def answers(self, lvlm: LoadedModel, batch: Batch[list[str]], on_text: Any = None) -> list[list[str]]:
        """Return the captions of the cells for each picture."""
        answers = [each.answer(batch.inputs) for each in self.lvlms]
        for answer in itertools.chain(*answers):
            if answer.error:
                raise UnfinishedReasoningError(f"a caption {answer.error}")
        return [[answer.text for answer in row] for row in zip(*answers, strict=True)]


def in_cell(lvlm: Lvlm, cell: Cell) -> Lvlm:
    """Return the same model under another setting."""
    method = methods.find("sira" if cell.k else "greedy")
    return lvlm.under(method, lvlm.preset.with_settings(k=cell.k or None, alpha=cell.alpha))


class Sweep:
    """K and alpha over some questions.

    Attributes:
        grid: the settings that are measured.
    """

    def __init__(
        self,
        questions: QuestionSet,
        lvlm: Lvlm,
        units: Units[list[str]] | None = None,
        *,
        ks: Sequence[int] | Literal["all"] | None = None,
        alphas: Sequence[float] = ALPHAS,
        captions: bool = False,
        batch_size: BatchSize | None = None,
    ) -> None:
        """Prepare a sweep; its finished units are kept in `units`."""
        check_batch_size(batch_size)
        largest = lvlm.layers - find_backbone(lvlm.model).first_boundary
        ks = spread(lvlm.layers, largest) if ks is None else range(1, largest + 1) if ks == "all" else ks
        self.grid = Grid(tuple(ks), tuple(alphas))
        lvlm.check_prompts((each.text, each.picture) for each in questions.questions)
        self._questions, self._lvlm, self._captions, self._batch_size = questions, lvlm, captions, batch_size
        self._units = Units[list[str]]() if units is None else units

    def events(self) -> Generator[StageStarted | Advanced | FailedPicture | Halved, None, None]:
        """Measure what is missing, and yield events. A picture that fails is an event once; the others go on."""
        lvlm, questions, units, grid = self._lvlm, self._questions, self._units, self.grid
        settings = decisive(lvlm.preset, questions, grid.alphas, self._captions)
        settings |= {"quantization": lvlm.quantization, "k": list(grid.ks)}
        units.begin(settings | {"checkpoint": lvlm.revision, "dtype": str(lvlm.model.dtype)})
        yield StageStarted("questions", len(questions.questions))
        yield from run_missing(lvlm, FirstTokens(grid), self._items(), units, self._batch_size)
        if self._captions:
            yield from self._caption()
        units.complete()

    def _items(self) -> Generator[Item[list[str]], None, None]:
        reads = Cache[bytes](DECODED)  # questions about one picture follow each other
        for number, question in enumerate(self._questions.questions):
            prompt = self._lvlm.preset.prompts.asking(question.text)
            asking = self._questions.picture(question.picture).asking(prompt, answer_unit(number), reads)
            yield Item(asking, question.picture, prompt, asking.id)

    def _caption(self) -> Generator[StageStarted | Advanced | Halved, None, None]:
        """Caption every picture in every cell."""
        lvlm, pictures = self._lvlm, self._questions.pictures
        yield StageStarted("captions", len(pictures) * len(self.grid.cells()))
        for k, alphas in ((GREEDY.k, (GREEDY.alpha,)), *((k, self.grid.alphas) for k in self.grid.ks)):
            items = (
                Item[list[str]](self._questions.picture(name), name, lvlm.preset.prompts.caption, caption_unit(name, k))
                for name in pictures
            )
            task = CaptionsOfCells([in_cell(lvlm, Cell(k, alpha)) for alpha in alphas])
            for event in run_missing(lvlm, task, items, self._units, self._batch_size, len(alphas)):
                if isinstance(event, FailedPicture):
                    raise PictureError(event.error)
                yield event

    def report(self) -> SweepReport | None:
        """Return the figures and the best setting; None if nothing was answered."""
        if not len(self._units):
            return None
        return SweepReport.of(self._lvlm, self._questions, self.grid, self._units, self._captions)
