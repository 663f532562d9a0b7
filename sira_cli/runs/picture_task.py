"""The task of a run on its pictures: read them, prepare them for the model, have it answer, make their records.

When that is done, in which thread, and with how many pictures at once is up to `BatchRun`.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from PIL import Image

from sira_cli.errors import PictureError, PictureSettingsError, SettingsError, SiraError
from sira_cli.models.choices import choose
from sira_cli.models.encoded import EncodedPictures
from sira_cli.models.look.verify import Verify
from sira_cli.models.look.verifying import VerifiedAnswers
from sira_cli.models.lvlm import Lvlm
from sira_cli.models.processors import refused
from sira_cli.models.records import Answer, Result
from sira_cli.pictures.opening import decode_picture, picture_size
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.room import ROOM
from sira_cli.runs.item import Item
from sira_cli.runs.kept import Kept
from sira_cli.runs.memory import out_of_memory
from sira_cli.runs.prompts import filled
from sira_cli.runs.slots import Batch

DECODED = 2  # pictures whose samples wait for the next question about them
LARGE = 2**24  # pixels; the samples of larger pictures do not wait
KEPT = 2**22  # bytes; larger files are read again when they are decoded

_log = logging.getLogger(__name__)


class PictureTask:
    """The task of each picture: a prompt is put to the model, and the answer is its record.

    Attributes:
        lvlm: the model under its method.
        name: `caption`, `ask` or `check`, for the records.
    """

    def __init__(
        self,
        lvlm: Lvlm,
        name: str,
        prompt: str,
        *,
        words: bool = False,
        choices: Sequence[str] = (),
        verify: Verify | None = None,
        fills: bool = False,
        done: Callable[[str], str] = lambda name: "",
    ) -> None:
        """Prepare the task.

        Args:
            lvlm, prompt, words, choices, verify, fills, done: as for `BatchRun`.
            name: `caption`, `ask` or `check`.

        Raises:
            SettingsError: the prompt holds the model's placeholder for a picture.
        """
        lvlm.check_prompt(prompt)
        self.lvlm, self.name, self._prompt = lvlm, name, prompt
        self._words, self._choices, self._fills = words, choices, fills
        self._done = done
        self._verified = None if verify is None else VerifiedAnswers(lvlm, verify)
        self._looked = None if self._verified is None else self._verified.settings
        self._decoded: Kept[tuple[Image.Image, tuple[str, ...]]] = Kept(DECODED if name == "ask" else 0)
        self._encoded = EncodedPictures() if name == "ask" else None

    def blank(self) -> Result:
        """Return a result without a picture: the fields that are equal in all results of this task."""
        return self.lvlm.result(self.name, "", "", self._prompt, self._no_answer(""))

    def item(self, picture: Picture, name: str) -> Item:
        """Return a picture, with its name in the record, as it begins its way through the run."""
        return Item(picture, name, picture.asked(self._prompt), picture.id)

    def read(self, item: Item) -> Item:
        """Get bytes, key and size. The samples are decoded when their turn comes, so that few are in memory."""
        try:
            with ROOM.taken(item.picture.file_size()):
                item.data = item.picture.read()
                item.sha256 = hashlib.sha256(item.data).hexdigest()
                self._complete_prompt(item)
                if not self._is_done(item):
                    item.size = picture_size(item.picture.shown, item.data)
                if len(item.data) > KEPT and item.picture.is_here():
                    item.data = b""
        except Exception as error:
            if not self._is_done(item):
                self.fail(item, error)
        if item.skipped:
            item.data = b""
        return item

    def _complete_prompt(self, item: Item) -> None:
        """Fill the prompt; one that is not the run's has not been checked yet."""
        if self._fills:
            item.prompt = filled(item.prompt, item.picture)
        if item.prompt != self._prompt:
            try:
                self.lvlm.check_prompt(item.prompt)
            except SettingsError as error:
                raise PictureSettingsError(str(error)) from None

    def _is_done(self, item: Item) -> bool:
        work = (self.name, item.name, item.sha256, item.prompt, self._looked)
        item.skipped = self._done(item.id) == self.lvlm.keys.key(*work)
        return item.skipped

    def prepare(self, batch: Batch, each: Callable[..., Iterable[Image.Image | None]] = map) -> Batch:
        """Decode the samples of pictures that are read, and give the batch the model's inputs.

        Pictures that fail have their records, and are no longer in the batch. If memory is too small, the batch
        has no inputs, but the error.

        Args:
            batch: of pictures that are read.
            each: as `map`; in threads, perhaps.
        """
        started = time.perf_counter()
        pictures = [
            (item, image)
            for item, image in zip(batch.items, each(self._samples, batch.items), strict=True)
            if image is not None
        ]
        try:
            batch.inputs = self.inputs(pictures)
        except SiraError:
            raise
        except Exception as error:
            if out_of_memory(error):
                batch.failure = error
            else:  # the processor refused one of them, but which?
                pictures = [(item, image) for item, image in pictures if self._is_accepted(item, image)]
                batch.inputs = self.inputs(pictures)
        batch.items = [item for item, _ in pictures]
        # The second look shows the picture again. For others it is decoded again if the batch has to be halved.
        batch.images = [] if self._looked is None else [image for _, image in pictures]
        batch.seconds += time.perf_counter() - started
        return batch

    def _samples(self, item: Item) -> Image.Image | None:
        def decoded() -> tuple[Image.Image, tuple[str, ...]]:
            return decode_picture(item.picture.shown, item.content())

        try:
            if item.size[0] * item.size[1] > LARGE:
                image, item.warnings = decoded()
            else:
                image, item.warnings = self._decoded.get((item.picture.shown, item.sha256), decoded)
        except Exception as error:
            self.fail(item, error)
            return None
        return image

    def _is_accepted(self, item: Item, image: Image.Image) -> bool:
        try:
            self.inputs([(item, image)])
        except SiraError:
            raise
        except Exception as error:
            self.fail(item, refused(item.picture.shown, error))
            return False
        return True

    def inputs(self, pictures: Sequence[tuple[Item, Image.Image]]) -> Any:
        """Return the model's inputs for pictures whose samples are decoded; None without pictures."""
        if not pictures:
            return None
        items = [item for item, _ in pictures]
        return self.lvlm.prepare(
            [image for _, image in pictures],
            [item.prompt for item in items],
            [item.sha256 for item in items],
            at_once=bool(self._choices),
        )

    def inputs_alone(self, item: Item) -> Any:
        """Return the model's inputs for one picture that is read; its turn to be prepared is still to come."""
        image, _ = decode_picture(item.picture.shown, item.content())
        return self.inputs([(item, image)])

    def answers(self, batch: Batch, on_text: Callable[[Picture, str], None] | None = None) -> list[Answer]:
        """Return the model's answer about each picture of a prepared batch.

        Args:
            batch: of pictures that are prepared.
            on_text: for one picture, called with pieces of the text as they are decoded.
        """
        with self._features_kept(batch):
            return self._answers(batch, on_text)

    def _features_kept(self, batch: Batch) -> AbstractContextManager[None]:
        """Encode pictures once that may have several questions."""
        return self._encoded.used_by(self.lvlm.model, len(batch.items)) if self._encoded else nullcontext()

    def _answers(self, batch: Batch, on_text: Callable[[Picture, str], None] | None) -> list[Answer]:
        lvlm, inputs, words = self.lvlm, batch.inputs, self._words
        if self._choices:
            return choose(lvlm, inputs, self._choices)
        stream = None if on_text is None else lambda text: on_text(batch.items[0].picture, text)
        seeds = lvlm.text_seeds([item.sha256 for item in batch.items], [item.prompt for item in batch.items])
        if self._verified is not None:
            return self._verified.answer(batch.images, inputs, seeds=seeds, words=words, task=self.name)
        answers = lvlm.answer(inputs, stream, seeds=seeds, words=words, task=self.name)
        return [lvlm.preset.text.finished(answer) for answer in answers]

    def settle(self, item: Item, answer: Answer, milliseconds: float = 0.0) -> None:
        """Give an item its record."""
        item.data = b""
        if answer.error and answer.tokens:  # the decoded text is not an answer
            answer = replace(answer, error=f"{item.picture.shown}: {answer.error}")
        item.result = self.lvlm.result(
            self.name, item.name, item.sha256, item.prompt, answer, milliseconds, item.warnings
        )

    def fail(self, item: Item, error: Exception) -> None:
        """Give an item the record of a picture that failed."""
        name, message = item.picture.shown, str(error)
        if isinstance(error, PictureSettingsError):
            message = f"{name}: {message}"
        elif out_of_memory(error):
            message = f"{name}: memory does not suffice for it, even alone: {_first_line(message)}"
        elif not isinstance(error, PictureError):
            message = f"{name}: {type(error).__name__}: {_first_line(message)}"
            _log.debug("%s failed", name, exc_info=error)
        self.settle(item, self._no_answer(message))

    def _no_answer(self, error: str) -> Answer:
        return Answer(
            error=error,
            words=[] if self._words else None,
            choices=[] if self._choices else None,
            objects=None if self._looked is None else [],
            verify=self._looked,
            reasoning="" if self.lvlm.parser.expects and not self._choices else None,
        )


def _first_line(message: str) -> str:
    return next(iter(message.strip().splitlines()), "")
