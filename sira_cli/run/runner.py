"""A task on many pictures: they are read and prepared ahead in threads, worked on in batches, and yielded in order.

    readers (threads)      bytes, hash, key, size        of the next windows
    preparer (a thread)    samples, image processor      of the next batch
    this thread            the model                     of the current batch

Pictures of similar size, and with it prompts of similar length, are put into one batch, within a window of a few
batches. Results still come in the order of the pictures.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from sira_cli import interrupts
from sira_cli.errors import LongPromptError, NoAnswerError, PictureError, PictureSettingsError, SettingsError, SiraError
from sira_cli.pictures.opening import MEMORY
from sira_cli.pictures.picture import Cache, File, OpenedPicture, Picture
from sira_cli.run.events import Halved

if TYPE_CHECKING:
    import torch

    from sira_cli.methods.prompts import Shown
    from sira_cli.models.model import LoadedModel

_log = logging.getLogger(__name__)

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


@dataclass
class Item(Generic[R]):
    """A picture on its way through a run; `name` is that in the record, `id` is unique in a run."""

    picture: Picture
    name: str
    prompt: str  # given to the model word by word
    id: str = ""  # the name, unless a picture has several prompts
    files: list[File] = field(default_factory=list)  # until it is settled; empty if large, and read again
    sha256: str = ""  # of these (`digest`)
    pixels: int = 0  # of a group all together
    warnings: tuple[str, ...] = ()  # about the picture
    skipped: bool = False  # done in an earlier run
    settled: bool = False  # whether it has all of its result or error, or was skipped
    result: R | None = None
    error: str = ""  # reason for the missing result, in one line

    def __post_init__(self) -> None:
        self.id = self.id or self.name

    def content(self) -> list[File]:
        """Return the picture's files."""
        if self.files:
            return self.files
        files, sha256 = self.picture.read()
        if sha256 != self.sha256:
            raise PictureError(f"{self.picture.label}: changed between two readings; run the command again")
        return files


@dataclass
class Batch(Generic[R]):
    """Pictures that are prepared and worked on together."""

    items: list[Item[R]]
    images: list[Shown] = field(default_factory=list)  # their samples, if the task needs them again
    inputs: Any = None  # of the model
    seconds: float = 0.0  # of the preparation
    failure: Exception | None = None  # that prevented the inputs


def is_final(error: Exception) -> bool:
    """Return whether an error is about the model or the settings, so that every picture would fail."""
    return isinstance(error, SiraError) and not isinstance(error, PictureError)


def message(picture: Picture, error: Exception) -> str:
    """Return the reason why a picture failed, in one line that names it."""
    name, text = picture.label, str(error)
    if isinstance(error, LongPromptError | PictureSettingsError | NoAnswerError):
        return f"{name}: {text}"
    if isinstance(error, PictureError):
        return text
    line = next(iter(text.strip().splitlines()), "")
    if out_of_memory(error):
        return f"{name}: memory does not suffice for it, even alone: {line}"
    _log.debug("%s failed", name, exc_info=error)
    return f"{name}: {type(error).__name__}: {line}"


def out_of_memory(error: Exception) -> bool:
    """Return whether an error means too little memory, so that fewer pictures at once might fit."""
    import torch
    from accelerate.utils.memory import should_reduce_batch_size

    return isinstance(error, torch.OutOfMemoryError | MemoryError) or bool(should_reduce_batch_size(error))


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


class Task(ABC, Generic[R]):
    """Work on each picture. A subclass is a frozen dataclass with `answers`; the other methods fit most tasks.

    For each picture, `Runner` calls in this order:
        complete: in a reader's thread, when the bytes are read.
        key: if an earlier run has an equal one, the picture is skipped.
        inputs: in the preparer's thread, for a batch of pictures whose samples are decoded.
        answers: in the caller's thread, one answer for each item of the batch. Out of memory, the batch is halved and
            called again.
        settle: for each item, with its answer; or `fail`, if any of these raised an error about the picture.

    A `SiraError` of `inputs` or `answers` that is no `PictureError` ends the run; any other error fails its picture.
    """

    kind: ClassVar[str] = "caption"  # part of records; some methods treat `ask` differently

    @abstractmethod
    def answers(
        self, lvlm: LoadedModel, batch: Batch[R], on_text: Callable[[str], None] | None = None
    ) -> Sequence[Any]:
        """Return the model's answer about each picture of a prepared batch.

        Args:
            lvlm: the loaded model under the run's method.
            batch: `items`, what `inputs` returned as `inputs` and, with `needs_images`, their samples as `images`.
            on_text: called with pieces of the text, if `streams` and the batch has one item.
        """

    def settle(self, lvlm: LoadedModel, item: Item[R], answer: Any, milliseconds: float = 0.0) -> None:
        """Give an item its `result`, by default the answer, after `milliseconds` of work on it."""
        item.result = answer

    def fail(self, lvlm: LoadedModel, item: Item[R], error: Exception) -> None:
        """Give an item the reason why it has no result."""
        item.error = message(item.picture, error)

    def complete(self, lvlm: LoadedModel, item: Item[R]) -> None:
        """Change `item.prompt`, if the picture's bytes or columns decide it; called in a thread."""

    def key(self, name: str, image_sha256: str, prompt: str) -> str:
        """Return a hash of everything that decides a picture's result; empty: results are not kept."""
        return ""

    def needs_images(self) -> bool:
        """Return whether `answers` needs the samples."""
        return False

    def streams(self, lvlm: LoadedModel) -> bool:
        """Return whether `answers` takes `on_text` for a picture alone."""
        return False

    def skips_thought(self) -> bool:
        """Return whether the first token is the answer's, also where prompts of this model open a thought."""
        return False

    def kept_open(self) -> int:
        """Return the number of pictures whose samples wait for the next question about them."""
        return 0

    def inputs(self, lvlm: LoadedModel, items: Sequence[Item[R]], images: Sequence[Shown]) -> Any:
        """Return the model's inputs for pictures whose samples are decoded; at least one."""
        prompts, hashes = [item.prompt for item in items], [item.sha256 for item in items]
        return lvlm.prepare(images, prompts, hashes, skip_thought=self.skips_thought())

    def largest_batch(self, lvlm: LoadedModel, inputs: Any) -> int:
        """Run a picture's prompt, and return the number of such pictures that fit into memory."""
        from sira_cli.models.memory import free_memory, measure_picture, most_pictures
        from sira_cli.models.placement import devices_of

        try:
            picture = measure_picture(lvlm, inputs, self.kind)
        except Exception as error:
            if not out_of_memory(error):
                raise
            _log.info("batch size 1: memory does not suffice for one picture")
            return 1
        free = free_memory(*devices_of(lvlm.model))
        size = picture.largest_batch(free, most_pictures(lvlm.model.device))
        each = f"a prompt takes {picture.prefill / 1e9:.3f} GB and a text {picture.text / 1e9:.3f} GB at most"
        _log.info("batch size %d: %s, and %.1f GB of memory may be taken", size, each, free / 1e9)
        return size


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
            if is_final(error):
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

        def decoded() -> OpenedPicture:
            return item.picture.opened(item.content(), item.sha256)

        try:
            key = item.picture.location, item.sha256
            opened = decoded() if item.pixels > LARGE else self._opened.get(key, decoded)
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
            if is_final(error):
                raise
            from sira_cli.models.processor import refused

            self._fail(item, error if isinstance(error, PictureError) else refused(item.picture.label, error))
            return False
        return True

    def _decide(self, window: Sequence[Item[R]]) -> None:
        """Choose the batch size by the largest of some pictures, or of later ones if these cannot be prepared."""
        for item in reversed(window):
            try:
                inputs = self._inputs([(item, item.picture.opened(item.content(), item.sha256).for_prompt)])
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
            if is_final(error):
                raise
            return error
        each = 1000 * (batch.seconds + time.perf_counter() - started) / len(batch.items)
        for item, answer in zip(batch.items, answers, strict=True):
            self._task.settle(self._lvlm, item, answer, each)
            item.files, item.settled = [], True
        return None


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
