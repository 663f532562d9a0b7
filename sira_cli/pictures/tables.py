"""Parquet and Arrow files with a column of pictures."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sira_cli.errors import DataError, PictureError
from sira_cli.pictures import rows, stores
from sira_cli.pictures.containers import BrokenPicture, ContainedPicture, Container
from sira_cli.pictures.names import one_line
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.sources import located

ENDINGS = (rows.PARQUET, *rows.ARROW)
# Columns that are looked for, if none is named.
NAMES = (
    "image",
    "img",
    "picture",
    "photo",
    "jpg",
    "jpeg",
    "png",
    "webp",
    "image_path",
    "file_name",
    "path",
    "image_url",
    "url",
)


@dataclass(frozen=True)
class RowPicture(ContainedPicture):
    """A picture in a row of a table; `member` is its id, or the number of the row.

    Attributes:
        column: with the picture: its bytes, its path or URI, or both as the Hub's `struct<bytes, path>`.
        row: counted from 0.
        allow_private: whether a URL may lead to an address that is not public.
    """

    column: str
    row: int
    allow_private: bool = False

    def read(self) -> bytes:
        """Return the picture's bytes; a path is read."""
        value = self._cells((self.column,))[self.column]
        if isinstance(value, dict):
            value = value.get("path") if value.get("bytes") is None else value["bytes"]
        if isinstance(value, str) and value:
            return located(_beside(self.container, value), allow_private=self.allow_private).read()
        if not isinstance(value, bytes):
            raise PictureError(f"{self.shown}: row {self.row} has no picture in column {self.column}")
        return value

    def column_names(self) -> list[str]:
        """Return the names of the other columns."""
        try:
            return [name for name in rows.schema(self.container).names if name != self.column]
        except (OSError, ValueError) as error:
            raise PictureError(f"{self.shown}: cannot be read: {_reason(error)}") from None

    def columns(self, names: Collection[str]) -> Mapping[str, Any]:
        """Return the cells of some of the other columns."""
        return self._cells(tuple(name for name in self.column_names() if name in names))

    def _cells(self, columns: tuple[str, ...]) -> dict[str, Any]:
        try:
            return rows.cursor(self.container, columns).row(self.row)
        except (OSError, ValueError) as error:
            raise PictureError(f"{self.shown}: row {self.row} cannot be read: {_reason(error)}") from None


@dataclass(frozen=True)
class Table(Container):
    """A Parquet or Arrow file with a column of pictures.

    Attributes:
        image: the name of this column; None: found by type and name.
        id: the column whose values name the rows; None: they are numbered.
        allow_private: whether URLs may lead to addresses that are not public.
    """

    image: str | None = None
    id: str | None = None
    allow_private: bool = False

    def pictures(self) -> Iterator[Picture]:
        """Yield the picture of each row. Nothing but the ids is read.

        Raises:
            DataError: no such column, or an id occurs twice.
            SettingsError: pyarrow is missing.
        """
        shown = one_line(self.location)
        try:
            schema = rows.schema(self.location)
            column = picture_column(shown, schema, self.image)
            for number, member in enumerate(self._names(shown, schema)):
                yield RowPicture(
                    f"{self.location}/{member}",
                    f"{self.relative}/{member}",
                    self.location,
                    member,
                    column,
                    number,
                    self.allow_private,
                )
        except DataError:
            raise
        except (OSError, ValueError) as error:
            yield BrokenPicture(
                self.location, self.relative, self.location, "", f"is not a table that can be read: {_reason(error)}"
            )

    def _names(self, shown: str, schema: Any) -> Iterator[str]:
        if self.id is None:
            yield from map(str, range(rows.count(self.location)))
            return
        if self.id not in schema.names:
            raise DataError(f"{shown}: `id_column=` {self.id}: no such column; the columns are {_list(schema.names)}")
        seen: set[str] = set()
        for _, batch in rows.batches(self.location, (self.id,), rows=10_000):
            for value in batch.column(self.id).to_pylist():
                name = str(value)
                if value is None or name in seen:
                    what = "is empty" if value is None else f"has {name!r} twice"
                    raise DataError(f"{shown}: `id_column=` {self.id} {what}: expected a unique id in every row")
                seen.add(name)
                yield name


def is_table(name: str) -> bool:
    """Return whether a file of this name is a table of pictures."""
    return name.lower().endswith(ENDINGS)


def picture_column(shown: str, schema: Any, name: str | None) -> str:
    """Return the column with the pictures.

    Args:
        shown: the table's name, for messages.
        schema: of pyarrow.
        name: the column, if it is known.

    Raises:
        DataError: no such column, or more than one; the message lists the columns.
    """
    if name is not None:
        if name not in schema.names:
            raise DataError(f"{shown}: `image_column=` {name}: no such column; the columns are {_list(schema.names)}")
        if not (_is_struct(schema.field(name).type) or _is_plain(schema.field(name).type)):
            raise DataError(
                f"{shown}: `image_column=` {name} is of type {schema.field(name).type}: expected bytes, paths, or a "
                "struct of both"
            )
        return name
    structs = [field.name for field in schema if _is_struct(field.type)]
    named = [column for column in NAMES if column in schema.names and _is_plain(schema.field(column).type)]
    if not structs and not named:
        raise DataError(
            f"{shown}: no column of pictures found: the columns are {_list(schema.names)}: name one with "
            "`image_column=`"
        )
    if len(structs) > 1:
        raise DataError(f"{shown}: several columns of pictures: {_list(structs)}: name one with `image_column=`")
    return structs[0] if structs else named[0]


def _is_struct(kind: Any) -> bool:
    """Return whether a type is the Hub's: a struct of bytes and path."""
    import pyarrow

    return pyarrow.types.is_struct(kind) and {"bytes", "path"} <= {field.name for field in kind}


def _is_plain(kind: Any) -> bool:
    """Return whether a type is bytes or text, perhaps as references to a dictionary."""
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    return str(kind).removeprefix("large_").removesuffix("_view") in ("binary", "string")


def _beside(table: str, path: str) -> str:
    """Return a table's path, relative to the current folder; in the table, it is relative to the table's folder."""
    if stores.is_uri(path):
        return path
    if stores.is_uri(table):
        return table.rpartition("/")[0] + "/" + path
    return os.path.join(os.path.dirname(table), path)  # noqa: PTH118, PTH120 (paths may be no text)


def _list(names: Sequence[str]) -> str:
    return ", ".join(one_line(name) for name in names) or "none"


def _reason(error: Exception) -> str:
    """Return pyarrow's message, on one line."""
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).strip().splitlines()[0]
