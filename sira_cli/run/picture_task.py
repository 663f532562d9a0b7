"""The task of captions and answers: ask the model a prompt about each picture, and record the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from sira_cli.errors import PictureSettingsError, SettingsError
from sira_cli.models.encoded import EncodedPictures
from sira_cli.models.texts import Answer, repetition
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.rows import brief
from sira_cli.run.batch import Batch, Item, largest_batch, message
from sira_cli.run.final_answers import FinalAnswers
from sira_cli.run.keys import Asked
from sira_cli.run.records import Result
from sira_cli.run.request import Request
from sira_cli.run.task import Task

DECODED = 2  # pictures whose samples wait for the next question about them


class PictureTask(Task[Answer, Result]):
    """A caption of each picture, or an answer about it."""

    def __init__(self, lvlm: Any, request: Request, done: Callable[[str], str]) -> None:
        """Prepare the task."""
        lvlm.check_prompt(request.prompt, request.together)
        if request.schema is not None:
            lvlm.following(request.schema)  # refuses what the model cannot follow now, not at the first picture
        asks = request.task == "ask"
        super().__init__(lvlm, decoded=DECODED if asks else 0, images_kept=request.verify is not None)
        self.request, self._done = request, done
        self.at_once = bool(request.choices)
        rewritten = request.schema is not None and request.schema.as_tags
        self.streams = not (request.words or request.verify is not None or rewritten) and lvlm.preset.streams
        self._looked = request.looked(lvlm.preset)
        self._answering = self._final_answers()
        self._encoded = EncodedPictures() if asks else None

    def _final_answers(self) -> FinalAnswers:
        return FinalAnswers(self.lvlm, self.request.verify)

    def blank(self) -> Result:
        """Return a result without a picture: the fields that are equal in all results of this task."""
        found: Result = self.lvlm.result(Asked(self.request.task, "", "", self.request.prompt), self._no_answer(""))
        return found

    def item(self, picture: Picture, name: str) -> Item[Result]:
        """Return the item of a picture, with its name in the record."""
        return Item(picture, name, picture.asked(self.request.prompt), picture.id)

    def complete(self, item: Item[Result]) -> None:
        """Fill the prompt, and check one that is not the run's."""
        item.prompt = self.request.asked(item.picture)
        if item.prompt != self.request.prompt:
            try:
                self.lvlm.check_prompt(item.prompt)
            except SettingsError as error:
                raise PictureSettingsError(str(error)) from None

    def is_done(self, item: Item[Result]) -> bool:
        """Return whether an earlier run has done equal work, and mark it as skipped."""
        key = self.lvlm.keys.key(*self._asked(item), self._looked, self.request.json_schema)
        item.skipped = self._done(item.id) == key
        return item.skipped

    def largest_batch(self, inputs: Any) -> int:
        """Return the number of pictures that fit into memory."""
        return largest_batch(self.lvlm, inputs, self.request.task)

    def answers(self, batch: Batch[Result], on_text: Callable[[Picture, str], None] | None = None) -> Sequence[Answer]:
        """Return the model's answer about each picture of a prepared batch."""
        with self._features_kept(batch):
            return self._answers(batch, on_text)

    def _features_kept(self, batch: Batch[Result]) -> AbstractContextManager[None]:
        """Encode a picture only once, as it may have several questions."""
        return self._encoded.used_by(self.lvlm.model, len(batch.items)) if self._encoded else nullcontext()

    def _answers(self, batch: Batch[Result], on_text: Callable[[Picture, str], None] | None) -> Sequence[Answer]:
        lvlm, inputs, request = self.lvlm, batch.inputs, self.request
        if request.choices:
            chosen: list[Answer] = lvlm.choose(inputs, request.choices)
            return chosen
        stream = None if on_text is None else lambda text: on_text(batch.items[0].picture, text)
        seeds = lvlm.text_seeds([item.sha256 for item in batch.items], [item.prompt for item in batch.items])
        asked: dict[str, Any] = {"words": request.words, "task": request.task, "schema": request.schema}
        return self._answering.answer(batch.images, inputs, stream, seeds=seeds, **asked)

    def settle(self, item: Item[Result], answer: Answer, milliseconds: float = 0.0) -> None:
        """Give an item its record."""
        item.data = b""
        if answer.error and answer.tokens:  # the decoded text is not an answer
            answer = replace(answer, error=f"{item.picture.shown}: {answer.error}")
        elif self.request.needs_text and not answer.error and not self._has_text(answer.text):
            tokens = answer.output_tokens
            reason = f"the model's text is empty ({tokens} token{'s' * (tokens != 1)}): try another prompt or method"
            answer = replace(answer, text="", error=f"{item.picture.shown}: {reason}")
        if self.request.task != "check" and (said := repetition(answer.text)):
            item.warnings = (*item.warnings, f"says {brief(said)} again and again")
        images = item.picture.images(item.name)
        asked = self._asked(item)
        item.result = self.lvlm.result(asked, answer, milliseconds, item.warnings, images=images)

    def _has_text(self, text: str) -> bool:
        start, end = self.lvlm.preset.text.written(text)
        return bool(text[start:end].strip())

    def _asked(self, item: Item[Result]) -> Asked:
        return Asked(self.request.task, item.name, item.sha256, item.prompt)

    def fail(self, item: Item[Result], error: Exception) -> None:
        """Give an item the record of a picture that failed."""
        self.settle(item, self._no_answer(message(item.picture, error)))

    def _no_answer(self, error: str) -> Answer:
        return Answer(
            error=error,
            words=[] if self.request.words else None,
            choices=[] if self.request.choices else None,
            objects=None if self._looked is None else [],
            verify=self._looked,
            json_schema=self.request.json_schema,
            reasoning="" if self.lvlm.parser.expects and not self.request.choices else None,
        )
