"""Prompts filled from each picture's columns."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from sira_cli.errors import PictureError, SettingsError
from sira_cli.pictures.names import is_utf8
from sira_cli.pictures.picture import Picture

_NAME = re.compile(r"\{([A-Za-z_][\w.-]*)(?:\|([^{}]*))?\}")  # {name} or {name|default}
_LOOKED_AT = 20  # pictures of a data set, whose columns may differ


def needs_columns(prompt: str, pictures: Sequence[Picture]) -> bool:
    """Return whether a prompt must be filled: it has `{names}`, and the pictures have columns.

    For pictures in files, columns are text or JSON files next to them. Without columns, braces stay.
    """
    names = set(_names(prompt))
    if not names:
        return False
    rows = list(islice((picture for picture in pictures if picture.has_columns), _LOOKED_AT))
    if not rows:
        return any(names.intersection(_names_of(picture)) for picture in pictures)
    known = list(dict.fromkeys(name for picture in rows for name in _names_of(picture)))
    missing = sorted(names.difference(known))
    if known and missing:
        raise SettingsError(
            f"the prompt holds {{{missing[0]}}}, but {rows[0].shown} has only the columns {', '.join(known)}"
        )
    return True


def filled(prompt: str, picture: Picture) -> str:
    """Replace the `{names}` of a prompt by a picture's columns, or if empty by their defaults."""
    names = _names(prompt)
    values = picture.columns() if names else {}
    missing = [name for name in names if name not in values]
    if missing:
        known = ", ".join(picture.columns()) or "none"
        raise PictureError(f"{picture.shown}: the prompt holds {{{missing[0]}}}, but its columns are {known}")
    text = _NAME.sub(lambda found: _text(values[found[1]]) or found[2] or "", prompt)
    if not is_utf8(text):
        raise PictureError(f"{picture.shown}: the text for the prompt is not UTF-8")
    return text


def _names(prompt: str) -> list[str]:
    return list(dict.fromkeys(found[1] for found in _NAME.finditer(prompt)))


def _names_of(picture: Picture) -> Iterable[str]:
    try:
        return picture.columns()
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
