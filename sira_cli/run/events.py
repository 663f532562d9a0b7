"""Events of a run over many pictures. A run yields these; a terminal, a server or a test listens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic

from typing_extensions import TypeVar

from sira_cli.pictures.picture import Picture
from sira_cli.run.records import Result

R = TypeVar("R", default=Result)


@dataclass(frozen=True)
class Started:
    """The run begins, with `total` pictures in all."""

    total: int


@dataclass(frozen=True)
class _OfPicture:
    """A picture, its name in the record, and its id: the name, unless a picture has several prompts."""

    picture: Picture
    name: str
    id: str


@dataclass(frozen=True)
class Finished(_OfPicture, Generic[R]):
    """A picture has its result: of a run with records, the record as written."""

    record: R


@dataclass(frozen=True)
class Failed(_OfPicture, Generic[R]):
    """A picture has no text, for the reason `error`; its record says it if results are records."""

    record: R
    error: str


@dataclass(frozen=True)
class Skipped(_OfPicture):
    """A picture was done in an earlier run; `failed`: it failed there."""

    failed: bool = False


@dataclass(frozen=True)
class Halved:
    """Memory was too small for `before` pictures at once; from now on the batch size is `batch_size`."""

    before: int
    batch_size: int


@dataclass(frozen=True)
class StageStarted:
    """A stage of longer work begins, of `total` pieces."""

    stage: str
    total: int


@dataclass(frozen=True)
class Advanced:
    """So many pieces of a stage more are done, which are no pictures of a run; `failed`: without success."""

    count: int
    failed: bool = False


@dataclass(frozen=True)
class Remark:
    """What the user should know about a run, in one line."""

    text: str


PictureEvent = Finished[R] | Failed[R] | Skipped
Event = Started | PictureEvent[R] | Halved


@dataclass
class Counts:
    """Numbers of pictures, of which `ok` and `error` are done in this run, and of tokens generated in it."""

    total: int = 0
    ok: int = 0
    error: int = 0
    ok_before: int = 0
    error_before: int = 0
    tokens: int = 0

    @property
    def failed(self) -> int:
        """Pictures without a text, including those of earlier runs."""
        return self.error + self.error_before

    @property
    def worked(self) -> int:
        """Pictures that this run worked on."""
        return self.ok + self.error

    def add(self, event: PictureEvent[Any], tokens: int = 0) -> None:
        """Count a picture's result, of so many tokens."""
        if isinstance(event, Skipped):
            self.error_before += event.failed
            self.ok_before += not event.failed
        else:
            self.error += isinstance(event, Failed)
            self.ok += isinstance(event, Finished)
            self.tokens += tokens
