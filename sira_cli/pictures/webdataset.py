"""WebDataset shards: tar files in which the members of a picture share a key, `000012.jpg`, `000012.txt`."""

from __future__ import annotations

import functools
import os
import re
import tarfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sira_cli.errors import PictureError, SettingsError
from sira_cli.pictures import stores
from sira_cli.pictures.containers import BrokenPicture, ContainedPicture, Container
from sira_cli.pictures.left_out import count
from sira_cli.pictures.names import as_text, one_line
from sira_cli.pictures.picture import Picture, columns_of
from sira_cli.pictures.together import pack, unpack

ENDING = ".tar"
COMPRESSED = (".tar.gz", ".tgz")  # which are refused
PICTURES = ("jpg", "jpeg", "png", "webp", "heic")
TEXTS = ("txt", "json", "cls")  # members that can fill prompts
_SHOWN = 8  # extensions in a message
_READ_AHEAD = 2**20  # bytes, of a shard in a store
_NO_OFFSET = 2**62  # bytes: where no system looks for the next member

# As the webdataset package has it: the key ends at the first full stop of the file's name.
_MEMBER = re.compile(r"((?:.*/|)[^./]+)[.]([^/]*)")


def key_and_extension(member: str) -> tuple[str, str] | None:
    """Return key and lower-case extension of a member's name; None if it belongs to no key."""
    match = _MEMBER.fullmatch(member)
    return None if match is None else (match[1], match[2].lower())


@dataclass(frozen=True)
class Member:
    """Where the bytes of a member are."""

    extension: str
    offset: int
    size: int


@dataclass(frozen=True)
class MemberPicture(ContainedPicture):
    """A picture in a WebDataset shard, or several of one key; `member` is its name there, or the key.

    Attributes:
        places: where the bytes of each are.
        beside: text and JSON members of the same key.
    """

    places: tuple[Member, ...]
    beside: tuple[Member, ...] = ()

    @property
    def is_group(self) -> bool:
        """Whether several members are shown together."""
        return len(self.places) > 1

    @property
    def member_key(self) -> str:
        """The key in the sense of WebDataset."""
        found = key_and_extension(self.member)
        return as_text(self.member if found is None else found[0])

    def read(self) -> bytes:
        """Read the member's bytes, those of several packed, and nothing else of the shard."""
        found = [self._bytes(place) for place in self.places]
        return pack(found) if len(found) > 1 else found[0]

    def files(self, data: bytes) -> list[tuple[str, bytes]]:
        """Return the name and the bytes of each picture."""
        if len(self.places) == 1:
            return super().files(data)
        names = (f"{self.shown}.{place.extension}" for place in self.places)
        return list(zip(names, unpack(data), strict=True))

    def column_names(self) -> list[str]:
        """Return the names of its text members, and those in its JSON members."""
        return list(self.columns(()))

    def columns(self, names: Collection[str]) -> Mapping[str, Any]:
        """Return the columns of its text and JSON members."""
        return columns_of(self.shown, {place.extension: self._bytes(place) for place in self.beside})

    def _bytes(self, place: Member) -> bytes:
        try:
            if stores.is_uri(self.container):
                data = stores.read_range(self.container, place.offset, place.size)
            else:
                with Path(self.container).open("rb") as file:
                    file.seek(place.offset)
                    there = os.fstat(file.fileno()).st_size  # `read` takes memory for all that a header promises
                    data = file.read(min(place.size, there))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise PictureError(f"{self.shown}: cannot be read: {reason}") from None
        if len(data) < place.size:
            raise PictureError(f"{self.shown}: is cut off, because the shard ends in the middle of it")
        return data


@dataclass
class _Sample:
    """The members of one key, in the order of the shard."""

    key: str
    pictures: list[tuple[str, Member]] = field(default_factory=list)  # name, place
    other: list[str] = field(default_factory=list)  # extensions of further pictures, such as `depth.png`
    texts: list[Member] = field(default_factory=list)


def _which(sample: _Sample, wanted: Sequence[str]) -> str:
    """Return the error of a sample whose picture is unclear: not exactly one member, or not one of each wanted."""
    extensions = sorted(place.extension for _, place in sample.pictures) or sorted(sample.other)
    number = f"{len(extensions)} pictures" if len(extensions) > 1 else "a picture"
    shown = ", ".join(extensions[:_SHOWN]) + ", ..." * (len(extensions) > _SHOWN)
    if len(wanted) > 1:
        return f"has {number} ({shown}), expected one of each of {', '.join(wanted)}"
    expected = "expected one" if sample.pictures else f"expected one of {', '.join(PICTURES)}"
    if sample.pictures and len({*extensions}) == 1:
        return f"has {number} ({shown}), {expected}"
    return f"has {number} ({shown}), {expected}: choose with `image_column=`, such as {extensions[0]}"


@dataclass(frozen=True)
class TarShard(Container):
    """A WebDataset shard.

    Attributes:
        image: the extension of the picture's member; several, `a.jpg,b.jpg`, are shown together; None: any of
            `PICTURES`, once.
    """

    image: str | None = None

    def pictures(self) -> Iterator[Picture]:
        """Yield one picture per key. Only the shard's headers are read; in a store all of it, once.

        All of them are read first: the members of a key may be far apart.
        """
        samples: dict[str, _Sample] = {}
        fault = ""
        try:
            self._gather(samples)
        except (tarfile.TarError, OSError, EOFError, SettingsError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            fault = f"cannot be read{f' after {one_line(next(reversed(samples)))}' if samples else ''}: {reason}"
            if not samples and isinstance(error, tarfile.TarError):
                fault = f"is not a tar file: {reason}; compressed ones are not read: unpack them with gunzip"
        for sample in samples.values():
            if sample.pictures or (sample.other and self.image is None):
                yield self._picture(sample)
        if fault:
            yield self._broken("", fault)

    def _picture(self, sample: _Sample) -> Picture:
        wanted = self._extensions or tuple(place.extension for _, place in sample.pictures)[:1]
        places = [place for extension in wanted for _, place in sample.pictures if place.extension == extension]
        if not places or not len(places) == len(sample.pictures) == len(wanted):
            return self._broken(sample.key, _which(sample, wanted))
        name = sample.pictures[0][0] if len(places) == 1 else sample.key
        return MemberPicture(
            f"{self.location}/{name}",
            f"{self.relative}/{name}",
            self.location,
            name,
            tuple(places),
            tuple(sample.texts),
        )

    @functools.cached_property
    def _extensions(self) -> tuple[str, ...]:
        given = () if self.image is None else self.image.lower().split(",")
        return tuple(part.removeprefix(".") for each in given if (part := each.strip()))

    def _broken(self, member: str, fault: str) -> BrokenPicture:
        below = f"/{member}" if member else ""
        return BrokenPicture(self.location + below, self.relative + below, self.location, member, fault)

    def _gather(self, samples: dict[str, _Sample]) -> None:
        """Collect the members of the shard into samples by key."""
        for name, offset, size in list_members(self.location):
            found = key_and_extension(name)
            if found is None:
                continue
            key, extension = found
            sample = samples.setdefault(key, _Sample(key))
            place = Member(extension, offset, size)
            if extension in (self._extensions or PICTURES):
                sample.pictures.append((name, place))
            elif extension.rpartition(".")[2] in PICTURES:
                sample.other.append(extension)
            elif extension.rpartition(".")[2] in TEXTS:
                sample.texts.append(place)
            else:
                count(self.left_out, name, read=())


def list_members(location: str) -> Iterator[tuple[str, int, int]]:
    """Yield name, offset and size of every regular file in a tar file, in order.

    Raises:
        tarfile.TarError: the file is damaged, or not a tar file.
        OSError: the file cannot be read.
    """
    with opened_tar(location) as archive:
        for member in members_of(archive):
            if member.isreg():
                yield member.name, member.offset_data, member.size


def members_of(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the headers in an open tar file, in order.

    Raises:
        tarfile.TarError: it is damaged.
        OSError: the file cannot be read.
    """
    with _sizes_checked():
        while (member := archive.next()) is not None:
            archive.members = []  # type: ignore[attr-defined] # it would keep all of them
            # With a size below zero, also one of a sparse file, the next header may be this one again.
            if member.size < 0 or not member.offset_data <= archive.offset < _NO_OFFSET:
                raise tarfile.ReadError(f"{one_line(member.name)} has an impossible size")
            yield member


@contextmanager
def _sizes_checked() -> Iterator[None]:
    """Turn tarfile's errors about impossible header sizes, such as those of long names, into `tarfile.TarError`."""
    try:
        yield
    except (ValueError, OverflowError, MemoryError) as error:
        raise tarfile.ReadError("a header has an impossible size") from error


def opened_tar(location: str) -> tarfile.TarFile:
    """Open a tar file: a local one is read where it is needed, one in a store from its beginning to its end.

    Raises:
        tarfile.TarError: it is not a tar file.
        OSError: the file cannot be opened.
    """
    if not stores.is_uri(location):
        with _sizes_checked():
            return tarfile.open(location, "r:")
    return tarfile.open(fileobj=stores.stream(location), mode="r|", bufsize=_READ_AHEAD)
