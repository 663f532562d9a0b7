"""Rows that name pictures: `image` is one, `images` are several that are shown together."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sira_cli.data.rows import brief, read_rows, text_of
from sira_cli.errors import DataError
from sira_cli.pictures import stores
from sira_cli.pictures.find import Shard
from sira_cli.pictures.names import is_utf8, joined
from sira_cli.pictures.picture import Picture, group_of
from sira_cli.pictures.sources import located

SEVERAL = "images"


def names_in(where: str, row: Mapping[str, Any], field: str = SEVERAL) -> list[str] | None:
    """Return the names in a field of a row: a list, or in a table of text a list as JSON; None without such a field."""
    value = row.get(field)
    if value is None or value == "":
        return None
    names = value
    if isinstance(value, str):
        try:
            names = json.loads(value)
        except ValueError:
            names = None
    if isinstance(names, list) and names and all(isinstance(each, str) and each and is_utf8(each) for each in names):
        return names
    raise DataError(f'{where}: {field} is {brief(value)}: expected a list of names, such as ["a.jpg", "b.jpg"]')


def picture_below(base: str, name: str) -> Picture:
    """Return the picture of a name that starts from a folder or a URI."""
    path = f"{base}/{name}" if stores.is_uri(base) else str(Path(base, name))
    return located(name if stores.is_uri(name) else path, name)


def listed_groups(file: Path, *, shard: Shard | None = None, limit: int | None = None) -> list[Picture]:
    """Return the groups of a file, each once, in order. A row's other fields can fill prompts."""
    found: dict[str, Picture] = {}
    any_row = False
    for names, row in _named(file):
        any_row = True
        if shard is not None and not shard.holds(joined(names)):
            continue
        group = (picture_below(str(file.parent), name) for name in names)
        picture = group_of(group, row)
        found.setdefault(picture.identity, picture)
        if len(found) == limit:
            break
    if not any_row:
        raise DataError(f"{file}: names no pictures")
    return list(found.values())


def _named(file: Path) -> Iterator[tuple[list[str], dict[str, Any]]]:
    for where, row in read_rows(file):
        yield names_in(where, row) or [text_of(where, row, SEVERAL, "image", "file_name")], row
