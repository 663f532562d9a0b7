"""Checks of a run's pictures before a model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sira_cli.errors import DataError, PictureError, PictureSettingsError, SettingsError
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.sources import located


def check_any_exists(pictures: Sequence[Picture], advice: str = "") -> None:
    """Check that not all of some pictures are missing or known to be unreadable."""
    if not pictures or not all(picture.fault or picture.is_here() is False for picture in pictures):
        return
    first, *others = pictures
    if first.fault:
        nor = f"; nor can any of the other {len(others)} be read" if others else ""
        raise DataError(first.fault + nor)
    missing = next(source for source in first.sources if source.is_here() is False)
    nor = f", nor any of the other {len(others)}" if others else ""
    raise PictureSettingsError(f"{missing.label}: no such file{nor}{advice}")


def check_any_readable(pictures: Sequence[Picture]) -> None:
    """Check that a few named files are not all of another kind than pictures."""
    if any(picture.is_here() is None for picture in pictures):
        return  # it is somewhere else
    faults = []
    for picture in pictures:
        try:
            picture.pixels(picture.files())
        except PictureError as error:
            faults.append(error)
    if faults and len(faults) == len(pictures):
        others = f", nor is any of the other {len(pictures) - 1}" if len(pictures) > 1 else ""
        raise PictureSettingsError(f"{faults[0]}{others}") from faults[0]


def check_images(folder: Path, names: Sequence[str]) -> None:
    """Check that a folder holds any of a benchmark's pictures."""
    if not folder.is_dir():
        raise SettingsError(f"`images=` {folder}: is not a folder")
    check_any_exists([located(str(folder / name)) for name in names], ": is `images=` right?")
