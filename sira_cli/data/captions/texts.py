"""The caption of a picture: in the text file next to it, or in a column of its data set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sira_cli.data.captions.files import TEXT_COLUMNS, usual_column
from sira_cli.data.rows import some, text_of
from sira_cli.errors import PictureError, SettingsError
from sira_cli.files import text_in
from sira_cli.pictures.datasets import SampleSource
from sira_cli.pictures.names import one_line
from sira_cli.pictures.picture import Picture


def text_of_picture(picture: Picture, extension: str, column: str | None) -> str | None:
    """Return the caption of a picture; None without one."""
    if not isinstance(picture.sources[0], SampleSource):
        return text_next_to(picture, extension)
    usual = (extension[1:], *TEXT_COLUMNS) if column is None else (column,)
    try:
        found = picture.columns()
    except PictureError:
        return None
    name = usual_column(found, usual)
    if name is None or found[name] is None:
        return None
    return text_of(picture.shown, dict(found), name)


def text_next_to(picture: Picture, extension: str) -> str | None:
    """Return the text in the text file next to a picture; None without one."""
    try:
        own = picture.text_file(f"{Path(picture.location).suffix}{extension}")  # a.jpg.txt, where a.txt is of another
        file = own if own.is_file() else picture.text_file(extension)
        return text_in(file.read_bytes(), one_line(str(file))).strip()
    except (OSError, SettingsError):
        return None


def texts_of_pictures(pictures: Sequence[Picture], extension: str, column: str | None) -> dict[str, str]:
    """Return the captions of some pictures by `identity`; those without one are left out."""
    texts = {picture.identity: text_of_picture(picture, extension, column) for picture in pictures}
    return {name: text for name, text in texts.items() if text is not None}


def no_captions(place: str, pictures: Sequence[Picture], extension: str, column: str | None) -> str:
    """Return the message for pictures without any caption."""
    inside = next((picture for picture in pictures if isinstance(picture.sources[0], SampleSource)), None)
    none = f"{one_line(place)}: none of {len(pictures)} pictures has a"
    if inside is None:
        return f"{none} {extension} file next to it: give `caption_extension=`, or a file of captions (.jsonl, .csv)"
    try:
        known = some(inside.columns()) or "none at all"
    except PictureError as error:
        return str(error)
    wanted = ", ".join((extension[1:], *TEXT_COLUMNS)) if column is None else repr(column)
    return f"{none} caption: looked for a column {wanted} (`text_column=`), found {known}"
