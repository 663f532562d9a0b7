"""ICT's directions from Python (Chen et al. 2025, arXiv:2411.15268): o_proj's outputs for clean and degraded pictures.

Each question is followed by an answer, whose last token is used:

| | question with yes | question with no |
|---|---|---|
| clean | the picture, yes | the picture, no |
| image level | the picture blurred, yes | the picture, yes: the wrong answer |
| object level | the object blacked out, yes | the picture blurred, no |
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from PIL import Image, ImageFilter
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from sira_cli._version import __version__
from sira_cli.analysis.experiment import Events, Units, run_stage
from sira_cli.analysis.questions import DECODED, Question, QuestionSet, black_out
from sira_cli.core.families import find_backbone, output_projections
from sira_cli.core.hooks import attached_hooks
from sira_cli.core.passes import followed
from sira_cli.errors import PictureError, SettingsError
from sira_cli.methods.calibrated import Calibration, Origin
from sira_cli.methods.ict import LEVELS, WIDTH, slices_of
from sira_cli.methods.prompts import pictures_of
from sira_cli.models.model import LoadedModel
from sira_cli.run.events import Advanced, StageStarted
from sira_cli.run.items import Batch, Item, Task
from sira_cli.run.lvlm import Lvlm

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown

BLUR = 5.0  # radius of the Gaussian, in pixels of the picture as it is opened
SEED = 0  # of the halves of the probe
YES, NO = "yes", "no"  # as POPE's files spell them, and the published code takes them
STEPS, HALVINGS = 100, 30  # of the probe, at most
DONE = 1e-8  # largest change of a weight in the probe's last step


class Prefill(NamedTuple):
    """A question about a picture as `show` returns it, followed by an answer."""

    id: str  # number of the question, and `clean`, `image` or `object`
    question: Question
    answer: str
    show: Callable[[Image.Image], Image.Image] = lambda image: image


def prefills_of(questions: QuestionSet) -> Iterator[Prefill]:
    """Yield the cells of the table above for each question."""
    for number, question in enumerate(questions.questions):
        if question.expected:
            yield Prefill(f"{number} clean", question, YES)
            yield Prefill(f"{number} image", question, YES, _blurred)
            outlines = questions.outlines(question) if questions.outlines else ()
            if outlines:
                yield Prefill(f"{number} object", question, YES, functools.partial(black_out, outlines=outlines))
        else:
            yield Prefill(f"{number} clean", question, NO)
            yield Prefill(f"{number} image", question, YES)
            if questions.outlines:
                yield Prefill(f"{number} object", question, NO, _blurred)


def _blurred(image: Image.Image) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(BLUR))


@dataclass(frozen=True)
class LastOutputs(Task[Tensor]):
    """The outputs of all `o_proj` at the last token of an answer, `[L, d]`, on the CPU.

    All prompts of a run have the same answer, so that its last token is in the last column of each row.
    """

    prefills: Mapping[str, Prefill]  # by id

    @override
    def kept_open(self) -> int:
        """Return the number of pictures whose samples wait for the next question about them."""
        return DECODED

    def inputs(self, lvlm: LoadedModel, items: Sequence[Item[Tensor]], images: Sequence[Shown]) -> Any:
        """Return the model's inputs for the samples, degraded, without those of a method."""
        changed = []
        for item, shown in zip(items, images, strict=True):
            show = self.prefills[item.id].show
            changed.append(tuple(map(show, pictures_of(shown))))
        with lvlm.vocabulary.lock:
            return lvlm.chat_inputs(changed, [item.prompt for item in items], skip_thought=True)

    @torch.no_grad()
    def answers(self, lvlm: LoadedModel, batch: Batch[Tensor], on_text: Any = None) -> list[Tensor]:
        """Return the outputs for each prompt."""
        model = lvlm.model
        inputs = lvlm.to_device(batch.inputs)
        answers = []
        for ids, item in zip(inputs["input_ids"].tolist(), batch.items, strict=True):
            answers.append(lvlm.vocabulary.encode_after(ids, self.prefills[item.id].answer))
        outputs: list[Tensor] = []  # [B, d] of each layer

        def keep(projection: Any, args: Any, output: Tensor) -> None:
            outputs.append(output[:, -1])

        with attached_hooks(model, find_backbone(model).norm) as handles:
            for projection in output_projections(model):
                handles.append(projection.register_forward_hook(keep))
            model(**followed(model, inputs, answers), use_cache=False, logits_to_keep=1)
        return [*torch.stack([output.cpu() for output in outputs], dim=1)]


def train(
    lvlm: Lvlm, questions: QuestionSet, outputs: Units[Tensor], tensors: dict[str, Tensor], batch_size: int = 1
) -> Events:
    """Ask everything, then find directions layer by layer into `tensors`; yield events.

    Pictures that fail are events, and their questions are left out. Outputs are kept in the model's own precision:
    0.4 GB a kind for 1,500 questions to a 7B model in bfloat16.
    """
    lvlm.check_prompts((question.text, question.picture) for question in questions.questions)
    if len(questions.questions) < 2:
        raise SettingsError("directions need two questions or more")
    prefills = [*prefills_of(questions)]

    yield StageStarted("prefills", len(prefills))
    for answer in (YES, NO):
        chosen = {prefill.id: prefill for prefill in prefills if prefill.answer == answer}
        pictures = []
        for prefill in chosen.values():
            prompt = lvlm.preset.prompts.asking(prefill.question.text)
            pictures.append(questions.picture_of(prefill.question.picture).known(prompt=prompt, id=prefill.id))
        yield from run_stage(lvlm, LastOutputs(chosen), pictures, outputs, batch_size)
    levels = _levels(outputs)
    layers = len(output_projections(lvlm.model))
    if not levels:
        raise PictureError("no directions: fewer than two questions could be asked")
    slices = slices_of(lvlm.model.config.get_text_config(decoder=True).hidden_size)
    yield StageStarted("layers", layers * len(levels))
    for level, numbers in levels.items():
        rows = [outputs[f"{number} clean"] for number in numbers]  # n of [L, d]
        rows += [outputs[f"{number} {level}"] for number in numbers]
        by_layer = []
        for layer in range(layers):
            values = torch.stack([row[layer] for row in rows]).double()  # [2n, d]
            by_layer.append(_measured(values.view(len(rows), slices, WIDTH).transpose(0, 1)))
            yield Advanced(1)
        for name in by_layer[0]:
            tensors[f"{level}.{name}"] = torch.stack([measured[name] for measured in by_layer]).float()


def _measured(cut: Tensor) -> dict[str, Tensor]:
    """Return a layer's directions `[H, WIDTH]`, the spread `[H]` along them, and how well they separate `[H]`.

    Args:
        cut: `[H, 2n, WIDTH]`, slices of n clean outputs, then of n degraded ones.
    """
    n = cut.shape[1] // 2
    order = torch.randperm(2 * n, generator=torch.Generator().manual_seed(SEED))
    degraded = torch.arange(2 * n) >= n
    direction = F.normalize(cut[:, :n].mean(dim=1) - cut[:, n:].mean(dim=1), dim=1)  # [H, WIDTH]
    along = (cut @ direction[..., None])[..., 0]  # [H, 2n]
    return {
        "direction": direction,
        "spread": along.std(dim=1, correction=0),
        "accuracy": two_fold_accuracy(cut[:, order], degraded[order]),
    }


def calibration(
    lvlm: Lvlm, questions: QuestionSet, outputs: Units[Tensor], tensors: Mapping[str, Tensor]
) -> Calibration:
    """Return the calibration that `train` found."""
    made_from = {
        "questions": {level: len(numbers) for level, numbers in _levels(outputs).items()},
        "answers": [YES, NO],
        "blur": BLUR,
        "seed": SEED,
        **questions.made_from,
    }
    return Calibration(Origin("ict", lvlm.preset.model, lvlm.revision, made_from, __version__), tensors)


def _levels(outputs: Units[Tensor]) -> dict[str, list[int]]:
    """Return the levels that two questions or more have, with a clean one, and the numbers of these questions."""
    numbers: dict[str, list[int]] = {level: [] for level in LEVELS}
    for unit in outputs:
        number, kind = unit.split()
        if kind in numbers and f"{number} clean" in outputs:
            numbers[kind].append(int(number))
    return {level: sorted(numbers[level]) for level in LEVELS if len(numbers[level]) > 1}


def summary(calibration: Calibration) -> Iterator[str]:
    """Yield how well the slices of each level separate clean from degraded runs."""
    for level, count in calibration.origin.made_from["questions"].items():
        accuracy = 100 * calibration.tensors[f"{level}.accuracy"]
        yield (
            f"{level} level: {count} questions; the best of {accuracy.numel()} slices separates "
            f"{float(accuracy.max()):.1f} % of clean and degraded runs, the median {float(accuracy.median()):.1f} %"
        )


def two_fold_accuracy(features: Tensor, labels: Tensor) -> Tensor:
    """Fit on each half of the rows, score on the other, and return the mean share of correct rows."""
    middle = len(labels) // 2
    first = slice(0, middle)
    second = slice(middle, None)
    scores = []
    for tested, fitted in ((first, second), (second, first)):
        weights = fit(features[:, fitted], labels[fitted])
        predicted = _logits(_with_bias(features[:, tested]), weights) > 0  # [H, n]
        scores.append((predicted == labels[tested]).double().mean(dim=1))
    return torch.stack(scores).mean(dim=0)


def fit(features: Tensor, labels: Tensor) -> Tensor:
    """Fit logistic regressions: the sum of losses + |w|^2 / 2, the bias not penalised (scikit-learn's default, C = 1).

    Newton's method; a step that does not reduce the loss is halved until it does.
    """
    rows = _with_bias(features)  # [H, n, d + 1]
    truth = labels.to(features)  # [n]
    penalty = rows.new_ones(rows.shape[-1])
    penalty[-1] = 0
    weights = rows.new_zeros(len(rows), rows.shape[-1])
    ridge = torch.diag(penalty + 1e-10)  # the bias alone may have no curvature left

    def loss(at: Tensor) -> Tensor:  # [H]
        logits = _logits(rows, at)
        fits = F.binary_cross_entropy_with_logits(logits, truth.expand_as(logits), reduction="none")
        return fits.sum(dim=1) + (penalty * at**2).sum(dim=1) / 2

    for _ in range(STEPS):
        likely = _logits(rows, weights).sigmoid()  # [H, n]
        gradient = ((likely - truth)[:, None] @ rows)[:, 0] + penalty * weights
        curvature = rows.mT @ ((likely * (1 - likely))[..., None] * rows) + ridge
        step = torch.linalg.solve(curvature, gradient)
        before = loss(weights)
        for _ in range(HALVINGS):
            up = loss(weights - step) > before * (1 + 1e-12)
            if not bool(up.any()):
                break
            step[up] /= 2
        weights = weights - step
        if float(step.abs().max()) < DONE:
            break
    return weights


def _with_bias(features: Tensor) -> Tensor:
    return torch.cat([features, torch.ones_like(features[..., :1])], dim=-1)


def _logits(rows: Tensor, weights: Tensor) -> Tensor:
    return (rows @ weights[..., None])[..., 0]
