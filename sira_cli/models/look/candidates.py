"""Several captions of each picture, in which the objects that it may show are looked for.

    the picture and the prompt   computed once, also for the questions and the final text
    the method's own caption     one batch: each is a row that goes on from there
    samples of the method

A method whose cache cannot be divided so captions the pictures again for each sample.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria

from sira_cli.methods.base import Ability
from sira_cli.models.answering.answers import AnsweringModel
from sira_cli.models.answering.sampling import derived_seed, sampler
from sira_cli.models.answering.starts import Start, Trail


@dataclass(frozen=True)
class Captions:
    """Several captions of each of B pictures: the one under the settings in force, then samples.

    Attributes:
        texts: by picture.
        tokens: of the first of each picture.
        trail: of decoding the first ones; None: nothing can go on from there.
    """

    texts: list[list[str]]
    tokens: list[list[int]]
    trail: Trail | None = None


def captions(lvlm: AnsweringModel, inputs: Any, seeds: Sequence[int], *, task: str, trail: Trail) -> Captions:
    """Caption each of B pictures several times."""
    count = _count(lvlm)
    if not lvlm.leaves_trail or not _runs_prompts(lvlm, inputs, seeds, task, trail):
        each = [model.generate(inputs, seeds=own, task=task) for model, own in several(lvlm, seeds)]
        texts = [[lvlm.ended(tokens[row].tolist()).text for tokens in each] for row in range(len(seeds))]
        return Captions(texts, [lvlm.ends.until_end(row) for row in each[0].tolist()])
    rows = [row for row in range(len(seeds)) for _ in range(count)]
    back = trail.back(inputs, rows, [[] for _ in rows])
    assert back is not None  # the prompts are there
    repeated, start = back
    drawn = [_seed(seed, number) for seed in seeds for number in range(count)]
    settings = lvlm.preset.generation
    own = LogitsProcessorList()
    if settings.temperature > 0:
        cut_offs: Any = {"top_k": settings.top_k, "min_p": settings.min_p}
        own = sampler(seeds, settings.temperature, settings.top_p, **cut_offs)
    samples = [number for number in range(len(rows)) if number % count]
    mixed = Mixed(
        ([number for number in range(len(rows)) if number % count == 0], own),
        (samples, sampler([drawn[number] for number in samples], lvlm.preset.guide.heat, 1.0)),
    )
    start = Start(start.tokens, start.in_inputs, start.cache, (mixed,), (WithFirst(lvlm.ends.ids, count),))
    decoded = Trail(rows)
    tokens = _under(lvlm, 0.0).generate(repeated, seeds=drawn, task=task, start=start, trail=decoded).tolist()
    decoded.end(tokens)
    ended = [lvlm.ended(row).text for row in tokens]
    texts = [ended[first : first + count] for first in range(0, len(ended), count)]
    return Captions(texts, [lvlm.ends.until_end(row) for row in tokens[::count]], decoded)


class WithFirst(StoppingCriteria):
    """Ends the captions of a picture with its first one: longer ones seldom name more."""

    def __init__(self, ends: Sequence[int], count: int) -> None:
        """Take the tokens that end a text, and the number of captions of each picture."""
        self._ends, self._count = torch.tensor(sorted(ends)), count

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        """Return whether each text ends, `[B]`; `input_ids [B, S]` are all tokens so far."""
        first = torch.isin(input_ids[:: self._count, -1], self._ends.to(input_ids.device))
        return first.repeat_interleave(self._count)


class Mixed(LogitsProcessor):
    """Processors for some rows of a batch, and others for other rows."""

    def __init__(self, *parts: tuple[Sequence[int], LogitsProcessorList]) -> None:
        """Take numbers of rows and their processors; a part may have neither."""
        self._parts = [(torch.tensor(rows), processors) for rows, processors in parts if rows and processors]

    def __call__(self, input_ids: Any, scores: Any) -> Tensor:
        """Return the processed `scores [B, V]`; `input_ids [B, S]` are all tokens so far."""
        for rows, processors in self._parts:
            rows = rows.to(scores.device)
            scores = scores.index_copy(0, rows, processors(input_ids[rows], scores[rows]))
        found: Tensor = scores
        return found


def several(lvlm: AnsweringModel, seeds: Sequence[int]) -> list[tuple[AnsweringModel, list[int]]]:
    """Return the model of each caption of a picture with the seeds of B pictures: the model itself, then samplers."""
    return [
        (_under(lvlm, lvlm.preset.guide.heat if number else None), [_seed(seed, number) for seed in seeds])
        for number in range(_count(lvlm))
    ]


def _count(lvlm: AnsweringModel) -> int:
    """Return the number of captions of each picture."""
    return lvlm.preset.guide.captions if Ability.SAMPLING in lvlm.decoder.abilities else 1


def _seed(seed: int, number: int) -> int:
    """Return the seed of a picture's caption of this number; the first is that of the settings in force."""
    return derived_seed(seed, f"caption {number}") if number else seed


def _under(lvlm: AnsweringModel, temperature: float | None) -> AnsweringModel:
    """Return the same model at another temperature; None: that of the settings in force."""
    if temperature is None:
        return lvlm
    other = copy.copy(lvlm)
    other.preset = lvlm.preset.with_settings(temperature=temperature, top_p=1.0, top_k=0, min_p=0.0)
    return other


def _runs_prompts(lvlm: AnsweringModel, inputs: Any, seeds: Sequence[int], task: str, trail: Trail) -> bool:
    """Run the prompts, each with one token, and return whether texts can go on from there."""
    start = Start([[]] * len(seeds), new_tokens=1)
    trail.end(lvlm.generate(inputs, seeds=seeds, task=task, start=start, trail=trail).tolist())
    return trail.back(inputs, trail.rows[:1], [[]]) is not None
