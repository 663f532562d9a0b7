"""Parts of long clips, each with a record of its own, and pictures as records name them."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from sira_cli.data.kept import Kept
from sira_cli.data.wrapped import KEPT, SharedPicture
from sira_cli.errors import PictureError, SettingsError
from sira_cli.pictures import stores
from sira_cli.pictures.clip import Sampling, Timeline
from sira_cli.pictures.content import Content
from sira_cli.pictures.names import from_text, parted
from sira_cli.pictures.picture import OpenedPicture, Picture
from sira_cli.pictures.sources import located
from sira_cli.pictures.together import Together

_READERS = 4
_PART = re.compile(r"#t=(\d+(?:\.\d+)?),(\d+(?:\.\d+)?)$")


@dataclass(frozen=True)
class ClipPart(SharedPicture):
    """A part of a clip. Its name ends as in W3C's Media Fragments: `clip.mp4#t=10,20`.

    Attributes:
        start, end: in seconds.
    """

    start: float
    end: float

    @classmethod
    def of(cls, clip: Picture, start: float, end: float, reads: Kept[Content] | None = None) -> Self:
        """Return a part of a clip; consecutive ones that share `reads` read the clip once."""
        return cls(clip.location, clip.relative, clip, start, end, reads=reads or Kept(KEPT))

    @property
    def _mark(self) -> str:
        start, end = (f"{time:.3f}".rstrip("0").rstrip(".") for time in (self.start, self.end))
        return f"#t={start},{end}"

    @property
    def shown(self) -> str:
        """Location for a message."""
        return self.picture.shown + self._mark

    @property
    def identity(self) -> str:
        """The clip's identity, and the times."""
        return self.picture.identity + self._mark

    @property
    def address(self) -> str:
        """The clip's address, and the times; empty without one."""
        return self.picture.address and self.picture.address + self._mark

    def name_in(self, folder: Path | None) -> str:
        """Return the clip's name in a record, and the times."""
        return self.picture.name_in(folder) + self._mark

    @property
    def has_columns(self) -> bool:
        """Whether the clip has."""
        return self.picture.has_columns

    def column_names(self) -> list[str]:
        """Return those of the clip."""
        return self.picture.column_names()

    def columns(self, names: Collection[str]) -> Mapping[str, Any]:
        """Return those of the clip."""
        return self.picture.columns(names)

    def text_file(self, extension: str) -> Path:
        """Refuse: there are several parts."""
        raise SettingsError(f"{self.shown}: texts about parts of a clip are records: give `output=`, no text files")

    def mirrored(self, extension: str) -> Path:
        """Refuse: there are several parts."""
        return self.text_file(extension)

    def opened(self, data: Content, sampling: Sampling | None = None) -> OpenedPicture:
        """Decode the part."""
        return super().opened(data, self._of_part(sampling or Sampling()))

    def timeline(self, data: Content, sampling: Sampling) -> Timeline | None:
        """Return that of the part."""
        return super().timeline(data, self._of_part(sampling))

    def _of_part(self, sampling: Sampling) -> Sampling:
        return replace(sampling, start=self.start, end=self.end)


def in_parts(pictures: Sequence[Picture], every: float, start: float = 0.0, end: float | None = None) -> list[Picture]:
    """Return pictures as they are, and clips in parts.

    Their files are read for their durations. What remains at the end is a part of its own from half of `every` on,
    else it belongs to the part before.

    Args:
        pictures: of a run. Those that cannot be read, and groups, stay as they are.
        every: length of a part, in seconds.
        start, end: of what is divided of each clip, in seconds.

    Raises:
        SettingsError: `every` is not positive.
    """
    if not every > 0:
        raise SettingsError(f"`every=` {every:g}: expected a number of seconds > 0")
    reads = Kept[Content](KEPT)

    def parts(picture: Picture) -> list[Picture]:
        try:
            whole = picture.timeline(picture.file_content(), Sampling(start=start, end=end))
        except PictureError:
            return [picture]
        number = 1 if whole is None else max(1, int(whole.seconds / every + 0.5))
        if whole is None or number == 1:
            return [picture]
        ends = [start + every * each for each in range(number)] + [start + whole.seconds]
        return [ClipPart.of(picture, *times, reads) for times in pairwise(ends)]

    for picture in pictures:
        picture.make_ready()
    with ThreadPoolExecutor(_READERS, "sira-reader") as readers:
        return [part for found in readers.map(parts, pictures) for part in found]


def recorded(name: str, folder: Path, *, allow_private: bool = False) -> Picture:
    """Return the picture that a file in `folder` names.

    A name written by another program may look escaped, or like a group's name, without being one.

    Args:
        name: the name in the file.
        folder: folder that names are relative to.
        allow_private: as for `located`.
    """
    if len(names := parted(name)) > 1 and not os.path.lexists(folder / name):
        return Together.of(recorded(each, folder, allow_private=allow_private) for each in names)
    if (part := _PART.search(name)) and not os.path.lexists(folder / name):
        whole = recorded(name[: part.start()], folder, allow_private=allow_private)
        return ClipPart.of(whole, float(part[1]), float(part[2]))
    if stores.is_uri(name):
        return located(name, allow_private=allow_private)
    known = from_text(name) if os.path.lexists(folder / from_text(name)) else name
    return located(str(folder / known), known)
