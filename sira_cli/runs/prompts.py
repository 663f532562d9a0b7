"""Prompts that are filled from what is known about each picture."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from sira_cli.errors import PictureError, SettingsError
from sira_cli.pictures.names import is_utf8
from sira_cli.pictures.picture import Picture

_NAME = re.compile(r"\{([A-Za-z_][\w.-]*)\}")
_LOOKED_AT = 20  # pictures of a data set, whose columns may differ


def needs_columns(prompt: str, pictures: Sequence[Picture]) -> bool:
    """Return whether a prompt is to be filled: it holds `{names}`, and there is something that they may stand for.

    Of pictures in files that is a text or JSON file beside one of them. Without any, braces stay as they are.

    Raises:
        SettingsError: in the data set there is no such column; the message names those there are.
    """
    names = set(_NAME.findall(prompt))
    if not names:
        return False
    rows = list(islice((picture for picture in pictures if picture.has_columns), _LOOKED_AT))
    if not rows:
        return any(names.intersection(_names_of(picture)) for picture in pictures)
    known = list(dict.fromkeys(name for picture in rows for name in _names_of(picture)))
    missing = sorted(names.difference(known))
    if known and missing:
        raise SettingsError(
            f"the prompt holds {{{missing[0]}}}, but {rows[0].shown} has no such column: there are {', '.join(known)}"
        )
    return True


def filled(prompt: str, picture: Picture) -> str:
    """Return a prompt with its `{names}` replaced by what is known about a picture.

    Raises:
        PictureError: a name is not known there, or its text cannot be read.
    """
    names = list(dict.fromkeys(_NAME.findall(prompt)))
    values = picture.columns(names)
    missing = [name for name in names if name not in values]
    if missing:
        known = ", ".join(picture.column_names()) or "none"
        raise PictureError(f"{picture.shown}: the prompt holds {{{missing[0]}}}, but its columns are {known}")
    text = _NAME.sub(lambda found: _text(values[found[1]]), prompt)
    if not is_utf8(text):
        raise PictureError(f"{picture.shown}: what fills the prompt is not UTF-8")
    return text


def _names_of(picture: Picture) -> Iterable[str]:
    try:
        return picture.column_names()
    except PictureError:  # it will be the picture's own error
        return ()


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list) and not any(isinstance(each, dict | list) for each in value):
        return ", ".join(map(_text, value))
    if isinstance(value, dict | list | bool):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)
