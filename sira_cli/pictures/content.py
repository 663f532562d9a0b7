"""The content of a picture's file: its bytes, or, for a large clip, the file itself, which is read in pieces."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from sira_cli.errors import PictureError

HEAD = 16  # bytes that tell a container's format


@dataclass(frozen=True)
class LargeFile:
    """A clip's file that stays on disk: ten minutes have hundreds of megabytes. Safe in threads.

    Attributes:
        path: of the file.
        head: its first bytes.
        state: inode, size and time of the last change.
    """

    path: str
    head: bytes
    state: tuple[int, int, int]

    @classmethod
    def of(cls, path: str, file: BinaryIO) -> LargeFile:
        """Describe an open file, from its beginning."""
        file.seek(0)
        return cls(path, file.read(HEAD), _state(file))

    def __len__(self) -> int:
        return self.state[1]

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Open the file at its beginning.

        Raises:
            PictureError: it has changed; the message does not name it.
            OSError: it cannot be opened.
        """
        with open(self.path, "rb") as file:  # noqa: PTH123 (as `FilePicture` does)
            if _state(file) != self.state:
                raise PictureError("changed between two readings; run the command again")
            yield file


Content = bytes | LargeFile


def head_of(content: Content) -> bytes:
    """Return the first bytes of a file."""
    return content.head if isinstance(content, LargeFile) else content[:HEAD]


def sha256_of(content: Content) -> str:
    """Return the hash of a file, in hexadecimal.

    Raises:
        OSError, PictureError: as `LargeFile.opened`.
    """
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    digest = hashlib.sha256()
    with content.opened() as file:
        while piece := file.read(2**20):
            digest.update(piece)
    return digest.hexdigest()


def _state(file: BinaryIO) -> tuple[int, int, int]:
    found = os.fstat(file.fileno())
    return found.st_ino, found.st_size, found.st_mtime_ns
