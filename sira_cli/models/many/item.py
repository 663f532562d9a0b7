"""A picture on its way through a run, alone or in a batch, and the reason why it failed."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sira_cli.errors import LongPromptError, NoAnswerError, PictureError, PictureSettingsError, SiraError
from sira_cli.pictures.picture import Picture

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown

_log = logging.getLogger(__name__)

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
    from sira_cli.models.many.memory import out_of_memory  # needs torch, unlike a run on a server

    line = next(iter(text.strip().splitlines()), "")
    if out_of_memory(error):
        return f"{name}: memory does not suffice for it, even alone: {line}"
    _log.debug("%s failed", name, exc_info=error)
    return f"{name}: {type(error).__name__}: {line}"
