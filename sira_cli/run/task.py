"""Work on each picture of a run, by a loaded model in batches; `Runner` decides when, and the batch size.

class Brightness(Task[float, float]):
    def answers(self, batch, on_text=None):
        return [...]  # one result for each of batch.items, from batch.inputs
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sira_cli.errors import PictureError
from sira_cli.models.processor import refused
from sira_cli.pictures.cache import Cache
from sira_cli.pictures.opening import MEMORY
from sira_cli.pictures.picture import OpenedPicture, Picture
from sira_cli.run.batch import Batch, Item, is_final, largest_batch, message, out_of_memory

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown

LARGE = 2**24  # pixels; the samples of larger pictures do not wait
KEPT = 2**22  # bytes; larger files are read again when they are decoded

A = TypeVar("A")  # the model's answer about a picture
R = TypeVar("R")  # the result that is made of it


class Task(ABC, Generic[A, R]):
    """Work on each picture. A subclass has `answers`; the other methods fit most tasks.

    Attributes:
        lvlm: the model under its method.
        at_once: whether the model's inputs are for one pass, without decoding.
        streams: whether `answers` takes `on_text` for a picture alone.
        in_order: whether single pictures keep their order; otherwise a slow one is overtaken.
    """

    at_once = False
    streams = False
    in_order = False

    def __init__(self, lvlm: Any, *, decoded: int = 0, images_kept: bool = False) -> None:
        """Prepare the task."""
        self.lvlm = lvlm
        self._decoded: Cache[OpenedPicture] = Cache(decoded)
        self._images_kept = images_kept

    @abstractmethod
    def answers(self, batch: Batch[R], on_text: Callable[[Picture, str], None] | None = None) -> Sequence[A]:
        """Return the model's answer about each picture of a prepared batch."""

    def settle(self, item: Item[R], answer: A, milliseconds: float = 0.0) -> None:
        """Give an item its result; by default, the answer is the result."""
        result: Any = answer
        item.result, item.data = result, b""

    def fail(self, item: Item[R], error: Exception) -> None:
        """Give an item the reason why it has no result."""
        item.error, item.data = message(item.picture, error), b""

    def complete(self, item: Item[R]) -> None:
        """After the bytes are read: complete the prompt."""

    def is_done(self, item: Item[R]) -> bool:
        """Return whether an earlier run has done it, and mark it as skipped."""
        return False

    def largest_batch(self, inputs: Any) -> int:
        """Return the number of pictures that fit into memory; `inputs` of the model are for one of them."""
        return largest_batch(self.lvlm, inputs, "caption")

    def read(self, item: Item[R]) -> Item[R]:
        """Get bytes, key and size. Samples are decoded later, so that few are in memory."""
        try:
            with MEMORY.taken(item.picture.file_size()):
                item.data = item.picture.read()
                item.sha256 = item.picture.digest(item.data)
                self.complete(item)
                if not self.is_done(item):
                    item.pixels = item.picture.pixels(item.data)
                if len(item.data) > KEPT and item.picture.is_here():
                    item.data = b""
        except Exception as error:
            if not self.is_done(item):
                self.fail(item, error)
        if item.skipped:
            item.data = b""
        return item

    def prepare(self, batch: Batch[R], each: Callable[..., Iterable[Shown | None]] = map) -> Batch[R]:
        """Decode the samples of pictures that are read, and give the batch the model's inputs.

        Pictures that fail are settled, and are no longer in the batch. If memory is too small, the batch has no inputs,
        but the error.
        """
        started = time.perf_counter()
        pictures = [
            (item, image)
            for item, image in zip(batch.items, each(self._samples, batch.items), strict=True)
            if image is not None
        ]
        try:
            batch.inputs = self._inputs(pictures)
        except Exception as error:
            if is_final(error):
                raise
            if out_of_memory(error):
                batch.failure = error
            else:  # the processor refused one of them, but which?
                pictures = [(item, image) for item, image in pictures if self._is_accepted(item, image)]
                batch.inputs = self._inputs(pictures)
        batch.items = [item for item, _ in pictures]
        # Samples that are not needed again are decoded again if the batch has to be halved.
        batch.images = [image for _, image in pictures] if self._images_kept else []
        batch.seconds += time.perf_counter() - started
        return batch

    def image(self, item: Item[R]) -> Shown:
        """Return the samples for the model, and note warnings about them."""

        def decoded() -> OpenedPicture:
            return item.picture.opened(item.content())

        large = item.pixels > LARGE
        opened = decoded() if large else self._decoded.get((item.picture.shown, item.sha256), decoded)
        item.warnings = opened.warnings
        return opened.shown

    def inputs(self, items: Sequence[Item[R]], images: Sequence[Shown]) -> Any:
        """Return the model's inputs for pictures whose samples are decoded; at least one."""
        prompts, hashes = [item.prompt for item in items], [item.sha256 for item in items]
        return self.lvlm.prepare(images, prompts, hashes, at_once=self.at_once)

    def inputs_alone(self, item: Item[R]) -> Any:
        """Return the model's inputs for one picture that is read, before its turn."""
        return self.inputs([item], [item.picture.opened(item.content()).shown])

    def _samples(self, item: Item[R]) -> Shown | None:
        try:
            return self.image(item)
        except Exception as error:
            self.fail(item, error)
            return None

    def _inputs(self, pictures: Sequence[tuple[Item[R], Shown]]) -> Any:
        return self.inputs(*zip(*pictures, strict=True)) if pictures else None

    def _is_accepted(self, item: Item[R], image: Shown) -> bool:
        try:
            self.inputs([item], [image])
        except Exception as error:
            if is_final(error):
                raise
            self.fail(item, error if isinstance(error, PictureError) else refused(item.picture.shown, error))
            return False
        return True
