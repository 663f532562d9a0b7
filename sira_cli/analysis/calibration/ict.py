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

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image, ImageFilter
from torch import Tensor

from sira_cli._version import __version__
from sira_cli.analysis.calibration.probe import two_fold_accuracy
from sira_cli.analysis.calibration.questions import LabelledQuestions
from sira_cli.analysis.calibration.regions import black_out
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
from sira_cli.run.runner import Runner
from sira_cli.run.task import Task

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown

BLUR = 5.0  # radius of the Gaussian, in pixels of the picture as it is opened
DECODED = 2  # pictures whose bytes and samples wait for the next question about them
KINDS = ("clean", *LEVELS)
LABELS = {True: "yes", False: "no"}  # as POPE's files spell them, and the published code takes them


def _unchanged(image: Image.Image) -> Image.Image:
    return image


def _blurred(image: Image.Image) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(BLUR))


@dataclass(frozen=True)
class Prefill:
    """A prefill: a question about a picture, followed by an answer.

    Attributes:
        row: number of the question.
        kind: `clean`, `image` or `object`.
        text, label: question and answer.
        degrade: returns the picture as it is shown.
    """

    row: int
    kind: str
    text: str
    label: str
    degrade: Callable[[Image.Image], Image.Image] = _unchanged

    @property
    def id(self) -> str:
        """Unique in a run."""
        return f"{self.row} {self.kind}"


@dataclass(frozen=True)
class LastOutputs(Task[Tensor]):
    """The outputs of all `o_proj` at the last token of an answer, `[L, d]`, on the CPU.

    All prompts of a run have the same answer, so that its last token is in the last column of each row.
    """

    projections: Sequence[Any]
    prompts: Mapping[str, Prefill]  # by id

    opened = DECODED

    def inputs(self, lvlm: LoadedModel, items: Sequence[Item[Tensor]], images: Sequence[Shown]) -> Any:
        """Return the model's inputs for the samples, degraded, without those of a method."""
        changed = [
            tuple(map(self.prompts[item.id].degrade, pictures_of(shown)))
            for item, shown in zip(items, images, strict=True)
        ]
        with lvlm.vocabulary.lock:
            return lvlm.chat_inputs(changed, [item.prompt for item in items], at_once=True)

    def answers(self, lvlm: LoadedModel, batch: Batch[Tensor], on_text: Any = None) -> list[Tensor]:
        """Return the outputs for each prompt."""
        labels = [self.prompts[item.id].label for item in batch.items]
        return [*last_outputs(lvlm, self.projections, batch.inputs, labels)]


class IctTraining:
    """The making of a model's calibration.

    Attributes:
        failures: pictures that failed, each once; their questions are left out.
        accuracy: by level, a probe's accuracy at each slice `[L, H]`; after `events`.
        counts: by level, the number of its questions; after `events`.
    """

    def __init__(self, questions: LabelledQuestions, lvlm: Lvlm, *, batch_size: int = 1, seed: int = 0) -> None:
        """Prepare it."""
        lvlm.check_prompts((each.text, each.picture) for each in questions.questions)
        if len(questions.questions) < 2:
            raise SettingsError("directions need two questions or more")
        self._projections = output_projections(lvlm.model)
        self._slices = slices_of(lvlm.model.config.get_text_config(decoder=True).hidden_size)
        self._questions, self._lvlm, self._batch_size, self._seed = questions, lvlm, batch_size, seed
        # In the model's own precision nothing is lost: 0.4 GB a kind for 1,500 questions to a 7B model in bfloat16.
        self._seen: Tensor | None = None  # [kinds, n, L, d]
        self._done = torch.zeros(len(KINDS), len(questions.questions), dtype=torch.bool)
        self._tensors: dict[str, Tensor] = {}
        self.failures: list[FailedPicture] = []
        self.accuracy: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}

    def events(self) -> Generator[StageStarted | Advanced | FailedPicture | Halved, None, None]:
        """Ask everything, then find directions layer by layer; yield events."""
        yield StageStarted("questions", len(self._questions.questions))
        yield from self._ask()
        clean = self._done[0]
        if int(clean.sum()) < 2:
            raise PictureError("no directions: fewer than two questions could be asked")
        levels = [level for level, done in zip(LEVELS, self._done[1:], strict=True) if int((done & clean).sum()) > 1]
        yield StageStarted("layers", len(self._projections) * len(levels))
        for level in levels:
            yield from self._find(level)

    def calibration(self) -> Calibration:
        """Return the calibration, after `events`."""
        made_from = {
            "questions": self.counts,
            "answers": list(LABELS.values()),
            "blur": BLUR,
            "seed": self._seed,
            **self._questions.made_from,
        }
        lvlm = self._lvlm
        return Calibration(Origin("ict", lvlm.preset.model, lvlm.revision, made_from, __version__), self._tensors)

    def _ask(self) -> Iterator[Advanced | FailedPicture | Halved]:
        """Ask all questions with the same answer before those with the other one."""
        prompts = [prompt for row in range(len(self._questions.questions)) for prompt in self._prompts(row)]
        left = Counter(prompt.row for prompt in prompts)
        for label in LABELS.values():
            chosen = [prompt for prompt in prompts if prompt.label == label]
            by_id = {prompt.id: prompt for prompt in chosen}
            runner = Runner(self._lvlm, LastOutputs(self._projections, by_id), self._batch_size)
            reads = Cache[bytes](DECODED)
            with closing(runner.run(self._item(prompt, reads) for prompt in chosen)) as items:
                for item in items:
                    if isinstance(item, Halved):
                        yield item
                        continue
                    prompt = by_id[item.id]
                    yield from self._keep(prompt, item)
                    left[prompt.row] -= 1
                    if not left[prompt.row]:
                        yield Advanced(1)

    def _prompts(self, row: int) -> Iterator[Prefill]:
        question = self._questions.questions[row]
        text, label = question.text, LABELS[question.expected]
        yield Prefill(row, "clean", text, label)
        yield Prefill(row, "image", text, LABELS[True], _blurred if question.expected else _unchanged)
        if self._questions.outlines is None:
            return
        if not question.expected:
            yield Prefill(row, "object", text, label, _blurred)
        elif outlines := self._questions.outlines(question):
            yield Prefill(row, "object", text, label, lambda image: black_out(image, outlines))

    def _item(self, prompt: Prefill, reads: Cache[bytes]) -> Item[Tensor]:
        question, asking = self._questions.questions[prompt.row], self._lvlm.preset.prompts.asking
        picture, asked = self._questions.picture(question.picture), asking(question.text)
        about = picture.asking(asked, prompt.id, reads)
        return Item(about, question.picture, asked, prompt.id)

    def _keep(self, prompt: Prefill, item: Item[Tensor]) -> Iterator[FailedPicture]:
        """Keep o_proj's outputs for a prompt, or report its failed picture once."""
        if item.result is None:
            if item.name not in {failure.picture for failure in self.failures}:
                self.failures.append(FailedPicture(item.name, item.error))
                yield self.failures[-1]
            return
        if self._seen is None:
            self._seen = torch.empty(*self._done.shape, *item.result.shape, dtype=item.result.dtype)
        kind = KINDS.index(prompt.kind)
        self._seen[kind, prompt.row] = item.result
        self._done[kind, prompt.row] = True

    def _find(self, level: str) -> Iterator[Advanced]:
        """Find direction, spread and accuracy of every slice."""
        assert self._seen is not None
        kind = KINDS.index(level)
        rows = (self._done[0] & self._done[kind]).nonzero().flatten()  # [n]
        self.counts[level] = count = len(rows)
        shuffled = torch.randperm(2 * count, generator=torch.Generator().manual_seed(self._seed))
        degraded = torch.arange(2 * count) >= count
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        for layer in range(len(self._projections)):
            values = torch.cat([self._seen[0, rows, layer], self._seen[kind, rows, layer]]).double()  # [2n, d]
            slices = values.view(2 * count, self._slices, WIDTH).transpose(0, 1)  # [H, 2n, WIDTH]
            shift = slices[:, :count].mean(dim=1) - slices[:, count:].mean(dim=1)  # [H, WIDTH]
            direction = torch.nn.functional.normalize(shift, dim=1)
            spread = (slices @ direction[..., None])[..., 0].std(dim=1, correction=0)  # [H]
            accuracy = two_fold_accuracy(slices[:, shuffled], degraded[shuffled])
            found.append((direction, spread, accuracy))
            yield Advanced(1)
        for name, layers in zip(("direction", "spread", "accuracy"), zip(*found, strict=True), strict=True):
            self._tensors[f"{level}.{name}"] = torch.stack(layers).float()
        self.accuracy[level] = self._tensors[f"{level}.accuracy"]


@torch.no_grad()
def last_outputs(lvlm: LoadedModel, projections: Sequence[Any], inputs: Any, labels: Sequence[str]) -> Tensor:
    """Return each projection's output at the last token of the answers, on the CPU, `[B, L, d]`."""
    inputs = lvlm.to_device(inputs)
    answers = [
        lvlm.vocabulary.encode_after(ids, label)
        for ids, label in zip(inputs["input_ids"].tolist(), labels, strict=True)
    ]
    kept: list[Tensor] = []
    with attached_hooks(lvlm.model, find_backbone(lvlm.model).norm) as handles:
        for projection in projections:
            handles.append(projection.register_forward_hook(lambda module, args, output: kept.append(output[:, -1])))
        lvlm.model(**followed(lvlm.model, inputs, answers), use_cache=False, logits_to_keep=1)
    return torch.stack([output.cpu() for output in kept], dim=1)
