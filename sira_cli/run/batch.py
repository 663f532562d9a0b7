"""Pictures on their way through a run, the sizes of batches, and work that threads do ahead of its use."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from sira_cli import interrupts
from sira_cli.errors import (
    LongPromptError,
    NoAnswerError,
    PictureError,
    PictureSettingsError,
    SettingsError,
    SiraError,
)
from sira_cli.pictures.picture import Picture

if TYPE_CHECKING:
    import torch

    from sira_cli.methods.prompts import Shown
    from sira_cli.models.memory import PictureMemory

_log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")


@dataclass
class Item(Generic[R]):
    """A picture on its way through a run.

    Attributes:
        picture: where it is.
        name: its name in the record.
        prompt: given to the model word by word.
        id: unique in a run; the name, unless a picture has several prompts.
        read: whether its reading has ended.
        data: the file's content, until it is settled; also empty if it is large and can be read again.
        sha256: of these bytes (`Picture.digest`).
        pixels: number of pixels, of a group all together.
        warnings: about the picture.
        skipped: whether it was done in an earlier run.
        result: the task's result, when it exists.
        error: reason for the missing result, in one line.
    """

    picture: Picture
    name: str
    prompt: str
    id: str = ""
    read: bool = False
    data: bytes = b""
    sha256: str = ""
    pixels: int = 0
    warnings: tuple[str, ...] = ()
    skipped: bool = False
    result: R | None = None
    error: str = ""

    def __post_init__(self) -> None:
        self.id = self.id or self.name

    def content(self) -> bytes:
        """Return the file's content."""
        if self.data:
            return self.data
        data = self.picture.read()
        if self.picture.digest(data) != self.sha256:
            raise PictureError(f"{self.picture.shown}: changed between two readings; run the command again")
        return data

    @property
    def settled(self) -> bool:
        """Whether it has a result or an error, or was skipped."""
        return self.skipped or self.result is not None or bool(self.error)


@dataclass
class Batch(Generic[R]):
    """Pictures that are prepared and worked on together.

    Attributes:
        items: the pictures.
        images: their samples, if needed again.
        inputs: inputs of the model; None: not made, or not needed.
        seconds: time of the preparation.
        failure: the error that prevented the inputs.
    """

    items: list[Item[R]]
    images: list[Shown] = field(default_factory=list)
    inputs: Any = None
    seconds: float = 0.0
    failure: Exception | None = None


def is_final(error: Exception) -> bool:
    """Return whether an error is about the model or the settings, so that every picture would fail."""
    return isinstance(error, SiraError) and not isinstance(error, PictureError)


def message(picture: Picture, error: Exception) -> str:
    """Return the reason why a picture failed, in one line that names it."""
    name, text = picture.shown, str(error)
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


BatchSize = int | Literal["auto"]
AUTO: Literal["auto"] = "auto"
WINDOW = 4  # batches, within which pictures are sorted by size
FIRST = 32  # pictures, the largest of which decides an automatic batch size


def check_batch_size(batch_size: BatchSize | None) -> None:
    """Check a batch size; None means the default."""
    is_number = isinstance(batch_size, int) and not isinstance(batch_size, bool) and batch_size > 0
    if not (batch_size is None or batch_size == AUTO or is_number):
        raise SettingsError(f"`batch_size=` {batch_size!r}: expected a whole number from 1 on, or auto")


def usual_batch_size(device: torch.device) -> BatchSize:
    """Return the default batch size: `auto` on a GPU of NVIDIA or AMD, else 1."""
    return AUTO if device.type == "cuda" else 1


def most_that_fit(model: Any, measure: Callable[[], PictureMemory], says: str) -> int:
    """Measure the memory of one picture, and return the number that fits."""
    from sira_cli.models.memory import free_memory, most_pictures
    from sira_cli.models.placement import devices_of

    try:
        picture = measure()
    except Exception as error:
        if not out_of_memory(error):
            raise
        _log.info("batch size 1: memory does not suffice for one picture")
        return 1
    free = free_memory(*devices_of(model))
    size = picture.largest_batch(free, most_pictures(model.device))
    numbers = says.format(prompt=picture.prefill / 1e9, text=picture.text / 1e9, free=free / 1e9)
    _log.info("batch size %d: %s", size, numbers)
    return size


_PATIENCE = 0.05  # seconds
_LOOK = 0.5  # seconds between looks for an interrupt


def ahead(pool: ThreadPoolExecutor, work: Callable[[T], R], items: Iterable[T], depth: int) -> Iterator[R]:
    """Map in order, with at most `depth` items in progress."""
    waiting: deque[Future[R]] = deque()
    for item in items:
        waiting.append(pool.submit(work, item))
        if len(waiting) >= depth:
            yield _settled(waiting.popleft())
    while waiting:
        yield _settled(waiting.popleft())


def as_they_come(
    pool: ThreadPoolExecutor,
    work: Callable[[T], R],
    items: Iterable[T],
    depth: Callable[[], int],
    reach: Callable[[], int],
) -> Iterator[R | None]:
    """Map as `ahead`, to `depth()`, but yield the first finished of the next `reach()` items; with 0, in order."""
    waiting: list[Future[R]] = []
    for item in items:
        waiting.append(pool.submit(work, item))
        while len(waiting) >= depth():
            yield _next(waiting, reach())
    while waiting:
        yield _next(waiting, reach())


def _next(waiting: list[Future[R]], reach: int) -> R | None:
    number = 0
    if reach:
        wait(waiting[:reach], _PATIENCE, FIRST_COMPLETED)
        number = next((number for number, each in enumerate(waiting[:reach]) if each.done()), -1)
    return None if number < 0 else _settled(waiting.pop(number))


def _settled(future: Future[R]) -> R:
    """Return a result; an interrupt that a library has swallowed is raised without waiting."""
    while not future.done():
        wait([future], _LOOK)
        interrupts.check()
    return future.result()
