"""Every answer of a grid: the first token of each, and captions."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from sira_cli import methods
from sira_cli.analysis.sweep.cells import GREEDY, Cell, Grid
from sira_cli.analysis.sweep.questions import Question, QuestionSet
from sira_cli.analysis.sweep.units import Units
from sira_cli.core.many_k import next_token
from sira_cli.core.rules import contrast, plausible
from sira_cli.errors import PictureError, SiraError, UnfinishedReasoningError
from sira_cli.models.lvlm import Lvlm
from sira_cli.models.memory import PictureMemory
from sira_cli.models.peak import peak_memory
from sira_cli.models.placement import devices_of
from sira_cli.pictures.names import one_line
from sira_cli.runs.batch_size import FIRST, most_that_fit

T = TypeVar("T")


@dataclass(frozen=True)
class FailedPicture:
    """A picture with a question that could not be answered, and the reason."""

    picture: str
    error: str


@dataclass(frozen=True)
class Advanced:
    """So many questions or captions more are done; not `worked`: in an earlier run."""

    count: int
    worked: bool = True


GridEvent = Advanced | FailedPicture


def answer_questions(
    lvlm: Lvlm, questions: QuestionSet, grid: Grid, units: Units, batch_size: int
) -> Iterator[GridEvent]:
    """Find the first token of every answer in every cell, with one prefill per question, and yield events.

    Args:
        lvlm: the model.
        questions: to ask; a picture that fails is an event, and the others go on.
        grid: the settings.
        units: gets the texts of `answer_unit(n)`, one for each of `grid.cells()`; finished units are skipped.
        batch_size: questions in a prefill.

    Raises:
        SiraError: about the model or the settings.
    """
    opened = functools.lru_cache(maxsize=1)(questions.open)  # questions about one picture are side by side
    todo = [number for number in range(len(questions.questions)) if answer_unit(number) not in units]
    yield Advanced(len(questions.questions) - len(todo), worked=False)
    for numbers in batches(todo, batch_size):
        batch: list[tuple[int, Question, Any]] = []
        for number in numbers:
            question = questions.questions[number]
            try:
                batch.append((number, question, opened(question.picture)))
            except PictureError as error:
                yield FailedPicture(question.picture, str(error))
        texts, failures = _first_words(lvlm, grid, batch)
        yield from failures
        if texts:
            units.add({answer_unit(number): row for number, row in texts.items()})
        yield Advanced(len(numbers))


def largest_question_batch(lvlm: Lvlm, questions: QuestionSet, grid: Grid) -> int:
    """Run the prompt of one question, about the largest of the first few pictures; return the number that fits.

    Args:
        lvlm, questions, grid: as for `answer_questions`.
    """
    opened = []
    for picture in questions.pictures[:FIRST]:
        with suppress(PictureError):
            opened.append(questions.open(picture))
    if not opened:
        return 1
    largest = max(opened, key=lambda image: image.width * image.height)
    inputs = lvlm.prepare([largest], [lvlm.preset.prompts.asking(questions.questions[0].text)], at_once=True)

    def measure() -> PictureMemory:
        with peak_memory(*devices_of(lvlm.model)) as peak:
            first_tokens(lvlm, grid, inputs)
        return PictureMemory(peak.bytes, 0)  # no text follows the first token

    return most_that_fit(lvlm.model, measure, "a question takes {prompt:.3f} GB")


def answer_unit(number: int) -> str:
    """Return the name of a question's unit."""
    return f"question {number}"


def first_tokens(lvlm: Lvlm, grid: Grid, inputs: Any) -> torch.Tensor:
    """Return the first token that decoding picks in every cell, `[B, cells]`.

    Args:
        lvlm, grid: as for `answer_questions`.
        inputs: from `Lvlm.prepare`.
    """
    inputs = lvlm.to_device(inputs)
    found = next_token(lvlm.model, lvlm.sira, inputs, grid.ks)
    picked = [found.full.argmax(dim=-1)]  # [B]
    for k, alpha in grid.cells()[1:]:
        z_cd = contrast(found.full, found.cf[k], alpha)  # [B, V]
        if lvlm.sira.beta is not None:
            z_cd = plausible(z_cd, found.full, lvlm.sira.beta)
        picked.append(z_cd.argmax(dim=-1))
    return torch.stack(picked, dim=1)


def _first_words(
    lvlm: Lvlm, grid: Grid, batch: list[tuple[int, Question, Any]]
) -> tuple[dict[int, list[str]], list[FailedPicture]]:
    """Answer a batch, by the questions' numbers. A failed batch is tried again in halves, down to single questions."""
    if not batch:
        return {}, []
    prompts = [lvlm.preset.prompts.asking(question.text) for _, question, _ in batch]
    try:
        inputs = lvlm.prepare([image for _, _, image in batch], prompts, at_once=True)
        tokens = first_tokens(lvlm, grid, inputs).tolist()
    except SiraError:
        raise
    except Exception as error:
        failure = error.with_traceback(None)  # the traceback holds on to the memory of the failed try
    else:
        text = functools.cache(lambda token: lvlm.vocabulary.text([token]).strip())
        return {number: [text(token) for token in row] for (number, _, _), row in zip(batch, tokens, strict=True)}, []
    if len(batch) == 1:
        picture, reason = batch[0][1].picture, (str(failure).strip().splitlines() or [""])[0]
        return {}, [FailedPicture(picture, f"{one_line(picture)}: {type(failure).__name__}: {reason}")]
    middle = len(batch) // 2
    first, second = (_first_words(lvlm, grid, half) for half in (batch[:middle], batch[middle:]))
    return first[0] | second[0], first[1] + second[1]


def write_captions(lvlm: Lvlm, questions: QuestionSet, grid: Grid, units: Units, batch_size: int) -> Iterator[Advanced]:
    """Caption every picture in every cell, and yield events.

    Args:
        lvlm: the model.
        questions: whose pictures are captioned.
        grid: the settings.
        units: gets the texts of `caption_unit(picture, k)`, one per alpha; finished units are skipped.
        batch_size: pictures decoded together.
    """
    pictures = questions.pictures
    for k, alphas in ((GREEDY.k, (GREEDY.alpha,)), *((k, grid.alphas) for k in grid.ks)):
        deciders = [_with_cell(lvlm, Cell(k, alpha)) for alpha in alphas]
        todo = [picture for picture in pictures if caption_unit(picture, k) not in units]
        yield Advanced((len(pictures) - len(todo)) * len(alphas), worked=False)
        for batch in batches(todo, batch_size):
            images = [questions.open(picture) for picture in batch]
            inputs = lvlm.prepare(images, [lvlm.preset.prompts.caption] * len(batch))
            answers = [decider.answer(inputs) for decider in deciders]
            for answer in itertools.chain(*answers):
                if answer.error:
                    raise UnfinishedReasoningError(f"a caption {answer.error}")
            texts = [[answer.text for answer in each] for each in answers]
            rows = zip(batch, zip(*texts, strict=True), strict=True)
            units.add({caption_unit(picture, k): row for picture, row in rows})
            yield Advanced(len(batch) * len(alphas))


def caption_unit(picture: str, k: int) -> str:
    """Return the name of the unit of a picture's captions at one K."""
    return f"captions of scene {picture}, K = {k}"


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield neighbours, `size` of them at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _with_cell(lvlm: Lvlm, cell: Cell) -> Lvlm:
    """Return the same model under another setting."""
    preset = lvlm.preset.with_settings(k=cell.k or None, alpha=cell.alpha)
    method = methods.find("sira" if cell.k else "greedy")
    return lvlm.under(method, preset)
