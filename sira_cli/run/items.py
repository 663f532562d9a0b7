"""What a run works on: items, batches of them, and the task on each."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from sira_cli.errors import LongPromptError, NoAnswerError, PictureError, PictureSettingsError, SiraError
from sira_cli.pictures.picture import File, OpenedPicture, Picture

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown
    from sira_cli.models.model import LoadedModel

_log = logging.getLogger(__name__)

R = TypeVar("R")
T = TypeVar("T")


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

    def opened(self) -> OpenedPicture:
        """Return the decoded picture."""
        return self.picture.opened(self.content(), self.sha256)


@dataclass
class Batch(Generic[R]):
    """Pictures that are prepared and worked on together."""

    items: list[Item[R]]
    images: list[Shown] = field(default_factory=list)  # their samples, if the task needs them again
    inputs: Any = None  # of the model
    seconds: float = 0.0  # of the preparation
    failure: Exception | None = None  # that prevented the inputs

    def seeds(self, lvlm: LoadedModel) -> list[int]:
        """Return the seed of each item's text, which is the same in any batch."""
        return lvlm.text_seeds([item.sha256 for item in self.items], [item.prompt for item in self.items])


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield the items in batches of `size`; the last may be smaller."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


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

    def at(self, revision: str, server: str = "") -> Self:
        """Return the task for a revision of the model, on a server."""
        return self

    def model(self, lvlm: Any) -> Any:
        """Return a loaded model under the method and the preset of the task; by default, as it is."""
        return lvlm

    def check_model(self, lvlm: LoadedModel) -> None:
        """Check that a loaded model can do the task, before the first picture."""

    def blank(self, lvlm: LoadedModel) -> R | None:
        """Return a result without a picture: all that is equal in the results of a model; None if nothing is."""
        return None

    def first_prompt(self, picture: Picture) -> str:
        """Return the prompt about a picture, as far as it is known before the picture is read."""
        return picture.prompt or ""

    def complete(self, lvlm: LoadedModel, item: Item[R]) -> None:
        """Change `item.prompt`, if the picture's bytes or columns decide it; called in a thread."""

    def key(self, name: str, image_sha256: str, prompt: str) -> str:
        """Return a hash of everything that decides a picture's result; empty: results are not kept."""
        return ""

    def ends_run(self, error: Exception) -> bool:
        """Return whether an error is about the model or the settings, so that every picture would fail."""
        return isinstance(error, SiraError) and not isinstance(error, PictureError)

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
