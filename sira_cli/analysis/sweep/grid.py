"""Every answer of a grid: the first token of each, and captions."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import Any, TypeVar

import torch

from sira_cli import methods
from sira_cli.analysis.sweep.cells import GREEDY, Cell, Grid
from sira_cli.analysis.sweep.questions import QuestionSet
from sira_cli.analysis.sweep.units import Units
from sira_cli.core.many_k import next_token
from sira_cli.core.rules import contrast, plausible
from sira_cli.errors import PictureError, UnfinishedReasoningError
from sira_cli.models.loading.memory import PictureMemory
from sira_cli.models.loading.peak import peak_memory
from sira_cli.models.loading.placement import devices_of
from sira_cli.pictures.cache import Cache
from sira_cli.run.batch import Batch, BatchSize, Item, most_that_fit
from sira_cli.run.events import Advanced, FailedPicture, Halved
from sira_cli.run.lvlm import Lvlm
from sira_cli.run.runner import Runner
from sira_cli.run.task import Task

MOST_CAPTIONS = 32  # at once, where memory decides
DECODED = 2  # pictures whose bytes and samples wait for the next question about them

T = TypeVar("T")


GridEvent = Advanced | FailedPicture | Halved


class FirstTokens(Task[list[str], list[str]]):
    """The first token of the answer to each question, in every cell of a grid: one prefill for all cells."""

    at_once = True

    def __init__(self, lvlm: Lvlm, grid: Grid) -> None:
        super().__init__(lvlm, decoded=DECODED)
        self._grid = grid

    def answers(self, batch: Batch[list[str]], on_text: Any = None) -> list[list[str]]:
        """Return the texts of `grid.cells()` for each question."""
        text = functools.cache(lambda token: self.lvlm.vocabulary.text([token]).strip())
        return [[text(token) for token in row] for row in first_tokens(self.lvlm, self._grid, batch.inputs).tolist()]

    def largest_batch(self, inputs: Any) -> int:
        """Run the prompt of one question, and return the number of questions that fit."""

        def measure() -> PictureMemory:
            with peak_memory(*devices_of(self.lvlm.model)) as peak:
                first_tokens(self.lvlm, self._grid, inputs)
            return PictureMemory(peak.bytes, 0)  # no text follows the first token

        return most_that_fit(self.lvlm.model, measure, "a question takes {prompt:.3f} GB")


def answer_questions(
    lvlm: Lvlm, questions: QuestionSet, units: Units, runner: Runner[list[str]]
) -> Generator[GridEvent, None, None]:
    """Find the first token of every answer in every cell, with one prefill per question, and yield events."""
    asked, reads = questions.questions, Cache[bytes](DECODED)  # questions about one picture follow each other
    todo = [number for number in range(len(asked)) if answer_unit(number) not in units]
    yield Advanced(len(asked) - len(todo), worked=False)

    def item(number: int) -> Item[list[str]]:
        question = asked[number]
        picture, prompt = questions.picture(question.picture), lvlm.preset.prompts.asking(question.text)
        asking = picture.asking(prompt, answer_unit(number), reads)
        return Item(asking, question.picture, prompt, asking.id)

    with closing(runner.run(map(item, todo))) as items:
        for each in items:
            if isinstance(each, Halved):
                yield each
                continue
            if each.result is None:
                yield FailedPicture(each.name, each.error)
            else:
                units.add({each.id: each.result})
            yield Advanced(1)


def answer_unit(number: int) -> str:
    """Return the name of a question's unit."""
    return f"question {number}"


def first_tokens(lvlm: Lvlm, grid: Grid, inputs: Any) -> torch.Tensor:
    """Return the first token that decoding picks in every cell, `[B, cells]`."""
    inputs = lvlm.to_device(inputs)
    found = next_token(lvlm.model, lvlm.sira, inputs, grid.ks)
    picked = [found.full.argmax(dim=-1)]  # [B]
    for k, alpha in grid.cells()[1:]:
        z_cd = contrast(found.full, found.cf[k], alpha)  # [B, V]
        if lvlm.sira.beta is not None:
            z_cd = plausible(z_cd, found.full, lvlm.sira.beta)
        picked.append(z_cd.argmax(dim=-1))
    return torch.stack(picked, dim=1)


class CaptionsOfCells(Task[list[str], list[str]]):
    """A picture's captions in several cells with the same K."""

    def __init__(self, lvlm: Lvlm, cells: Sequence[Cell]) -> None:
        super().__init__(lvlm)
        self._lvlms = [_with_cell(lvlm, cell) for cell in cells]

    def largest_batch(self, inputs: Any) -> int:
        """Return the number of pictures that fit into memory, at most `MOST_CAPTIONS`."""
        return min(super().largest_batch(inputs), MOST_CAPTIONS)

    def answers(self, batch: Batch[list[str]], on_text: Any = None) -> list[list[str]]:
        """Return the captions of the cells for each picture."""
        answers = [lvlm.answer(batch.inputs) for lvlm in self._lvlms]
        for answer in itertools.chain(*answers):
            if answer.error:
                raise UnfinishedReasoningError(f"a caption {answer.error}")
        return [[answer.text for answer in row] for row in zip(*answers, strict=True)]


def write_captions(
    lvlm: Lvlm, questions: QuestionSet, grid: Grid, units: Units, batch_size: BatchSize | None
) -> Generator[GridEvent, None, None]:
    """Caption every picture in every cell, and yield events."""
    pictures, prompt = questions.pictures, lvlm.preset.prompts.caption
    for k, alphas in ((GREEDY.k, (GREEDY.alpha,)), *((k, grid.alphas) for k in grid.ks)):
        todo = [picture for picture in pictures if caption_unit(picture, k) not in units]
        yield Advanced((len(pictures) - len(todo)) * len(alphas), worked=False)
        task = CaptionsOfCells(lvlm, [Cell(k, alpha) for alpha in alphas])
        every: Iterator[Item[list[str]]] = (Item(questions.picture(name), name, prompt) for name in todo)
        with closing(Runner(task, batch_size).run(every)) as items:
            for each in items:
                if isinstance(each, Halved):
                    yield each
                    continue
                if each.result is None:
                    raise PictureError(each.error)
                units.add({caption_unit(each.name, k): each.result})
                yield Advanced(len(alphas))


def caption_unit(picture: str, k: int) -> str:
    """Return the name of the unit of a picture's captions at one K."""
    return f"captions of scene {picture}, K = {k}"


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield the items in batches of `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _with_cell(lvlm: Lvlm, cell: Cell) -> Lvlm:
    """Return the same model under another setting."""
    preset = lvlm.preset.with_settings(k=cell.k or None, alpha=cell.alpha)
    method = methods.find("sira" if cell.k else "greedy")
    return lvlm.under(method, preset)
