"""Several texts about each picture: the method's own, and samples."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria

from sira_cli.methods.base import Ability
from sira_cli.models.model import LoadedModel
from sira_cli.models.preset import Generation
from sira_cli.models.progress import Start, Trail
from sira_cli.models.sampling import derived_seed, sampler
from sira_cli.models.schema import Schema


@dataclass(frozen=True)
class Several:
    """The texts about B pictures.

    Attributes:
        tokens: of each picture's texts, the first of which is the method's own; up to the end token, with it.
        trail: what the method computed for the first texts, which can go on from there.
    """

    tokens: list[list[list[int]]]
    trail: Trail


def several(
    lvlm: LoadedModel,
    inputs: Any,
    seeds: Sequence[int],
    *,
    count: int,
    heat: float,
    task: str,
    trail: Trail,
    with_first: bool = False,
    schema: Schema | None = None,
) -> Several:
    """Decode `count` texts about each of B pictures: under the settings in force, and samples.

    They are one batch that goes on from the prompts, or follow each other if a method's cache cannot be divided so.

    Args:
        lvlm: the model; one that cannot sample decodes the first text only.
        inputs: of the prompts, on the model's device.
        seeds: one per picture, of the first text; those of samples are derived from it.
        count: texts per picture, the first included.
        heat: temperature of the samples.
        task: `caption` or `ask`.
        trail: receives what the method computes for the prompts.
        with_first: whether samples end with the first text: longer ones seldom name more.
        schema: a schema that all texts follow.
    """
    if Ability.SAMPLING not in lvlm.decoder.abilities:
        count = 1
    drawn = [seeds_of(seed, count) for seed in seeds]
    of_samples: list[int] = []
    rows: list[int] = []  # of each text, that of its prompt
    for row, picture_seeds in enumerate(drawn):
        of_samples += picture_seeds[1:]
        rows += [row] * count
    back = None
    if lvlm.leaves_trail:  # the prompts, each with one token
        start = Start([[]] * len(seeds), new_tokens=1)
        trail.end(lvlm.generate(inputs, seeds=seeds, task=task, start=start, trail=trail).tolist())
        back = trail.back(inputs, rows, [[] for _ in rows])
    if back is None:
        return _one_by_one(lvlm, inputs, drawn, heat=heat, task=task, trail=trail, schema=schema)

    continued, start = back
    settings = lvlm.preset.generation
    first = sampler(seeds, settings) if settings.temperature > 0 else LogitsProcessorList()
    samples = sampler(of_samples, Generation(temperature=heat))
    stopping = (WithFirst(count, lvlm.ends.ids),) if with_first else ()
    start = replace(start, processors=(Mixed(count, first, samples),), stopping=stopping)
    decoded = Trail(rows)
    tokens = at_heat(lvlm, 0.0).generate(
        continued,
        seeds=list(chain.from_iterable(drawn)),
        task=task,
        start=start,
        trail=decoded,
        schemas=None if schema is None else [schema] * len(rows),
    )
    decoded.end(tokens.tolist())
    texts: list[list[list[int]]] = [[] for _ in drawn]
    for row, text in zip(rows, tokens.tolist(), strict=True):
        texts[row].append(lvlm.ends.until_end(text))
    return Several(texts, decoded)


def _one_by_one(
    lvlm: LoadedModel,
    inputs: Any,
    drawn: Sequence[Sequence[int]],
    *,
    heat: float,
    task: str,
    trail: Trail,
    schema: Schema | None,
) -> Several:
    """Decode the texts one after the other, by the seeds of each picture."""
    texts: list[list[list[int]]] = [[] for _ in drawn]
    for number, seeds in enumerate(zip(*drawn, strict=True)):
        model = at_heat(lvlm, heat) if number else lvlm
        schemas = None if schema is None else [schema] * len(seeds)
        tokens = model.generate(inputs, seeds=seeds, task=task, schemas=schemas).tolist()
        for row, text in enumerate(tokens):
            texts[row].append(lvlm.ends.until_end(text))
    return Several(texts, trail)


def seeds_of(seed: int, count: int) -> list[int]:
    """Return the seeds of a picture's texts: that of the settings in force first, then those of samples."""
    return [seed, *(derived_seed(seed, f"caption {number}") for number in range(1, count))]


class WithFirst(StoppingCriteria):
    """Ends the captions of a picture with its first one: longer ones seldom name more."""

    def __init__(self, count: int, ends: Sequence[int]) -> None:
        self._count = count
        self._ends = torch.tensor(sorted(ends))

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        """Return whether each text ends, `[B]`."""
        first = torch.isin(input_ids[:: self._count, -1], self._ends.to(input_ids.device))
        return first.repeat_interleave(self._count)


class Mixed(LogitsProcessor):
    """Processors for the first of every `count` rows of a batch, and others for the samples between them."""

    def __init__(self, count: int, first: LogitsProcessorList, others: LogitsProcessorList) -> None:
        self._count = count
        self._parts = ((True, first), (False, others))

    def __call__(self, input_ids: Any, scores: Any) -> Tensor:
        """Return the processed `scores [B, V]`."""
        number = torch.arange(len(scores), device=scores.device)
        mixed: Tensor = scores
        for is_first, processors in self._parts:
            rows = number[(number % self._count == 0) == is_first]
            if processors and len(rows):
                mixed = mixed.index_copy(0, rows, processors(input_ids[rows], mixed[rows]))
        return mixed


def at_heat(lvlm: LoadedModel, temperature: float) -> LoadedModel:
    """Return the same model with plain sampling at a temperature."""
    other = copy.copy(lvlm)
    other.preset = lvlm.preset.with_settings(temperature=temperature, top_p=1.0, top_k=0, min_p=0.0)
    return other
