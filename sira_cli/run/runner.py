"""A task on many pictures: they are read and prepared ahead in threads, worked on in batches, and yielded in order.

    readers (threads)      bytes, hash, key, size        of the next windows
    preparer (a thread)    samples, image processor      of the next batch
    this thread            the model                     of the current batch

Pictures of similar size, and with it prompts of similar length, are put into one batch, within a window of a few
batches. Results still come in the order of the pictures.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

import torch

from sira_cli.pictures.picture import Picture
from sira_cli.run.batch import (
    AUTO,
    FIRST,
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
from sira_cli.run.task import LARGE, Task

R = TypeVar("R")

READERS = 4
FLUSH = 64  # pictures that an earlier run has done are given out together
HELD = 256  # pictures on their way when one that is slow to read is waited for
WINDOW = 4  # batches, within which pictures are sorted by size


class Runner(Generic[R]):
    """Many items, and a task on each, on this machine.

    Attributes:
        batch_size: number of pictures worked on together; halved when memory is too small, for the rest of the
            run. Under `auto` it is 1 until the first few pictures are read.
    """

    def __init__(
        self,
        task: Task[Any, R],
        batch_size: BatchSize | None = None,
        on_text: Callable[[Picture, str], None] | None = None,
    ) -> None:
        """Prepare a run."""
        check_batch_size(batch_size)
        self._task, lvlm = task, task.lvlm
        usual = usual_batch_size(lvlm.model.device) if on_text is None else 1
        batch_size = usual if batch_size is None else batch_size
        self._undecided = batch_size == AUTO and lvlm.batches
        self.batch_size = batch_size if isinstance(batch_size, int) and lvlm.batches else 1
        self._on_text = on_text if self._one_by_one and task.streams else None
        self._halvings: deque[Halved] = deque()

    def run(self, todo: Iterable[Item[R]]) -> Generator[Item[R] | Halved, None, None]:
        """Work on items, and yield each when it is settled, in order."""
        readers = ThreadPoolExecutor(READERS, "sira-reader")
        preparer = ThreadPoolExecutor(1, "sira-preparer")
        given_out: deque[Item[R]] = deque()  # in order, waiting for their results
        try:
            batches = self._batches(self._read(readers, todo, given_out), given_out)
            prepare = functools.partial(self._task.prepare, each=readers.map)
            prepared = ahead(preparer, prepare, batches, 2)
            for batch in prepared:
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

    @property
    def _window(self) -> int:
        """Number of pictures that are sorted by size."""
        return FIRST if self._undecided else WINDOW * self.batch_size

    def _read(
        self, readers: ThreadPoolExecutor, todo: Iterable[Item[R]], given_out: deque[Item[R]]
    ) -> Iterator[Item[R] | None]:
        """Read ahead. If pictures are decoded one by one, a slow one does not delay the others."""

        in_order = self._task.in_order or self._on_text is not None

        def depth() -> int:
            return READERS + self._window

        def reach() -> int:
            if not self._one_by_one:
                return 0
            return 1 if in_order or len(given_out) >= HELD else depth()

        return as_they_come(readers, self._task.read, _taken(todo, given_out), depth, reach)

    def _batches(self, read: Iterator[Item[R] | None], given_out: deque[Item[R]]) -> Iterator[Batch[R]]:
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
                if not window and (not item.skipped or len(given_out) >= FLUSH):
                    yield Batch([])  # lets out those that need no decoding
            if not self._one_by_one:
                window.sort(key=lambda item: item.pixels)  # stable
            if self._undecided and len(window) > 1:
                self._decide(window)
            yield from _portions(window, self.batch_size)
            if not window:
                return

    @property
    def _one_by_one(self) -> bool:
        """Whether pictures are decoded one by one."""
        return self.batch_size == 1 and not self._undecided

    def _decide(self, window: Sequence[Item[R]]) -> None:
        """Choose the batch size by the largest of some pictures, or of later ones if these cannot be prepared."""
        for item in reversed(window):
            try:
                inputs = self._task.inputs_alone(item)
            except Exception as error:
                if is_final(error):
                    raise
                continue  # its turn to fail comes later
            self.batch_size = self._task.largest_batch(inputs)
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
        try:
            if batch.failure is not None:
                raise batch.failure
            answers = self._task.answers(batch, self._on_text)
        except Exception as error:
            if is_final(error):
                raise
            failure = error
        else:
            each = 1000 * (batch.seconds + time.perf_counter() - started) / len(batch.items)
            for item, answer in zip(batch.items, answers, strict=True):
                self._task.settle(item, answer, each)
            return
        self._failed(batch, failure)

    def _failed(self, batch: Batch[R], failure: Exception) -> None:
        """Retry a failed batch in halves; a single picture fails."""
        if len(batch.items) == 1:
            self._task.fail(batch.items[0], failure)
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
            self._decode(self._task.prepare(Batch(items, seconds=batch.seconds / 2)))


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


def _taken(todo: Iterable[Item[R]], given_out: deque[Item[R]]) -> Iterator[Item[R]]:
    """Note each picture as running; this runs in the main thread."""
    for item in todo:
        given_out.append(item)
        yield item
