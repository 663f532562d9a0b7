"""Many pictures and a prompt about each: read and prepared ahead in threads, decoded in batches, given out in order.

    readers (threads)      bytes, hash, key, size        of the next windows
    preparer (a thread)    samples, image processor      of the next batch
    this thread            the model                     of the current batch

Pictures of similar size, and with it prompts of similar length, are put into one batch, within a window of a few
batches. Results come in the order of the pictures all the same.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from PIL import Image

from sira_cli.errors import PictureError, SettingsError, SiraError
from sira_cli.models.choices import choose
from sira_cli.models.lvlm import Answer, Lvlm, refused
from sira_cli.models.records import Result
from sira_cli.pictures.opening import decode_picture, one_line, picture_size, read_picture
from sira_cli.pictures.sources import STDIN
from sira_cli.runs.memory import out_of_memory, peak_memory

READERS = 4
WINDOW = 4  # batches, among which pictures are sorted by size

T = TypeVar("T")
R = TypeVar("R")
_log = logging.getLogger(__name__)


@dataclass
class Item:
    """A picture on its way through a run.

    Attributes:
        path: where it is; `-` is stdin.
        name: of the picture in its record.
        prompt: word by word as given to the model.
        id: what tells it apart from others; the name, unless a picture comes with several prompts.
        data: the file's bytes, until they are decoded.
        sha256: of these bytes, in hexadecimal.
        size: width and height in pixels.
        skipped: done in an earlier run.
        result: the record, once there is one; None for a picture that was skipped.
    """

    path: str
    name: str
    prompt: str
    id: str = ""
    data: bytes = b""
    sha256: str = ""
    size: tuple[int, int] = (0, 0)
    skipped: bool = False
    result: Result | None = None

    def __post_init__(self) -> None:
        self.id = self.id or self.name


@dataclass
class _Batch:
    """Pictures that are decoded together; `inputs` is None if there is nothing to decode."""

    items: list[Item]
    images: list[Image.Image] = field(default_factory=list)
    inputs: Any = None
    seconds: float = 0.0


class BatchRun:
    """Many pictures, and a prompt about each.

    Attributes:
        batch_size: how many are decoded together; halved when memory does not suffice.
    """

    def __init__(
        self,
        lvlm: Lvlm,
        task: str,
        prompt: str,
        *,
        batch_size: int = 1,
        words: bool = False,
        choices: Sequence[str] = (),
        done: Callable[[str], str] = lambda name: "",
        on_text: Callable[[Item, str], None] | None = None,
    ) -> None:
        """Prepare a run.

        Args:
            lvlm: the model.
            task: `caption` or `ask`, for the records.
            prompt: word by word as given to the model, about pictures that bring none.
            batch_size: 1 is used for sampling: a seed must give the same text whatever the other pictures are.
            words: score the words of each text.
            choices: pick one of these answers, instead of decoding.
            done: asked with an item's id for the key of the work on it that was done before; such is skipped.
            on_text: with batches of one, called with pieces of text as they are decoded.

        Raises:
            SettingsError: the prompt holds the model's placeholder for a picture.
        """
        lvlm.check_prompt(prompt)
        self._lvlm, self._task, self._prompt, self._done = lvlm, task, prompt, done
        self.batch_size = 1 if lvlm.preset.generation.temperature > 0 else batch_size
        self._on_text = on_text if self.batch_size == 1 and not words else None
        self._words, self._choices = words, choices

    def blank(self) -> Result:
        """What all results of this run have in common, in one without a picture."""
        return self._lvlm.result(self._task, "", "", self._prompt, self._no_answer(""))

    def _no_answer(self, error: str) -> Answer:
        return Answer(error=error, words=[] if self._words else None, choices=[] if self._choices else None)

    def facts(self) -> dict[str, Any]:
        """For the run's report: the model as loaded, where it runs, and what it took so far."""
        lvlm = self._lvlm
        return {
            "model": {"revision": lvlm.revision, "k": lvlm.k, "layers": lvlm.layers},
            "device": str(lvlm.model.device),
            "dtype": lvlm.dtype,
            "batch_size": self.batch_size,
            "peak_memory_bytes": peak_memory(),
        }

    def failed(self, path: str, name: str, message: str) -> Item:
        """A picture that is given up without being opened."""
        item = Item(path, name, self._prompt)
        self._settle(item, self._no_answer(f"{one_line(path)}: {message}"))
        return item

    def results(self, pictures: Iterable[tuple[str, str]]) -> Generator[Item, None, None]:
        """Every picture, in order, with its result, or skipped.

        Args:
            pictures: where each is, and its name in the record.

        Raises:
            SiraError: about the model or the settings: no picture would do better.
        """
        return self.answers(
            Item(path, name, self._prompt, data=sys.stdin.buffer.read() if path == STDIN else b"")
            for path, name in pictures
        )

    def answers(self, todo: Iterable[Item]) -> Generator[Item, None, None]:
        """Every item, in order, with its result, or skipped.

        Raises:
            SiraError: as `results`.
        """
        self._readers = ThreadPoolExecutor(READERS, "sira-reader")
        preparer = ThreadPoolExecutor(1, "sira-preparer")
        given_out: deque[Item] = deque()  # in order, waiting for their results
        try:
            read = _ahead(self._readers, self._read, todo, depth=READERS + WINDOW * self.batch_size)
            batches = self._batches(read, given_out)
            for batch in _ahead(preparer, self._prepare, batches, depth=2):
                self._decode(batch)
                while given_out and (given_out[0].skipped or given_out[0].result is not None):
                    yield given_out.popleft()
        finally:
            for pool in (self._readers, preparer):
                pool.shutdown(wait=False, cancel_futures=True)

    def _read(self, item: Item) -> Item:
        """Bytes, key and size; the samples are decoded when their turn comes, so that few are in memory."""
        try:
            if item.path != STDIN:
                item.data = read_picture(item.path)
            item.sha256 = hashlib.sha256(item.data).hexdigest()
            if not self._is_done(item):
                item.size = picture_size(item.path, item.data)
        except Exception as error:
            if not self._is_done(item):
                self._fail(item, error)
        if item.skipped or item.result is not None:
            item.data = b""
        return item

    def _is_done(self, item: Item) -> bool:
        key = self._lvlm.key(self._task, item.name, item.sha256, item.prompt)
        item.skipped = key == self._done(item.id)
        return item.skipped

    def _batches(self, read: Iterator[Item], given_out: deque[Item]) -> Iterator[_Batch]:
        while True:
            window: list[Item] = []
            for item in read:
                given_out.append(item)
                if not item.skipped and item.result is None:
                    window.append(item)
                if len(window) == WINDOW * self.batch_size:
                    break
                if not window:
                    yield _Batch([])  # lets those that need no decoding out
            window.sort(key=lambda item: item.size[0] * item.size[1])  # stable
            size = self.batch_size
            for start in range(0, len(window), size):
                yield _Batch(window[start : start + size])
            if not window:
                return

    def _prepare(self, batch: _Batch) -> _Batch:
        started = time.perf_counter()
        pictures = []
        for item, image in zip(batch.items, self._readers.map(self._samples, batch.items), strict=True):
            if image is not None:
                pictures.append((item, image))
        try:
            batch.inputs = self._inputs(pictures)
        except SiraError:
            raise
        except Exception:  # of one of them; which?
            pictures = [(item, image) for item, image in pictures if self._is_accepted(item, image)]
            batch.inputs = self._inputs(pictures)
        batch.items, batch.images = [item for item, _ in pictures], [image for _, image in pictures]
        batch.seconds = time.perf_counter() - started
        return batch

    def _samples(self, item: Item) -> Image.Image | None:
        data, item.data = item.data, b""
        try:
            return decode_picture(item.path, data)
        except Exception as error:
            self._fail(item, error)
            return None

    def _inputs(self, pictures: list[tuple[Item, Image.Image]]) -> Any:
        if not pictures:
            return None
        return self._lvlm.prepare([image for _, image in pictures], [item.prompt for item, _ in pictures])

    def _is_accepted(self, item: Item, image: Image.Image) -> bool:
        try:
            self._inputs([(item, image)])
        except SiraError:
            raise
        except Exception as error:
            self._fail(item, refused(item.path, error))
            return False
        return True

    def _decode(self, batch: _Batch) -> None:
        """Give every item its result. What fails is tried again in halves, down to single pictures."""
        if batch.inputs is None:
            return
        started = time.perf_counter()
        failure: Exception | None = None
        if len(batch.items) <= self.batch_size:
            try:
                answers = self._answers(batch)
            except SiraError:
                raise
            except Exception as error:
                failure = error
            else:
                each = 1000 * (batch.seconds + time.perf_counter() - started) / len(batch.items)
                for item, answer in zip(batch.items, answers, strict=True):
                    self._settle(item, answer, each)
                return
        batch.inputs = None
        if len(batch.items) == 1:
            assert failure is not None
            self._fail(batch.items[0], failure)
            return
        if failure is not None:
            if out_of_memory(failure):
                self.batch_size = len(batch.items) // 2
                _log.warning("out of memory with %d pictures at once, now %d", len(batch.items), self.batch_size)
            failure.__traceback__ = None  # it holds on to the memory of the failed try
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        middle = len(batch.items) // 2
        for part in (slice(None, middle), slice(middle, None)):
            items, images = batch.items[part], batch.images[part]
            inputs = self._inputs(list(zip(items, images, strict=True)))
            self._decode(_Batch(items, images, inputs, batch.seconds / 2))

    def _answers(self, batch: _Batch) -> list[Answer]:
        if self._choices:
            return choose(self._lvlm, batch.inputs, self._choices)
        on_text = self._on_text
        stream = None if on_text is None else lambda text: on_text(batch.items[0], text)
        return self._lvlm.answer(batch.inputs, stream, words=self._words, task=self._task)

    def _fail(self, item: Item, error: Exception) -> None:
        name = one_line(item.path)
        message = str(error)
        if not isinstance(error, PictureError):
            message = f"{name}: {type(error).__name__}: {(message.strip().splitlines() or [''])[0]}"
            _log.debug("%s failed", name, exc_info=error)
        self._settle(item, self._no_answer(message))

    def _settle(self, item: Item, answer: Answer, milliseconds: float = 0.0) -> None:
        item.result = self._lvlm.result(self._task, item.name, item.sha256, item.prompt, answer, milliseconds)


def check_prompts(lvlm: Lvlm, asked: Iterable[tuple[str, str]]) -> None:
    """Whether prompts can be asked, before any picture is read.

    Args:
        lvlm: the model.
        asked: prompts, and the picture that each is about.

    Raises:
        SettingsError: one holds the model's placeholder for a picture.
    """
    for prompt, picture in asked:
        try:
            lvlm.check_prompt(prompt)
        except SettingsError as error:
            raise SettingsError(f"{prompt!r} about {picture}: {error}") from None


def _ahead(pool: ThreadPoolExecutor, work: Callable[[T], R], items: Iterable[T], depth: int) -> Iterator[R]:
    """`map` in order, with at most `depth` items taken and not yet handed on."""
    waiting: deque[Future[R]] = deque()
    for item in items:
        waiting.append(pool.submit(work, item))
        if len(waiting) >= depth:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
