"""ICT's directions from Python (Chen et al. 2025, arXiv:2411.15268): o_proj's outputs for clean and degraded pictures.

training = IctTraining(from_files([Path("coco_pope_random.json")], Path("val2014/"), 1500), load("llava-1.5-7b"))
for event in training.events():
    print(event)
training.calibration().write(Path("ict.safetensors"))

Each question is followed by an answer, whose last token is used:

| | question with yes | question with no |
|---|---|---|
| clean | the picture, yes | the picture, no |
| image level | the picture blurred, yes | the picture, yes: the wrong answer |
| object level | the object blacked out, yes | the picture blurred, no |
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image, ImageFilter
from torch import Tensor
from torch.nn import functional as F

from sira_cli._version import __version__
from sira_cli.analysis.calibration.questions import LabelledQuestions, black_out
from sira_cli.analysis.experiment import Units, run_missing
from sira_cli.analysis.sweep.questions import Question
from sira_cli.core.families import find_backbone, output_projections
from sira_cli.core.hooks import attached_hooks
from sira_cli.core.passes import followed
from sira_cli.errors import PictureError, SettingsError
from sira_cli.methods.calibrated import Calibration, Origin
from sira_cli.methods.ict import LEVELS, WIDTH, slices_of
from sira_cli.methods.prompts import pictures_of
from sira_cli.models.model import LoadedModel
from sira_cli.pictures.cache import Cache
from sira_cli.run.batch import Batch, Item
from sira_cli.run.events import Advanced, FailedPicture, Halved, StageStarted
from sira_cli.run.lvlm import Lvlm
from sira_cli.run.task import Task

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown

BLUR = 5.0  # radius of the Gaussian, in pixels of the picture as it is opened
SEED = 0  # of the halves of the probe
DECODED = 2  # pictures whose bytes and samples wait for the next question about them
LABELS = {True: "yes", False: "no"}  # as POPE's files spell them, and the published code takes them
STEPS, HALVINGS = 100, 30  # of the probe, at most
DONE = 1e-8  # largest change of a weight in the probe's last step


def _unchanged(image: Image.Image) -> Image.Image:
    return image


def _blurred(image: Image.Image) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(BLUR))


@dataclass(frozen=True)
class Prefill:
    """A prefill: a question about a picture, followed by an answer.

    Attributes:
        id: number of the question, and `clean`, `image` or `object`.
        question, label: question and answer.
        degrade: returns the picture as it is shown.
    """

    id: str
    question: Question
    label: str
    degrade: Callable[[Image.Image], Image.Image] = _unchanged


@dataclass(frozen=True)
class LastOutputs(Task[Tensor]):
    """The outputs of all `o_proj` at the last token of an answer, `[L, d]`, on the CPU.

    All prompts of a run have the same answer, so that its last token is in the last column of each row.
    """

    prefills: Mapping[str, Prefill]  # by id

    opened = DECODED

    def inputs(self, lvlm: LoadedModel, items: Sequence[Item[Tensor]], images: Sequence[Shown]) -> Any:
        """Return the model's inputs for the samples, degraded, without those of a method."""
        changed = [
            tuple(map(self.prefills[item.id].degrade, pictures_of(shown)))
            for item, shown in zip(items, images, strict=True)
        ]
        with lvlm.vocabulary.lock:
            return lvlm.chat_inputs(changed, [item.prompt for item in items], at_once=True)

    @torch.no_grad()
    def answers(self, lvlm: LoadedModel, batch: Batch[Tensor], on_text: Any = None) -> list[Tensor]:
        """Return the outputs for each prompt."""
        inputs, model, outputs = lvlm.to_device(batch.inputs), lvlm.model, list[Tensor]()
        labels = [self.prefills[item.id].label for item in batch.items]
        prompts = zip(inputs["input_ids"].tolist(), labels, strict=True)
        answers = [lvlm.vocabulary.encode_after(ids, label) for ids, label in prompts]
        with attached_hooks(model, find_backbone(model).norm) as handles:
            for projection in output_projections(model):
                handles.append(projection.register_forward_hook(lambda _, args, output: outputs.append(output[:, -1])))
            model(**followed(model, inputs, answers), use_cache=False, logits_to_keep=1)
        return [*torch.stack([output.cpu() for output in outputs], dim=1)]


class IctTraining:
    """The making of a model's calibration. Pictures that fail are events, and their questions are left out."""

    def __init__(self, questions: LabelledQuestions, lvlm: Lvlm, *, batch_size: int = 1) -> None:
        """Prepare it."""
        lvlm.check_prompts((each.text, each.picture) for each in questions.questions)
        if len(questions.questions) < 2:
            raise SettingsError("directions need two questions or more")
        self._layers = len(output_projections(lvlm.model))
        self._slices = slices_of(lvlm.model.config.get_text_config(decoder=True).hidden_size)
        self._questions, self._lvlm, self._batch_size = questions, lvlm, batch_size
        self._reads = Cache[bytes](DECODED)
        # In the model's own precision nothing is lost: 0.4 GB a kind for 1,500 questions to a 7B model in bfloat16.
        self._outputs = Units[Tensor]()
        self._tensors: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def events(self) -> Generator[StageStarted | Advanced | FailedPicture | Halved, None, None]:
        """Ask everything, then find directions layer by layer; yield events."""
        asked = enumerate(self._questions.questions)
        prefills = [prefill for number, question in asked for prefill in self._prefills(number, question)]
        yield StageStarted("prefills", len(prefills))
        for label in LABELS.values():
            chosen = {each.id: each for each in prefills if each.label == label}
            items = map(self._item, chosen.values())
            yield from run_missing(self._lvlm, LastOutputs(chosen), items, self._outputs, self._batch_size)
        if len(self._rows("clean")) < 2:
            raise PictureError("no directions: fewer than two questions could be asked")
        self._counts = {level: len(rows) for level in LEVELS if len(rows := self._rows(level)) > 1}
        yield StageStarted("layers", self._layers * len(self._counts))
        for level in self._counts:
            yield from self._find(level)

    def calibration(self) -> Calibration:
        """Return the calibration, after `events`."""
        made_from = {
            "questions": self._counts,
            "answers": list(LABELS.values()),
            "blur": BLUR,
            "seed": SEED,
            **self._questions.made_from,
        }
        lvlm = self._lvlm
        return Calibration(Origin("ict", lvlm.preset.model, lvlm.revision, made_from, __version__), self._tensors)

    def _prefills(self, number: int, question: Question) -> Iterator[Prefill]:
        """Yield the rows of the table above that a question has."""
        there, label = question.expected, LABELS[question.expected]
        yield Prefill(f"{number} clean", question, label)
        yield Prefill(f"{number} image", question, LABELS[True], _blurred if there else _unchanged)
        if self._questions.outlines is None:
            return
        if not there:
            yield Prefill(f"{number} object", question, label, _blurred)
        elif outlines := self._questions.outlines(question):
            yield Prefill(f"{number} object", question, label, lambda image: black_out(image, outlines))

    def _item(self, prefill: Prefill) -> Item[Tensor]:
        name, asked = prefill.question.picture, self._lvlm.preset.prompts.asking(prefill.question.text)
        return Item(self._questions.picture(name).asking(asked, prefill.id, self._reads), name, asked, prefill.id)

    def _rows(self, kind: str) -> list[int]:
        """Return the numbers of the questions with outputs of a kind, and clean ones."""
        every, done = range(len(self._questions.questions)), self._outputs
        return [number for number in every if f"{number} clean" in done and f"{number} {kind}" in done]

    def _find(self, level: str) -> Iterator[Advanced]:
        """Find direction, spread and accuracy of every slice."""
        rows, count = self._rows(level), self._counts[level]
        shuffled = torch.randperm(2 * count, generator=torch.Generator().manual_seed(SEED))
        degraded = torch.arange(2 * count) >= count
        outputs = [self._outputs[f"{row} {kind}"] for kind in ("clean", level) for row in rows]  # 2n of [L, d]
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        for layer in range(self._layers):
            values = torch.stack([each[layer] for each in outputs]).double()  # [2n, d]
            slices = values.view(2 * count, self._slices, WIDTH).transpose(0, 1)  # [H, 2n, WIDTH]
            shift = slices[:, :count].mean(dim=1) - slices[:, count:].mean(dim=1)  # [H, WIDTH]
            direction = F.normalize(shift, dim=1)
            spread = (slices @ direction[..., None])[..., 0].std(dim=1, correction=0)  # [H]
            found.append((direction, spread, two_fold_accuracy(slices[:, shuffled], degraded[shuffled])))
            yield Advanced(1)
        for name, layers in zip(("direction", "spread", "accuracy"), zip(*found, strict=True), strict=True):
            self._tensors[f"{level}.{name}"] = torch.stack(layers).float()


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
    halves = slice(0, middle), slice(middle, None)
    scores = []
    for tested, fitted in (halves, halves[::-1]):
        weights = fit(features[:, fitted], labels[fitted])
        said = _logits(_with_bias(features[:, tested]), weights) > 0  # [H, n]
        scores.append((said == labels[tested]).double().mean(dim=1))
    return torch.stack(scores).mean(dim=0)


def fit(features: Tensor, labels: Tensor) -> Tensor:
    """Fit logistic regressions: the sum of losses + |w|^2 / 2, the bias not penalised (scikit-learn's default, C = 1).

    Newton's method; a step that does not reduce the loss is halved until it does.
    """
    rows, truth = _with_bias(features), labels.to(features)  # [H, n, d + 1], [n]
    penalty = torch.ones(rows.shape[-1], dtype=rows.dtype)
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
