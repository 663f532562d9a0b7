"""Whose a name is that several pictures of a folder might have: `photo.txt`, `photo.xmp`, without their endings."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path


class Neighbours:
    """The pictures on disk next to others, by their names without endings. Each folder is listed once."""

    def __init__(self, endings: Collection[str]) -> None:
        """Count files with these endings as pictures."""
        self._endings = endings
        self._folders: dict[str, dict[str, list[str]]] = {}

    def others(self, location: str) -> list[str]:
        """Return the names of the other pictures that have a picture's name but for the ending."""
        folder, name = os.path.split(location)
        if folder not in self._folders:
            self._folders[folder] = self._listed(folder)
        stem, _ = os.path.splitext(name)  # noqa: PTH122 (many pictures)
        names = self._folders[folder].get(stem, [])
        return [other for other in names if other != name]

    def is_first(self, location: str) -> bool:
        """Return whether a short name is a picture's: it is the first of those that share it, by their names.

        A file with another ending is not among them.
        """
        name = os.path.basename(location)  # noqa: PTH119
        _, ending = os.path.splitext(name)  # noqa: PTH122
        if ending.lower() not in self._endings:
            return True
        if is_long(location):
            return False
        return all(name < other for other in self.others(location))

    def is_alone(self, location: str) -> bool:
        """Return whether a short name can be no other file's."""
        return not is_long(location) and not self.others(location)

    def _listed(self, folder: str) -> dict[str, list[str]]:
        stems = defaultdict[str, list[str]](list)
        try:
            names = os.listdir(folder or os.curdir)  # noqa: PTH208
        except OSError:
            return stems
        for name in names:
            stem, ending = os.path.splitext(name)  # noqa: PTH122
            if ending.lower() in self._endings:
                stems[stem].append(name)
        return stems


def is_long(location: str) -> bool:
    """Return whether a picture's short name is the long one of another file: of `hero.jpg`, for `hero.jpg.png`."""
    stem, _ = os.path.splitext(location)  # noqa: PTH122
    _, inner_ending = os.path.splitext(stem)  # noqa: PTH122
    return inner_ending != "" and os.path.isfile(stem)  # noqa: PTH113


def own_text(location: str, extension: str) -> Path:
    """Return the text file of a picture: `a.jpg.txt` if it exists, as `a.txt` may be another's, else `a.txt`."""
    picture = Path(location)
    long = picture.with_name(picture.name + extension)
    if long.is_file() or is_long(location):
        return long
    return picture.with_suffix(extension)
