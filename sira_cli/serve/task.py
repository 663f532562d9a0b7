"""The texts of requests as a task of the runner: each is reported as it grows, and again when it is whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from sira_cli.core.streams import Step
from sira_cli.errors import LongPromptError
from sira_cli.look.second_look import PictureLook
from sira_cli.models.model import LoadedModel
from sira_cli.models.progress import Start, Trail
from sira_cli.models.texts import Answer
from sira_cli.pictures.picture import OpenedPicture, Picture
from sira_cli.pictures.sources import MemorySource
from sira_cli.run.items import Batch, Item, Task
from sira_cli.run.records import Result
from sira_cli.run.task import PictureTask
from sira_cli.serve.jobs import Job, Logprob, too_long
from sira_cli.serve.openers import gone

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown

LEAST_LOGPROB = -9999.0  # of a token that is forbidden: JSON has no infinity
SHOWN = Picture((MemorySource("the picture", "", label="the picture"),))  # its name in messages


@dataclass
class ChatItem(Item[Result]):
    """A request on its way through the runner; its pictures are decoded already."""

    job: Job = field(kw_only=True)

    @classmethod
    def of(cls, job: Job) -> ChatItem:
        """Return the item of a request."""
        return cls(SHOWN, "", str(job.prompt), sha256=job.pictures.sha256, job=job)

    @override
    def opened(self) -> OpenedPicture:
        """Return the request's pictures, unless its client has gone."""
        if self.job.gone:
            raise gone()
        return OpenedPicture("", tuple(self.job.images), self.sha256)


class Text(NamedTuple):
    """A decoded text, the second look at its picture if one is due, and the seconds that its decoding took."""

    answer: Answer
    look: PictureLook | None
    seconds: float


@dataclass(frozen=True)
class ChatTask(Task[Result]):
    """The texts of requests with equal settings: `about` has those of the first, with its seed and schema."""

    about: PictureTask
    most: int  # tokens of a prompt

    @override
    def ends_run(self, error: Exception) -> bool:
        """Return False: the other requests have nothing to do with it."""
        return False

    @override
    def needs_images(self) -> bool:
        """Return whether a second look needs the samples."""
        return self.about.needs_images()

    @override
    def inputs(self, lvlm: LoadedModel, items: Sequence[Any], images: Sequence[Shown]) -> Any:
        """Return the model's inputs for requests."""
        inputs = lvlm.prepare(images, [item.job.prompt for item in items], [item.sha256 for item in items])
        longest = int(inputs["attention_mask"].sum(dim=1).max())
        if longest > self.most:
            raise LongPromptError("", tokens=longest)
        return inputs

    @override
    def answers(self, lvlm: LoadedModel, batch: Batch[Any], on_text: Callable[[str], None] | None = None) -> list[Text]:
        """Decode the texts of requests together, and report each as it grows, if the method supports that."""
        started = time.perf_counter()
        items: list[Any] = batch.items
        jobs = [item.job for item in items]
        for job in jobs:
            job.begin(lvlm)
        seeds = lvlm.text_seeds(
            [item.sha256 for item in items],
            [item.prompt for item in items],
            [job.task.preset.generation.seed for job in jobs],
        )
        inputs = lvlm.to_device(batch.inputs)
        looks: Sequence[PictureLook | None] = [None] * len(jobs)
        if self.about.verify is None:
            answers = self._written(lvlm, jobs, inputs, seeds)
        elif self.about.verify.guides:  # their texts are final as they are decoded
            answers = self.about.way(lvlm).answers(batch.images, inputs, seeds)
        else:
            trail = Trail(range(len(jobs)))
            answers = self._written(lvlm, jobs, inputs, seeds, trail)
            looks = self.about.second_look(lvlm).at(batch.images, inputs, trail)
        seconds = round((time.perf_counter() - started) / len(jobs), 3)
        return [Text(answer, look, seconds) for answer, look in zip(answers, looks, strict=True)]

    def _written(
        self,
        lvlm: LoadedModel,
        jobs: Sequence[Job],
        inputs: Any,
        seeds: Sequence[int],
        trail: Trail | None = None,
    ) -> list[Answer]:
        """Return the texts as they are decoded; each ends when its request needs no further token."""
        see: Callable[..., None] | None = None
        start = None
        if lvlm.preset.generation.num_beams == 1 and not lvlm.decoder.own_search:
            see = _watch(lvlm, jobs)
            start = Start(
                [[] for _ in jobs], stopping=_stopping(jobs), new_tokens=lvlm.preset.generation.max_new_tokens
            )
        with_logits = jobs[0].chat.logprobs or self.about.words
        schemas = [job.task.schema for job in jobs]
        return lvlm.answer(
            inputs,
            words=self.about.words,
            on_tokens=see if with_logits else None,
            on_new=None if with_logits else see,
            seeds=seeds,
            task=self.about.kind,
            start=start,
            trail=trail,
            schemas=schemas if any(schemas) else None,
        )

    @override
    def settle(self, lvlm: LoadedModel, item: Any, answer: Text, milliseconds: float = 0.0) -> None:
        """Report the end of a text, after a second look if one is due, or the reason why it has no end."""
        job = item.job
        if job.gone:
            return
        task = replace(self.about, preset=job.task.preset, schema=job.task.schema)
        try:
            final = job.final(answer.answer)
            if answer.look is not None:
                final = answer.look.checked(final, task.schema)
            elif task.verify is None:
                final = task.preset.text.finished(final)
            task.settle(lvlm, item, final, milliseconds)
            job.finish(final, item.result, answer.seconds)
        except Exception as error:  # of the second look: the other texts have their answers
            job.report(error)

    @override
    def fail(self, lvlm: LoadedModel, item: Any, error: Exception) -> None:
        """Report why a request has no answer."""
        if isinstance(error, LongPromptError):
            error = too_long(f"has {error.tokens:,} tokens", self.most)
        item.job.report(error)


def _stopping(jobs: Sequence[Job]) -> Any:
    """Return the criteria that end each text of a batch."""

    def done(input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        return torch.tensor([job.done for job in jobs], device=input_ids.device)

    return (done,)


def _watch(lvlm: LoadedModel, jobs: Sequence[Job]) -> Callable[..., None]:
    """Return a function that gives each request its next token, and reports what is certain of its text."""
    logprobs = jobs[0].chat.logprobs  # of all jobs, or of none

    def see(tokens: Sequence[int], step: Step | None = None) -> None:
        for row, (job, token) in enumerate(zip(jobs, tokens, strict=True)):
            if job.done:
                continue
            logprob = None
            if step is not None and logprobs:
                logprob = _logprob(lvlm, step.contrast[row], token, job.chat.top_logprobs)
            job.add(token, logprob)
            if not lvlm.preset.text.given():
                job.send_certain()

    return see


def _logprob(lvlm: LoadedModel, logits: Tensor, token: int, top: int) -> Logprob:
    """Return the log-probability of a token under the logits `[V]` that it was picked from, and the `top` likeliest."""
    scores = logits.float().log_softmax(dim=-1)

    def described(number: int) -> Logprob:
        shown = lvlm.vocabulary.describe(number)
        logprob = max(scores[number].item(), LEAST_LOGPROB)
        return {"token": shown["token"], "logprob": logprob, "bytes": shown["bytes"]}

    return {**described(token), "top_logprobs": [described(number) for number in scores.topk(top).indices.tolist()]}
