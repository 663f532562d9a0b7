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
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from sira_cli import interrupts
from sira_cli.errors import PictureError, SettingsError
from sira_cli.pictures.opening import MEMORY
from sira_cli.pictures.picture import Cache, File, OpenedPicture, Picture
from sira_cli.run.events import Halved
from sira_cli.run.items import Batch, Item, Task, out_of_memory

if TYPE_CHECKING:
    import torch

    from sira_cli.methods.prompts import Shown
    from sira_cli.models.model import LoadedModel

T = TypeVar("T")
R = TypeVar("R")

BatchSize = int | Literal["auto"]
AUTO: Literal["auto"] = "auto"
WINDOW = 4  # batches, within which pictures are sorted by size
FIRST = 32  # pictures, the largest of which decides an automatic batch size
READERS = 4
FLUSH = 64  # pictures that an earlier run has done are given out together
LARGE = 2**24  # pixels; the samples of larger pictures do not wait
READ = 8  # pictures whose bytes wait for the next question about them
KEPT = 2**22  # bytes; larger files are read again when they are decoded
_LOOK = 0.5  # seconds between looks for an interrupt


def check_batch_size(batch_size: BatchSize | None) -> None:
    """Check a batch size; None means the default."""
    is_number = isinstance(batch_size, int) and not isinstance(batch_size, bool) and batch_size > 0
    if not (batch_size is None or batch_size == AUTO or is_number):
        raise SettingsError(f"`batch_size=` {batch_size!r}: expected a whole number from 1 on, or auto")


def usual_batch_size(device: torch.device) -> BatchSize:
    """Return the default batch size: `auto` on a GPU of NVIDIA or AMD, else 1."""
    return AUTO if device.type == "cuda" else 1


def ahead(pool: ThreadPoolExecutor, work: Callable[[T], R], items: Iterable[T], depth: int) -> Iterator[R]:
    """Map in order, with at most `depth` items in progress."""
    waiting: deque[Future[R]] = deque()
    for item in items:
        waiting.append(pool.submit(work, item))
        if len(waiting) >= depth:
            yield settled(waiting.popleft())
    while waiting:
        yield settled(waiting.popleft())


def settled(future: Future[R]) -> R:
    """Return a result; an interrupt that a library has swallowed is raised without waiting."""
    while not future.done():
        wait([future], _LOOK)
        interrupts.check()
    return future.result()


class Runner(Generic[R]):
    """Many items, and a task on each, by a loaded model.

    `batch_size` is halved for the rest of a run when memory is too small; `auto` is 1 until a few pictures are read.
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
        if batch_size is None:
            batch_size = usual_batch_size(lvlm.model.device) if on_text is None else 1
        batches = lvlm is None or lvlm.batches
        self._undecided = batch_size == AUTO and batches
        self.batch_size = batch_size if isinstance(batch_size, int) and batches else 1
        self._on_text = on_text if self._window == 1 and task.streams(lvlm) else None
        self._opened: Cache[OpenedPicture] = Cache(task.kept_open())  # questions about one picture follow each other
        self._files: Cache[tuple[list[File], str]] = Cache(READ if task.kept_open() else 0)
        self._halvings: deque[Halved] = deque()
        self._given_out: deque[Item[R]] = deque()  # in order, waiting for their results

    def run(self, todo: Iterable[Item[R]]) -> Generator[Item[R] | Halved, None, None]:
        """Work on items, and yield each when it is settled, in order."""
        readers = ThreadPoolExecutor(READERS, "sira-reader")
        preparer = ThreadPoolExecutor(1, "sira-preparer")
        given_out = self._given_out = deque()
        try:
            batches = self.batches(readers, todo)
            for batch in ahead(preparer, lambda batch: self._prepare(batch, readers.map), batches, 2):
                self._decode(batch)
                while self._halvings:
                    yield self._halvings.popleft()
                while given_out and given_out[0].settled:
                    yield given_out.popleft()
            while given_out:  # skipped, all of them
                yield given_out.popleft()
        finally:
            for pool in (readers, preparer):
                pool.shutdown(wait=False, cancel_futures=True)

    def work(self, items: Sequence[Item[R]]) -> None:
        """Prepare items that are read, work on them together, and settle each."""
        self._decode(self._prepare(Batch(list(items))))

    def batches(self, readers: ThreadPoolExecutor, todo: Iterable[Item[R]]) -> Iterator[Batch[R]]:
        """Read items ahead, and put those that are left to do into batches; an empty batch lets out the others."""
        window = list[Item[R]]()
        for item in self._read_ahead(readers, todo):
            self._given_out.append(item)
            if not item.settled:
                window.append(item)
            elif not window and (not item.skipped or len(self._given_out) >= FLUSH):
                yield Batch([])
            if len(window) >= self._window:
                yield from self._portions(window)
                window = []
        yield from self._portions(window)

    @property
    def _window(self) -> int:
        """Number of pictures that are sorted by size."""
        return FIRST if self._undecided else 1 if self.batch_size == 1 else WINDOW * self.batch_size

    def _read_ahead(self, readers: ThreadPoolExecutor, todo: Iterable[Item[R]]) -> Iterator[Item[R]]:
        """Yield items in order as they are read; the window may grow meanwhile."""
        waiting: deque[Future[Item[R]]] = deque()
        for item in todo:
            waiting.append(readers.submit(self._read, item))
            if len(waiting) >= READERS + self._window:
                yield settled(waiting.popleft())
        while waiting:
            yield settled(waiting.popleft())

    def _portions(self, window: list[Item[R]]) -> Iterator[Batch[R]]:
        """Sort a window by size, and yield its batches."""
        window.sort(key=lambda item: item.pixels)  # stable
        if self._undecided and len(window) > 1:
            self._decide(window)
        yield from portions(window, self.batch_size)

    def _read(self, item: Item[R]) -> Item[R]:
        """Get bytes, key and size. Samples are decoded later, so that few are in memory."""
        try:
            with MEMORY.taken(item.picture.file_size()):
                item.files, item.sha256 = item.picture.read_once(self._files)
                self._task.complete(self._lvlm, item)
                if not self._is_done(item):
                    item.pixels = item.picture.pixels(item.files)
                size = sum(len(data) for _, data in item.files if isinstance(data, bytes))
                if size > KEPT and item.picture.is_here():
                    item.files = []
        except Exception as error:
            if not self._is_done(item):
                self._fail(item, error)
        if item.skipped:
            item.files, item.settled = [], True
        return item

    def _is_done(self, item: Item[R]) -> bool:
        """Return whether an earlier run has done equal work, and mark the item as skipped."""
        before = self._done(item.id)
        item.skipped = bool(before) and before == self._task.key(item.name, item.sha256, item.prompt)
        return item.skipped

    def _fail(self, item: Item[R], error: Exception) -> None:
        self._task.fail(self._lvlm, item, error)
        item.files, item.settled = [], True

    def _prepare(self, batch: Batch[R], each: Callable[..., Iterable[Shown | None]] = map) -> Batch[R]:
        """Decode the samples of pictures that are read, and give the batch the model's inputs.

        Pictures that fail are settled and leave the batch. If memory is too small, it has the error and no inputs.
        """
        started = time.perf_counter()
        opened = zip(batch.items, each(self._samples, batch.items), strict=True)
        pictures = [(item, image) for item, image in opened if image is not None]
        try:
            batch.inputs = self._inputs(pictures)
        except Exception as error:
            if self._task.ends_run(error):
                raise
            if out_of_memory(error):
                batch.failure = error
            else:  # the processor refused one of them, but which?
                pictures = [picture for picture in pictures if self._is_accepted(*picture)]
                batch.inputs = self._inputs(pictures)
        batch.items = [item for item, _ in pictures]
        # Samples that are not needed again are decoded again if the batch has to be halved.
        batch.images = [image for _, image in pictures] if self._task.needs_images() else []
        batch.seconds += time.perf_counter() - started
        return batch

    def _samples(self, item: Item[R]) -> Shown | None:
        """Return the samples for the model, and note warnings about them; None if they cannot be decoded."""
        try:
            key = item.picture.location, item.sha256
            opened = item.opened() if item.pixels > LARGE else self._opened.get(key, item.opened)
        except Exception as error:
            self._fail(item, error)
            return None
        item.warnings = opened.warnings
        return opened.for_prompt

    def _inputs(self, pictures: Sequence[tuple[Item[R], Shown]]) -> Any:
        return self._task.inputs(self._lvlm, *zip(*pictures, strict=True)) if pictures else None

    def _is_accepted(self, item: Item[R], image: Shown) -> bool:
        try:
            self._inputs([(item, image)])
        except Exception as error:
            if self._task.ends_run(error):
                raise
            from sira_cli.models.processor import refused

            self._fail(item, error if isinstance(error, PictureError) else refused(item.picture.label, error))
            return False
        return True

    def _decide(self, window: Sequence[Item[R]]) -> None:
        """Choose the batch size by the largest of some pictures, or of later ones if these cannot be prepared."""
        for item in reversed(window):
            try:
                inputs = self._inputs([(item, item.opened().for_prompt)])
            except Exception as error:
                if self._task.ends_run(error):
                    raise
                continue  # its turn to fail comes later
            self.batch_size = self._task.largest_batch(self._lvlm, inputs)
            self._undecided = False
            return

    def _decode(self, batch: Batch[R]) -> None:
        """Give every item its result. A failed batch is tried again in halves, down to single pictures."""
        if not batch.items:
            return
        if len(batch.items) <= self.batch_size:
            failure = self._answered(batch)
            if failure is None:
                return
            if len(batch.items) == 1:
                self._fail(batch.items[0], failure)
                return
            if out_of_memory(failure):
                before, self.batch_size = len(batch.items), len(batch.items) // 2
                self._halvings.append(Halved(before, self.batch_size))
            failure.__traceback__ = None  # it holds on to the memory of the failed try
            import torch

            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        batch.inputs = batch.failure = None
        batch.images.clear()
        middle = len(batch.items) // 2
        for items in (batch.items[:middle], batch.items[middle:]):
            self._decode(self._prepare(Batch(items, seconds=batch.seconds / 2)))

    def _answered(self, batch: Batch[R]) -> Exception | None:
        """Give every item its answer; else return the error."""
        started = time.perf_counter()
        picture, show = batch.items[0].picture, self._on_text
        try:
            if batch.failure is not None:
                raise batch.failure
            on_text = None if show is None else lambda text: show(picture, text)
            answers = self._task.answers(self._lvlm, batch, on_text)
        except Exception as error:
            if self._task.ends_run(error):
                raise
            return error
        each = 1000 * (batch.seconds + time.perf_counter() - started) / len(batch.items)
        for item, answer in zip(batch.items, answers, strict=True):
            self._task.settle(self._lvlm, item, answer, each)
            item.files, item.settled = [], True
        return None


class ConcurrentRunner(Runner[R]):
    """Pictures side by side, a thread for each, whose answers come from elsewhere: from a server, or from vLLM."""

    def __init__(
        self,
        lvlm: Any,
        task: Task[R],
        at_once: int,
        read_ahead: int = 0,
        *,
        done: Callable[[str], str],
    ) -> None:
        """Prepare a run; `read_ahead` more pictures are read while the answers about `at_once` are on their way."""
        super().__init__(lvlm, task, at_once, done=done)
        self._threads = self.batch_size + read_ahead

    def run(self, todo: Iterable[Item[R]]) -> Generator[Item[R] | Halved, None, None]:
        """Work on items, and yield each when it is settled, in order."""
        pool = ThreadPoolExecutor(self._threads, "sira-picture")
        try:
            yield from ahead(pool, self._work, todo, self._threads)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _work(self, item: Item[R]) -> Item[R]:
        if not self._read(item).settled:
            self.work([item])
        return item


def portions(window: Sequence[Item[R]], size: int) -> Iterator[Batch[R]]:
    """Yield batches of at most `size` pictures, fewer if their samples would fill the memory."""
    batch, free = Batch[R]([]), size * LARGE
    for item in window:
        if batch.items and (len(batch.items) == size or item.pixels > free):
            yield batch
            batch, free = Batch[R]([]), size * LARGE
        batch.items.append(item)
        free -= item.pixels
    if batch.items:
        yield batch
