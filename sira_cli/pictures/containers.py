"""Files that hold many pictures (shards, tables), and the pictures inside."""

from __future__ import annotations

import functools
import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from sira_cli.errors import PictureError, SettingsError
from sira_cli.pictures.names import as_text, one_line
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.sources import located

_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


@dataclass(frozen=True)
class Container(ABC):
    """A file that holds many pictures.

    Attributes:
        location: its path or URI.
        relative: its path below the folder that was given, or `location`; decides shards.
        left_out: numbers of files inside that are not read, by ending; known after `pictures`.
    """

    location: str
    relative: str
    left_out: Counter[str] = field(default_factory=Counter, kw_only=True, compare=False)

    @abstractmethod
    def pictures(self) -> Iterator[Picture]:
        """Yield the pictures inside, in order. An unreadable one becomes a picture that raises its error when opened.

        Raises:
            DataError: the file is not of the expected kind.
            SettingsError: a setting does not fit the file.
        """


@dataclass(frozen=True)
class ContainedPicture(Picture):
    """A picture inside a file that holds many.

    Attributes:
        container: path or URI of the file.
        member: its name inside the file; empty for the file as a whole.
    """

    container: str
    member: str

    @property
    def identity(self) -> str:
        """The path without detours, and the name inside."""
        return f"{_identity(self.container)}/{self.member}"

    @property
    def container_name(self) -> str:
        """The name of the file that holds it, without its folder."""
        return as_text(PurePath(self.container).name)

    @property
    def member_key(self) -> str:
        """Unique key within the file."""
        return as_text(self.member)

    @property
    def has_columns(self) -> bool:
        """Whether a prompt's `{names}` are columns: yes."""
        return True

    @property
    def address(self) -> str:
        """The address of the file that holds it, and its name inside."""
        return self._below(located(self.container).address)

    @property
    def depends_on_folder(self) -> bool:
        """Whether the path of the file that holds it is relative."""
        return located(self.container).depends_on_folder

    def name_in(self, folder: Path | None) -> str:
        """Return the name of the file that holds it, as seen from `folder`, and its name inside."""
        return self._below(located(self.container).name_in(folder))

    def text_file(self, extension: str) -> Path:
        """Refuse: nothing is written into the file that holds it."""
        raise SettingsError(f"{self.shown}: texts are not written into {self.container_name}: give `output_dir=`")

    def _below(self, container: str) -> str:
        return f"{container}/{as_text(self.member)}" if self.member else container


@dataclass(frozen=True)
class BrokenPicture(ContainedPicture):
    """A picture that is already known to be unreadable.

    Attributes:
        fault: the error, for messages.
    """

    fault: str

    def is_missing(self) -> bool:
        """Return whether the file that should hold the picture does not exist."""
        return located(self.container).is_missing()

    def read(self) -> bytes:
        """Raise the error."""
        raise PictureError(f"{self.shown}: {self.fault}")


@functools.lru_cache(maxsize=1024)  # many pictures share few files
def _identity(container: str) -> str:
    return located(container).identity


def expand_ranges(path: str) -> Iterator[str]:
    """Yield the paths of a pattern such as `cc3m-{00000..00575}.tar`; any other path as it is.

    Raises:
        SettingsError: a range ends before it begins.
    """
    match = _RANGE.search(path)
    if match is None or os.path.lexists(path):
        yield path
        return
    first, last = match[1], match[2]
    if int(first) > int(last):
        raise SettingsError(f"{one_line(path)}: the range {match[0]} is empty: expected the smaller number first")
    width = max(len(first), len(last)) if first.startswith("0") or last.startswith("0") else 0
    for number in range(int(first), int(last) + 1):
        yield from expand_ranges(f"{path[: match.start()]}{number:0{width}}{path[match.end() :]}")
