"""Pictures and videos that a run leaves out because their format is not read: counted, and named with the remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from pathlib import Path, PurePath

from sira_cli.pictures.opening import HEIF, RAW, VIDEOS, endings
from sira_cli.pictures.picture import Picture

# Endings of files that people keep among their pictures. Texts, records and systems' files are not named.
_PHOTOS = "heic heif hif avif jxl svg psd xcf raw gif bmp tif tiff"
KNOWN = RAW.union(VIDEOS, (f".{ending}" for ending in _PHOTOS.split()))
# Folders of thumbnails, deleted files and the like: Synology's, QNAP's, Windows', Lightroom's, macOS's, Linux's.
SYSTEM = ("@eadir", "#recycle", "@recycle", "$recycle.bin", "*.lrdata", "__macosx", "lost+found")
REMEDIES = {
    **dict.fromkeys((".heic", ".heif", ".hif"), HEIF),
}


class Pictures(list[Picture]):
    """The pictures of a run.

    Attributes:
        left_out: numbers of files that are not read, by their endings in lower case, of `SYSTEM` folders (`@eaDir/`)
            and of subfolders with pictures (`./sub/`); the most frequent first.
    """

    def __init__(self, pictures: Iterable[Picture] = (), left_out: Mapping[str, int] | None = None) -> None:
        """Make a list of pictures."""
        super().__init__(pictures)
        self.left_out = dict(sorted((+Counter(left_out or {})).items(), key=lambda each: (-each[1], each[0])))


def count(left_out: Counter[str], name: str) -> None:
    """Count a file that is not read, if it is a picture or a video by its name."""
    ending = PurePath(name).suffix.lower()
    if ending in KNOWN and ending not in endings():
        left_out[ending] += 1


def in_words(left_out: Mapping[str, int]) -> str:
    """Return the numbers of files by ending, with the remedies: `2 .heic (pip install ...), 1 .cr2`."""
    parts = [f"{number} {ending}" for ending, number in left_out.items()]
    remedies = [f" ({REMEDIES[ending]})" if ending in REMEDIES.keys() - endings() else "" for ending in left_out]
    return ", ".join(part + remedy for part, remedy in zip(parts, remedies, strict=True))


def system_folder(path: str) -> str:
    """Return the first part of a path that is a folder of `SYSTEM`; empty without one."""
    return next((part for part in Path(path).parts if any(fnmatch(part.lower(), each) for each in SYSTEM)), "")


def formats(left_out: Mapping[str, int]) -> dict[str, int]:
    """Return the numbers of files in formats that are not read."""
    return {name: number for name, number in left_out.items() if not name.endswith("/")}


def message(left_out: Mapping[str, int]) -> str:
    """Return the line of a summary."""
    files = formats(left_out)
    number, inside = sum(files.values()), [name[2:-1] for name in left_out if name.startswith("./")]
    system = [f"{count} {name[:-1]}" for name, count in left_out.items() if name not in files and name[:2] != "./"]
    parts = [f"{number} {'file was' if number == 1 else 'files were'} not read: {in_words(files)}"] if files else []
    if system:
        parts.append(f"thumbnails and deleted files were left out: {', '.join(system)}")
    if inside:
        named = ", ".join(inside[:3]) + f" and {len(inside) - 3} more" * (len(inside) > 3)
        parts.append(f"{len(inside)} subfolder{'s' * (len(inside) > 1)} with pictures (-r includes them): {named}")
    return "; ".join(parts)
