"""A task on many pictures: they are read and prepared ahead in threads, worked on in batches, and yielded in order.

    readers (threads)      bytes, hash, key, size        of the next windows
    preparer (a thread)    samples, image processor      of the next batch
    this thread            the model                     of the current batch

Pictures of similar size, and with it prompts of similar length, are put into one batch, within a window of a few
batches. Results still come in the order of the pictures.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from sira_cli.errors import PictureError
from sira_cli.models.model import LoadedModel
from sira_cli.models.processor import refused
from sira_cli.pictures.cache import Cache
from sira_cli.pictures.opening import MEMORY
from sira_cli.pictures.picture import OpenedPicture, Picture
from sira_cli.run.batch import (
    AUTO,
    FIRST,
    WINDOW,
    Batch,
    BatchSize,
    Item,
    ahead,
    as_they_come,
    check_batch_size,
    is_final,
    out_of_memory,
    usual_batch_size,
)
from sira_cli.run.events import Halved
from sira_cli.run.task import Task

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown

R = TypeVar("R")

READERS = 4
FLUSH = 64  # pictures that an earlier run has done are given out together
HELD = 256  # pictures on their way when one that is slow to read is waited for
LARGE = 2**24  # pixels; the samples of larger pictures do not wait
KEPT = 2**22  # bytes; larger files are read again when they are decoded


class Runner(Generic[R]):
    """Many items, and a task on each, by a loaded model.

    Attributes:
        batch_size: number of pictures worked on together; halved when memory is too small, for the rest of the
            run. Under `auto` it is 1 until the first few pictures are read.
    """

    def __init__(
        self,
        lvlm: LoadedModel,
        task: Task[R],
        batch_size: BatchSize | None = None,
        *,
        done: Callable[[str], str] = lambda name: "",
        on_text: Callable[[Picture, str], None] | None = None,
    ) -> None:
        """Prepare a run; `done` returns the key of an item's earlier result, by its id."""
        check_batch_size(batch_size)
        self._lvlm, self._task, self._done = lvlm, task, done
        usual = usual_batch_size(lvlm.model.device) if on_text is None else 1
        batch_size = usual if batch_size is None else batch_size
        self._undecided = batch_size == AUTO and lvlm.batches
        self.batch_size = batch_size if isinstance(batch_size, int) and lvlm.batches else 1
        self._on_text = on_text if self._one_by_one and task.streams(lvlm) else None
        self._opened: Cache[OpenedPicture] = Cache(task.opened)
        self._halvings: deque[Halved] = deque()
        self._given_out: deque[Item[R]] = deque()  # in order, waiting for their results

    def run(self, todo: Iterable[Item[R]]) -> Generator[Item[R] | Halved, None, None]:
        """Work on items, and yield each when it is settled, in order."""
        readers = ThreadPoolExecutor(READERS, "sira-reader")
        preparer = ThreadPoolExecutor(1, "sira-preparer")
        given_out = self._given_out = deque()

        def prepare(batch: Batch[R]) -> Batch[R]:
            return self._prepare(batch, readers.map)

        try:
            for batch in ahead(preparer, prepare, self.batches(readers, todo), 2):
                self._decode(batch)
                while self._halvings:
                    yield self._halvings.popleft()
                while given_out and given_out[0].read and given_out[0].settled:
                    yield given_out.popleft()
            while given_out:  # skipped, all of them
                yield given_out.popleft()
        finally:
            for pool in (readers, preparer):
                pool.shutdown(wait=False, cancel_futures=True)

    def batches(self, readers: ThreadPoolExecutor, todo: Iterable[Item[R]]) -> Iterator[Batch[R]]:
        """Read items ahead, and put those that are left to do into batches; an empty batch lets out the others."""
        read = self._read_ahead(readers, todo)
        while True:
            window: list[Item[R]] = []
            for item in read:
                if item is None:  # the next one is slow: those that are read do not wait for it
                    if window:
                        break
                    yield Batch([])
                    continue
                item.read = True
                if not item.settled:
                    window.append(item)
                if len(window) == self._window:
                    break
                if not window and (not item.skipped or len(self._given_out) >= FLUSH):
                    yield Batch([])
            if not self._one_by_one:
                window.sort(key=lambda item: item.pixels)  # stable
            if self._undecided and len(window) > 1:
                self._decide(window)
            yield from _portions(window, self.batch_size)
            if not window:
                return

    @property
    def _window(self) -> int:
        """Number of pictures that are sorted by size."""
        return FIRST if self._undecided else WINDOW * self.batch_size

    @property
    def _one_by_one(self) -> bool:
        """Whether pictures are decoded one by one."""
        return self.batch_size == 1 and not self._undecided

    def _read_ahead(self, readers: ThreadPoolExecutor, todo: Iterable[Item[R]]) -> Iterator[Item[R] | None]:
        """Read ahead. If pictures are decoded one by one, a slow one does not delay the others."""

        def depth() -> int:
            return READERS + self._window

        def reach() -> int:
            if not self._one_by_one:
                return 0
            return 1 if self._on_text is not None or len(self._given_out) >= HELD else depth()

        def taken() -> Iterator[Item[R]]:
            for item in todo:
                self._given_out.append(item)
                yield item

        return as_they_come(readers, self._read, taken(), depth, reach)

    def _read(self, item: Item[R]) -> Item[R]:
        """Get bytes, key and size. Samples are decoded later, so that few are in memory."""
        try:
            with MEMORY.taken(item.picture.file_size()):
                item.data = item.picture.read()
                item.sha256 = item.picture.digest(item.data)
                self._task.complete(self._lvlm, item)
                if not self._is_done(item):
                    item.pixels = item.picture.pixels(item.data)
                if len(item.data) > KEPT and item.picture.is_here():
                    item.data = b""
        except Exception as error:
            if not self._is_done(item):
                self._fail(item, error)
        if item.skipped:
            item.data = b""
        return item

    def _is_done(self, item: Item[R]) -> bool:
        """Return whether an earlier run has done equal work, and mark the item as skipped."""
        before = self._done(item.id)
        item.skipped = bool(before) and before == self._task.key(item.name, item.sha256, item.prompt)
        return item.skipped

    def _fail(self, item: Item[R], error: Exception) -> None:
        self._task.fail(self._lvlm, item, error)
        item.data = b""

    def _prepare(self, batch: Batch[R], each: Callable[..., Iterable[Shown | None]] = map) -> Batch[R]:
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
        batch.images = [image for _, image in pictures] if self._task.needs_images() else []
        batch.seconds += time.perf_counter() - started
        return batch

    def _samples(self, item: Item[R]) -> Shown | None:
        """Return the samples for the model, and note warnings about them; None if they cannot be decoded."""

        def decoded() -> OpenedPicture:
            return item.picture.opened(item.content())

        try:
            large = item.pixels > LARGE
            opened = decoded() if large else self._opened.get((item.picture.shown, item.sha256), decoded)
        except Exception as error:
            self._fail(item, error)
            return None
        item.warnings = opened.warnings
        return opened.shown

    def _inputs(self, pictures: Sequence[tuple[Item[R], Shown]]) -> Any:
        return self._task.inputs(self._lvlm, *zip(*pictures, strict=True)) if pictures else None

    def _is_accepted(self, item: Item[R], image: Shown) -> bool:
        try:
            self._task.inputs(self._lvlm, [item], [image])
        except Exception as error:
            if is_final(error):
                raise
            self._fail(item, error if isinstance(error, PictureError) else refused(item.picture.shown, error))
            return False
        return True

    def _decide(self, window: Sequence[Item[R]]) -> None:
        """Choose the batch size by the largest of some pictures, or of later ones if these cannot be prepared."""
        for item in reversed(window):
            try:
                inputs = self._task.inputs(self._lvlm, [item], [item.picture.opened(item.content()).shown])
            except Exception as error:
                if is_final(error):
                    raise
                continue  # its turn to fail comes later
            self.batch_size = self._task.largest_batch(self._lvlm, inputs)
            self._undecided = False
            return

    def _decode(self, batch: Batch[R]) -> None:
        """Give every item its result. A failed batch is tried again in halves, down to single pictures."""
        if not batch.items:
            return
        if len(batch.items) > self.batch_size:
            self._decode_halves(batch)
            return
        started = time.perf_counter()
        picture, show = batch.items[0].picture, self._on_text
        try:
            if batch.failure is not None:
                raise batch.failure
            on_text = None if show is None else lambda text: show(picture, text)
            answers = self._task.answers(self._lvlm, batch, on_text)
        except Exception as error:
            if is_final(error):
                raise
            failure = error
        else:
            each = 1000 * (batch.seconds + time.perf_counter() - started) / len(batch.items)
            for item, answer in zip(batch.items, answers, strict=True):
                self._task.settle(self._lvlm, item, answer, each)
                item.data = b""
            return
        self._failed(batch, failure)

    def _failed(self, batch: Batch[R], failure: Exception) -> None:
        """Retry a failed batch in halves; a single picture fails."""
        if len(batch.items) == 1:
            self._fail(batch.items[0], failure)
            return
        if out_of_memory(failure):
            before, self.batch_size = len(batch.items), len(batch.items) // 2
            self._halvings.append(Halved(before, self.batch_size))
        failure.__traceback__ = None  # it holds on to the memory of the failed try
        batch.inputs = batch.failure = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self._decode_halves(batch)

    def _decode_halves(self, batch: Batch[R]) -> None:
        batch.inputs = None
        batch.images.clear()
        middle = len(batch.items) // 2
        for items in (batch.items[:middle], batch.items[middle:]):
            self._decode(self._prepare(Batch(items, seconds=batch.seconds / 2)))


def _portions(window: Sequence[Item[R]], size: int) -> Iterator[Batch[R]]:
    """Yield batches of at most `size` pictures, fewer if their samples would fill the memory."""
    batch, room = Batch[R]([]), size * LARGE
    for item in window:
        if batch.items and (len(batch.items) == size or item.pixels > room):
            yield batch
            batch, room = Batch[R]([]), size * LARGE
        batch.items.append(item)
        room -= item.pixels
    if batch.items:
        yield batch
