"""The caption of a picture: in the text file next to it, or in a column of its data set."""

from __future__ import annotations

from collections.abc import Sequence

from sira_cli.data.captions.files import TEXT_COLUMNS, usual_column
from sira_cli.data.rows import some, text_of
from sira_cli.errors import PictureError
from sira_cli.pictures.datasets import SamplePicture
from sira_cli.pictures.names import one_line
from sira_cli.pictures.picture import Picture


def text_of_picture(picture: Picture, extension: str, column: str | None) -> str | None:
    """Return the caption of a picture; None without one."""
    if not isinstance(picture, SamplePicture):
        return picture.text_next_to(extension)
    usual = (extension[1:], *TEXT_COLUMNS) if column is None else (column,)
    try:
        found = picture.columns(usual)
    except PictureError:
        return None
    name = usual_column(found, usual)
    if name is None or found[name] is None:
        return None
    return text_of(picture.shown, dict(found), name)


def texts_of_pictures(pictures: Sequence[Picture], extension: str, column: str | None) -> dict[str, str]:
    """Return the captions of some pictures by `identity`; those without one are left out."""
    texts = {picture.identity: text_of_picture(picture, extension, column) for picture in pictures}
    return {name: text for name, text in texts.items() if text is not None}


def no_captions(place: str, pictures: Sequence[Picture], extension: str, column: str | None) -> str:
    """Return the message for pictures without any caption."""
    inside = next((picture for picture in pictures if isinstance(picture, SamplePicture)), None)
    none = f"{one_line(place)}: none of {len(pictures)} pictures has a"
    if inside is None:
        return f"{none} {extension} file next to it: give `caption_extension=`, or a file of captions (.jsonl, .csv)"
    try:
        known = some(inside.column_names()) or "none at all"
    except PictureError as error:
        return str(error)
    wanted = ", ".join((extension[1:], *TEXT_COLUMNS)) if column is None else repr(column)
    return f"{none} caption: looked for a column {wanted} (`text_column=`), found {known}"
