"""Weights of support without questions: a logistic regression on captions with labels.

Least, over weights w and a bias b, with x the six numbers of each thing, standardised, and y = 1 where it is there:

    sum of log(1 + exp(-(2 y - 1)(w . x + b)))  +  RIDGE / 2 * |w|^2
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from sira_cli._version import __version__
from sira_cli.analysis.calibration.batches import each_picture
from sira_cli.analysis.calibration.captions import hash_of_pictures, prepared
from sira_cli.analysis.calibration.support import FALSE_ALARMS, Caption, Labelled, Source, SupportReport
from sira_cli.errors import DataError, PictureError
from sira_cli.language import things
from sira_cli.methods.calibrated import Calibration, Origin
from sira_cli.models.free_support import KIND, ThingNumbers, Weights, streams_of
from sira_cli.models.lvlm import Lvlm
from sira_cli.models.verify import Verify
from sira_cli.pictures.names import as_text
from sira_cli.pictures.picture import OpenedPicture, Picture

RIDGE = 1.0
Numbers = tuple[float, ...]  # of a thing: `models.free_support.NUMBERS`
Labelling = Callable[[Sequence[Caption[Numbers]]], Sequence[Labelled[Numbers]]]


def measure_numbers(
    lvlm: Lvlm, pictures: Iterable[Picture], batch_size: int = 1
) -> Iterator[tuple[Picture, Caption[Numbers] | PictureError]]:
    """Caption every picture, and yield it with the numbers of what is named, or with what is wrong with it.

    A caption's `file_name` is the picture's path below the folder that was given (`Picture.relative`).

    Args:
        lvlm: the model under a method with `Ability.TRACES`.
        pictures: a few hundred.
        batch_size: captions decoded together.

    Raises:
        SiraError: about the model or the settings.
    """
    words = things.shipped()

    def work(opened: Sequence[OpenedPicture]) -> list[Caption[Numbers]]:
        numbers = ThingNumbers(lvlm.vocabulary, lvlm.sira.alpha)
        seeds = lvlm.text_seeds([each.sha256 for each in opened], [lvlm.preset.prompts.caption] * len(opened))
        answers = lvlm.answer(prepared(lvlm, opened), seeds=seeds, on_tokens=numbers.add)
        named = (numbers.of(row, answer.output_tokens, answer.text, words) for row, answer in enumerate(answers))
        return [
            Caption(f"{each.name} (sha256 {each.sha256})", "", found) for each, found in zip(opened, named, strict=True)
        ]

    for picture, found in each_picture(pictures, work, batch_size):
        if isinstance(found, Caption):
            found = replace(found, file_name=as_text(picture.relative))
        yield picture, found


def fit(numbers: Tensor, there: Tensor, ridge: float = RIDGE) -> Tensor:
    """Return the weights of the numbers as they are, and the bias: `[M + 1]` float64.

    Args:
        numbers: `[N, M]`.
        there: `[N]` bool, whether each thing is in its picture.
        ridge: how strongly weights of standardised numbers are pulled to 0.

    Raises:
        DataError: all things are there, or none.
    """
    if bool(there.all()) or not bool(there.any()):
        raise DataError("weights need things that are there and things that are not: take more pictures")
    table = numbers.double()
    mean, spread = table.mean(dim=0), table.std(dim=0, correction=0)
    spread = torch.where(spread > 0, spread, 1.0)
    standard, y = (table - mean) / spread, there.double()
    weights = torch.zeros(table.shape[1] + 1, dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS(
        [weights], max_iter=1_000, tolerance_grad=1e-9, tolerance_change=0.0, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        search.zero_grad()
        scores = standard @ weights[:-1] + weights[-1]
        value = F.binary_cross_entropy_with_logits(scores, y, reduction="sum") + ridge / 2 * weights[:-1].square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    search.step(loss)  # type: ignore[no-untyped-call]
    plain = weights.detach()[:-1] / spread
    return torch.cat([plain, weights.detach()[-1:] - plain @ mean])


def calibrate(
    measured: Mapping[str, tuple[Lvlm, Sequence[Caption[Numbers]]]],
    labelling: Labelling,
    false_alarms: float = FALSE_ALARMS,
) -> tuple[Calibration, dict[str, SupportReport]]:
    """Fit the weights and find the line of each method.

    Args:
        measured: by method, the model under it and what `measure_numbers` found.
        labelling: says which things are there.
        false_alarms: the share of the things there that may be below the line.

    Returns:
        The calibration, and for each method what its support does on the same captions.

    Raises:
        DataError: there is too little to learn from, or a caption has no labels.
    """
    tensors: dict[str, Tensor] = {}
    reports = {}
    for name, (lvlm, captions) in measured.items():
        labelled = labelling(captions)
        values = fit(torch.tensor([one.support for one in labelled]), torch.tensor([one.there for one in labelled]))
        scores = Weights(values, 0.0).support([one.support for one in labelled])
        scored = [Labelled(one.picture, one.there, score) for one, score in zip(labelled, scores, strict=True)]
        source = Source(lvlm.preset.model, lvlm.revision, Verify(mode="free").settings(lvlm.preset))
        unknown = sum(len(caption.support) for caption in captions) - len(labelled)
        reports[name] = SupportReport.of(source, len(captions), scored, unknown, false_alarms)
        tensors |= Weights(values, reports[name].line).tensors(name)
    lvlm, captions = next(iter(measured.values()))
    made_from = {
        "pictures": len(captions),
        "pictures_sha256": hash_of_pictures([caption.where for caption in captions]),
        "streams": {name: streams_of(each) for name, (each, _) in measured.items()},
        "prompt": lvlm.preset.prompts.caption,
        "max_new_tokens": lvlm.preset.generation.max_new_tokens,
        "temperature": lvlm.preset.generation.temperature,
        "false_alarms": false_alarms,
        "ridge": RIDGE,
        "dtype": lvlm.dtype,
        "quantization": lvlm.quantization,
    }
    origin = Origin(KIND, lvlm.preset.model, lvlm.revision, made_from, __version__)
    return Calibration(origin, tensors), reports
