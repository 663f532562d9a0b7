"""Pictures and videos that a run leaves out because their format is not read: counted, and named with the remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import PurePath

from sira_cli.pictures.opening import HEIF, RAW, VIDEOS, endings
from sira_cli.pictures.picture import Picture

# Endings of files that people keep among their pictures. Texts, records and systems' files are not named.
_PHOTOS = "heic heif hif avif jxl svg psd xcf raw gif bmp tif tiff"
KNOWN = RAW.union(VIDEOS, (f".{ending}" for ending in _PHOTOS.split()))
REMEDIES = {
    **dict.fromkeys((".heic", ".heif", ".hif"), HEIF),
}


class Pictures(list[Picture]):
    """The pictures of a run.

    Attributes:
        left_out: numbers of files that are not read, by their endings in lower case, the most frequent first.
    """

    def __init__(self, pictures: Iterable[Picture] = (), left_out: Mapping[str, int] | None = None) -> None:
        """Make a list of pictures."""
        super().__init__(pictures)
        self.left_out = dict(sorted((left_out or {}).items(), key=lambda each: (-each[1], each[0])))


def count(left_out: Counter[str], name: str) -> None:
    """Count a file that is not read, if it is a picture or a video by its name.

    Args:
        left_out: numbers by ending, which are changed.
        name: of the file.
    """
    ending = PurePath(name).suffix.lower()
    if ending in KNOWN and ending not in endings():
        left_out[ending] += 1


def in_words(left_out: Mapping[str, int]) -> str:
    """Return the numbers of files by ending, with the remedies: `2 .heic (pip install ...), 1 .cr2`."""
    parts = [f"{number} {ending}" for ending, number in left_out.items()]
    remedies = [f" ({REMEDIES[ending]})" if ending in REMEDIES.keys() - endings() else "" for ending in left_out]
    return ", ".join(part + remedy for part, remedy in zip(parts, remedies, strict=True))


def message(left_out: Mapping[str, int]) -> str:
    """Return the line of a summary."""
    number = sum(left_out.values())
    return f"{number} {'file was' if number == 1 else 'files were'} not read: {in_words(left_out)}"
