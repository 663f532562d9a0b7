"""Every answer of a grid: the first token of each, and captions of scenes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from sira_cli import methods
from sira_cli.analysis.sweep.benchmark import Asked, Benchmark
from sira_cli.analysis.sweep.cells import GREEDY, Cell, Grid
from sira_cli.analysis.sweep.units import Units
from sira_cli.core.many_k import next_token
from sira_cli.core.rules import contrast, plausible
from sira_cli.demo.evaluate import batches
from sira_cli.demo.scenes import Scene, render
from sira_cli.errors import PictureError, SiraError
from sira_cli.models.lvlm import Lvlm
from sira_cli.pictures.opening import one_line


class OnDone(Protocol):
    """Told how many more are done; not `worked`: in an earlier run."""

    def __call__(self, count: int, *, worked: bool) -> None:
        """Called after each batch."""


def answer_questions(
    lvlm: Lvlm,
    benchmark: Benchmark,
    grid: Grid,
    units: Units,
    batch_size: int,
    on_done: OnDone,
    on_failure: Callable[[str, str], None],
) -> None:
    """The first token of every answer, in every cell: one prefill a question.

    Args:
        lvlm: the model.
        batch_size: questions in a prefill.
        units: gets the texts of `answer_unit(n)`, one for each of `grid.cells()`; what is there is not done again.
        on_done: told about questions.
        on_failure: told a picture's name, and what is wrong with it or a question about it; the others go on.

    Raises:
        SiraError: about the model or the settings.
    """
    opened = functools.lru_cache(maxsize=1)(benchmark.open)  # questions about one picture are side by side
    todo = [number for number in range(len(benchmark.questions)) if answer_unit(number) not in units]
    on_done(len(benchmark.questions) - len(todo), worked=False)
    for numbers in batches(todo, batch_size):
        batch = []
        for number in numbers:
            asked = benchmark.questions[number]
            try:
                batch.append((number, asked, opened(asked.picture)))
            except PictureError as error:
                on_failure(asked.picture, str(error))
        texts = _first_words(lvlm, grid, batch, on_failure)
        if texts:
            units.add({answer_unit(number): row for number, row in texts.items()})
        on_done(len(numbers), worked=True)


def answer_unit(number: int) -> str:
    """The name of the unit of a question."""
    return f"question {number}"


def first_tokens(lvlm: Lvlm, grid: Grid, inputs: Any) -> torch.Tensor:
    """What decoding picks first in every cell, `[B, cells]`.

    Args:
        inputs: from `Lvlm.prepare`.
    """
    inputs = inputs.to(lvlm.model.device, dtype=lvlm.model.dtype)
    found = next_token(lvlm.model, lvlm.sira, inputs, grid.ks)
    picked = [found.full.argmax(dim=-1)]  # [B]
    for k, alpha in grid.cells()[1:]:
        z_cd = contrast(found.full, found.cf[k], alpha)  # [B, V]
        if lvlm.sira.beta is not None:
            z_cd = plausible(z_cd, found.full, lvlm.sira.beta)
        picked.append(z_cd.argmax(dim=-1))
    return torch.stack(picked, dim=1)


def _first_words(
    lvlm: Lvlm, grid: Grid, batch: list[tuple[int, Asked, Any]], on_failure: Callable[[str, str], None]
) -> dict[int, list[str]]:
    """By the question's number. What fails is tried again in halves, down to single questions."""
    if not batch:
        return {}
    prompts = [lvlm.preset.prompts.asking(asked.text) for _, asked, _ in batch]
    try:
        tokens = first_tokens(lvlm, grid, lvlm.prepare([image for _, _, image in batch], prompts)).tolist()
    except SiraError:
        raise
    except Exception as error:
        failure = error.with_traceback(None)  # which holds on to the memory of the failed try
    else:
        text = functools.cache(lambda token: lvlm.vocabulary.text([token]).strip())
        return {number: [text(token) for token in row] for (number, _, _), row in zip(batch, tokens, strict=True)}
    if len(batch) == 1:
        picture, reason = batch[0][1].picture, (str(failure).strip().splitlines() or [""])[0]
        on_failure(picture, f"{one_line(picture)}: {type(failure).__name__}: {reason}")
        return {}
    middle = len(batch) // 2
    halves = batch[:middle], batch[middle:]
    return {number: row for half in halves for number, row in _first_words(lvlm, grid, half, on_failure).items()}


def caption_scenes(
    lvlm: Lvlm, scenes: Sequence[Scene], grid: Grid, units: Units, batch_size: int, on_done: OnDone
) -> None:
    """A caption of every scene in every cell.

    Args:
        lvlm: the model.
        batch_size: scenes decoded together.
        units: gets the texts of `caption_unit(scene, k)`, one for each alpha; what is there is not done again.
        on_done: told about captions.
    """
    for k, alphas in ((GREEDY.k, (GREEDY.alpha,)), *((k, grid.alphas) for k in grid.ks)):
        deciders = [_with_cell(lvlm, Cell(k, alpha)) for alpha in alphas]
        todo = [of for of in scenes if caption_unit(of, k) not in units]
        on_done((len(scenes) - len(todo)) * len(alphas), worked=False)
        for batch in batches(todo, batch_size):
            inputs = lvlm.prepare([render(of)[0] for of in batch], [lvlm.preset.prompts.caption] * len(batch))
            texts = [[answer.text for answer in decider.answer(inputs)] for decider in deciders]
            units.add({caption_unit(of, k): row for of, row in zip(batch, zip(*texts, strict=True), strict=True)})
            on_done(len(batch) * len(alphas), worked=True)


def caption_unit(of: Scene, k: int) -> str:
    """The name of the unit of a scene's captions at one K."""
    return f"captions of scene {of.seed}, K = {k}"


def _with_cell(lvlm: Lvlm, cell: Cell) -> Lvlm:
    """The same model under another setting."""
    preset = lvlm.preset.with_settings(k=cell.k or None, alpha=cell.alpha)
    method = methods.find("sira" if cell.k else "greedy")
    return lvlm.under(method, preset)
