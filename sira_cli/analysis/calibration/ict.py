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

import functools
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image, ImageFilter
from torch import Tensor

from sira_cli._version import __version__
from sira_cli.analysis.calibration.probe import two_fold_accuracy
from sira_cli.analysis.calibration.questions import LabelledQuestion, LabelledQuestions
from sira_cli.analysis.sweep.grid import Advanced, FailedPicture, batches
from sira_cli.analysis.sweep.run import StageStarted
from sira_cli.core.families import find_backbone, output_projections
from sira_cli.core.forcing import followed
from sira_cli.core.hooks import attached_hooks
from sira_cli.errors import PictureError, SettingsError, SiraError
from sira_cli.methods.calibrated import Calibration, Origin
from sira_cli.methods.ict import LEVELS, WIDTH, slices_of
from sira_cli.models.lvlm import Lvlm
from sira_cli.pictures.names import one_line

BLUR = 5.0  # radius of the Gaussian, in pixels of the picture as it is opened
QUESTIONS = 1_500  # as the authors have
KINDS = ("clean", *LEVELS)
LABELS = {True: "yes", False: "no"}  # as POPE's files spell them, and the published code takes them


@dataclass(frozen=True)
class Prefill:
    """A prefill: a question about a picture, followed by an answer.

    Attributes:
        row: number of the question.
        kind: `clean`, `image` or `object`.
        image: clean or degraded.
        text, label: question and answer.
    """

    row: int
    kind: str
    image: Image.Image
    text: str
    label: str


class IctTraining:
    """A calibration of one model in the making.

    Attributes:
        failures: pictures that failed, each once; their questions are left out.
        accuracy: by level, how well a probe does at each slice `[L, H]`; after `events`.
        counts: by level, the number of its questions; after `events`.
    """

    def __init__(self, questions: LabelledQuestions, lvlm: Lvlm, *, batch_size: int = 1, seed: int = 0) -> None:
        """Prepare it.

        Args:
            questions: at least two, with their labels.
            lvlm: the loaded model under any method; its weights decide.
            batch_size: prompts in a prefill.
            seed: of the shuffling before the probe's two folds.

        Raises:
            SettingsError: a question cannot be asked, or there are too few.
            UnsupportedModelError: the model has other layers than the method can change.
        """
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

    def events(self) -> Generator[StageStarted | Advanced | FailedPicture, None, None]:
        """Ask everything, then find directions layer by layer; yield events.

        Raises:
            SiraError: about the model or the settings; or no picture could be looked at.
        """
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

    def _ask(self) -> Iterator[Advanced | FailedPicture]:
        opened = functools.lru_cache(maxsize=1)(self._questions.open)  # questions about one picture are side by side
        blurred = functools.lru_cache(maxsize=1)(lambda name: opened(name).filter(ImageFilter.GaussianBlur(BLUR)))
        for numbers in batches(range(len(self._questions.questions)), self._batch_size):
            prompts: list[Prefill] = []
            for number in numbers:
                question = self._questions.questions[number]
                try:
                    image, blur = opened(question.picture), blurred(question.picture)
                except PictureError as error:
                    yield from self._failed(question, str(error))
                    continue
                prompts += self._prompts(number, question, image, blur)
            # Texts of one length, so that the last column holds every answer's last token without padding of its own.
            for label in LABELS.values():
                for batch in batches([prompt for prompt in prompts if prompt.label == label], self._batch_size):
                    yield from self._keep(batch)
            yield Advanced(len(numbers))

    def _prompts(
        self, row: int, question: LabelledQuestion, image: Image.Image, blurred: Image.Image
    ) -> Iterator[Prefill]:
        text, label = question.text, LABELS[question.expected]
        yield Prefill(row, "clean", image, text, label)
        yield Prefill(row, "image", blurred if question.expected else image, text, LABELS[True])
        if self._questions.hide is not None:
            hidden = self._questions.hide(question, image) if question.expected else blurred
            if hidden is not None:
                yield Prefill(row, "object", hidden, text, label)

    def _keep(self, batch: Sequence[Prefill]) -> Iterator[FailedPicture]:
        """Keep o_proj's outputs for some prompts. A failed batch is tried again in halves, down to single prompts."""
        try:
            last = last_outputs(self._lvlm, self._projections, batch)  # [B, L, d]
        except SiraError:
            raise
        except Exception as error:
            failure = error.with_traceback(None)  # the traceback holds on to the memory of the failed try
        else:
            if self._seen is None:
                self._seen = torch.empty(*self._done.shape, *last.shape[1:], dtype=last.dtype)
            for prompt, outputs in zip(batch, last, strict=True):
                kind = KINDS.index(prompt.kind)
                self._seen[kind, prompt.row] = outputs
                self._done[kind, prompt.row] = True
            return
        if len(batch) > 1:
            middle = len(batch) // 2
            yield from self._keep(batch[:middle])
            yield from self._keep(batch[middle:])
            return
        question = self._questions.questions[batch[0].row]
        reason = (str(failure).strip().splitlines() or [""])[0]
        yield from self._failed(question, f"{one_line(question.picture)}: {type(failure).__name__}: {reason}")

    def _failed(self, question: LabelledQuestion, error: str) -> Iterator[FailedPicture]:
        if question.picture not in {failure.picture for failure in self.failures}:
            self.failures.append(FailedPicture(question.picture, error))
            yield self.failures[-1]

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
def last_outputs(lvlm: Lvlm, projections: Sequence[Any], batch: Sequence[Prefill]) -> Tensor:
    """Return each projection's output at the last token of the answers, on the CPU, `[B, L, d]`."""
    asked = [lvlm.preset.prompts.asking(prompt.text) for prompt in batch]
    with lvlm.vocabulary.lock:
        given: Any = lvlm.chat_inputs([prompt.image for prompt in batch], asked, at_once=True)
    inputs = lvlm.to_device(given)
    answers = [
        lvlm.vocabulary.encode_after(ids, prompt.label)
        for ids, prompt in zip(inputs["input_ids"].tolist(), batch, strict=True)
    ]
    kept: list[Tensor] = []
    with attached_hooks(find_backbone(lvlm.model).norm) as handles:
        for projection in projections:
            handles.append(projection.register_forward_hook(lambda module, args, output: kept.append(output[:, -1])))
        lvlm.model(**followed(lvlm.model, inputs, answers), use_cache=False, logits_to_keep=1)
    return torch.stack([output.cpu() for output in kept], dim=1)
