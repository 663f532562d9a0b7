"""Several pictures that share one text: to all other code, a group is a picture like any other."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from sira_cli.errors import PictureError, SettingsError
from sira_cli.pictures.names import joined, parted
from sira_cli.pictures.picture import OpenedPicture, Picture, digest_of

_SHOWN = 4  # names in a message
_LENGTH = struct.Struct(">Q")  # before the bytes of each picture


@dataclass(frozen=True)
class Together(Picture):
    """Pictures in order, under one name.

    Attributes:
        pictures: the group; at least one.
        fields: texts about the group by name, for prompts with `{names}`.
    """

    pictures: tuple[Picture, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, pictures: Iterable[Picture], fields: Mapping[str, Any] | None = None) -> Self:
        """Put pictures together."""
        group = tuple(pictures)
        if not group:
            raise PictureError("a group of pictures is empty: expected one picture or more")
        location, relative = (joined(names) for names in zip(*((p.location, p.relative) for p in group), strict=True))
        return cls(location, relative, group, fields or {})

    @property
    def shown(self) -> str:
        """The pictures' names for a message; of many, only the first."""
        more = len(self.pictures) - _SHOWN
        return joined(picture.shown for picture in self.pictures[:_SHOWN]) + f" and {more} more" * (more > 0)

    @property
    def parts(self) -> tuple[Picture, ...]:
        """Its pictures."""
        return self.pictures

    @property
    def identity(self) -> str:
        """The identities of its pictures, in order."""
        return joined(picture.identity for picture in self.pictures)

    @property
    def address(self) -> str:
        """The addresses of its pictures; empty if one has none."""
        addresses = [picture.address for picture in self.pictures]
        return joined(addresses) if all(addresses) else ""

    @property
    def depends_on_folder(self) -> bool:
        """Whether the location of one of its pictures does."""
        return any(picture.depends_on_folder for picture in self.pictures)

    @property
    def has_columns(self) -> bool:
        """Whether there are texts about it."""
        return bool(self.fields)

    def column_names(self) -> list[str]:
        """Return the names of the texts about it."""
        return list(self.fields)

    def columns(self, names: Collection[str]) -> Mapping[str, Any]:
        """Return the texts about it."""
        return self.fields

    def is_missing(self) -> bool:
        """Return whether one of its pictures is missing."""
        return any(picture.is_missing() for picture in self.pictures)

    def is_here(self) -> bool:
        """Return whether all its pictures are on this machine."""
        return all(picture.is_here() for picture in self.pictures)

    def name_in(self, folder: Path | None) -> str:
        """Return the names of its pictures, joined."""
        return joined(picture.name_in(folder) for picture in self.pictures)

    def images(self, name: str) -> list[str]:
        """Return the names of its pictures from the group's name in a record."""
        return parted(name) if len(self.pictures) > 1 else [name]

    def text_file(self, extension: str) -> Path:
        """Return the text file of a single picture; refuse for several."""
        if len(self.pictures) == 1:
            return self.pictures[0].text_file(extension)
        raise SettingsError(
            f"{self.shown}: a text about several pictures is written as a record, not as a text file: give `output=`"
        )

    def mirrored(self, extension: str) -> Path:
        """Return the mirrored path of a single picture; refuse for several."""
        return self.pictures[0].mirrored(extension) if len(self.pictures) == 1 else self.text_file(extension)

    def file_size(self) -> int:
        """Return the bytes of all of its files."""
        return sum(picture.file_size() for picture in self.pictures)

    def make_ready(self) -> None:
        """Get its pictures ready."""
        for picture in self.pictures:
            picture.make_ready()

    def read(self) -> bytes:
        """Return the bytes of all of its files, packed."""
        return pack([picture.read() for picture in self.pictures])

    def files(self, data: bytes) -> list[tuple[str, bytes]]:
        """Return the name and the bytes of each picture."""
        return [file for picture, own in self._each(data) for file in picture.files(own)]

    def sizes(self, data: bytes) -> list[tuple[int, int]]:
        """Return those of its pictures."""
        return [size for picture, own in self._each(data) for size in picture.sizes(own)]

    def _each(self, data: bytes) -> Iterable[tuple[Picture, bytes]]:
        return zip(self.pictures, unpack(data), strict=True)

    def opened(self, data: bytes) -> OpenedPicture:
        """Decode its pictures."""
        opened = [picture.opened(own) for picture, own in self._each(data)]
        return OpenedPicture(
            self.location,
            opened[0].image,
            digest_of([each.sha256 for each in opened]),
            tuple(warning for each in opened for warning in each.warnings),
            tuple(image for each in opened for image in each.images)[1:],
        )


def pack(files: Sequence[bytes]) -> bytes:
    """Return the bytes of several files as one."""
    return b"".join(part for data in files for part in (_LENGTH.pack(len(data)), data))


def unpack(data: bytes) -> list[bytes]:
    """Return the files in the bytes made by `pack`."""
    files, place = [], 0
    while place < len(data):
        start = place + _LENGTH.size
        place = start + _LENGTH.unpack_from(data, place)[0]
        files.append(data[start:place])
    return files
