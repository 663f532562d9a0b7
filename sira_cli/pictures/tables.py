"""Parquet and Arrow files with a column of pictures."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sira_cli.errors import DataError, PictureError
from sira_cli.pictures import rows, stores
from sira_cli.pictures.containers import BrokenPicture, ContainedPicture, Container
from sira_cli.pictures.names import one_line
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.sources import located
from sira_cli.pictures.together import pack, unpack

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
    """The picture in a row of a table, or its pictures; `member` is its id, or the number of the row.

    Attributes:
        sources: columns with the picture: its bytes, its path or URI, or both as the Hub's `struct<bytes, path>`; or a
            list of these.
        several: whether pictures are shown together: of several columns, or of a list.
        row: counted from 0.
        allow_private: whether a URL may lead to an address that is not public.
    """

    sources: tuple[str, ...]
    several: bool
    row: int
    allow_private: bool = False

    @property
    def is_group(self) -> bool:
        """Whether `several` is set."""
        return self.several

    def read(self) -> bytes:
        """Return the picture's bytes, those of several packed; a path is read."""
        cells = self._cells(self.sources)
        found = [self._file(column, value) for column in self.sources for value in _listed(cells[column])]
        if not found:
            raise self._without(self.sources[0])
        return pack(found) if self.several else found[0]

    def files(self, data: bytes) -> list[tuple[str, bytes]]:
        """Return the name and the bytes of each picture."""
        if not self.several:
            return super().files(data)
        return [(f"{self.shown}, picture {number}", file) for number, file in enumerate(unpack(data), start=1)]

    def _file(self, column: str, value: Any) -> bytes:
        if isinstance(value, dict):
            value = value.get("path") if value.get("bytes") is None else value["bytes"]
        if isinstance(value, str) and value:
            return located(_beside(self.container, value), allow_private=self.allow_private).read()
        if not isinstance(value, bytes):
            raise self._without(column)
        return value

    def _without(self, column: str) -> PictureError:
        return PictureError(f"{self.shown}: row {self.row} has no picture in column {column}")

    def column_names(self) -> list[str]:
        """Return the names of the other columns."""
        try:
            return [name for name in rows.schema(self.container).names if name not in self.sources]
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
        image: the name of this column, or several, `a,b`, whose pictures are shown together; None: found by type and
            name.
        id: the column whose values name the rows; None: they are numbered.
        allow_private: whether URLs may lead to addresses that are not public.
    """

    image: str | None = None
    id: str | None = None
    allow_private: bool = False

    def pictures(self) -> Iterator[Picture]:
        """Yield the picture of each row; only the ids are read.

        Raises:
            DataError: no such column, or an id occurs twice.
            SettingsError: pyarrow is missing.
        """
        shown = one_line(self.location)
        try:
            schema = rows.schema(self.location)
            sources = picture_columns(shown, schema, self.image)
            several = len(sources) > 1 or _is_list(schema.field(sources[0]).type)
            for number, member in enumerate(self._names(shown, schema)):
                yield RowPicture(
                    f"{self.location}/{member}",
                    f"{self.relative}/{member}",
                    self.location,
                    member,
                    sources,
                    several,
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


def is_table_of_records(path: Path) -> bool:
    """Return whether a file is a table of sira's records (`-o captions.parquet`), not a data set with pictures inside.

    Raises:
        SettingsError: pyarrow is missing.
    """
    if not is_table(path.name) or not path.is_file():
        return False
    try:
        schema = rows.schema(str(path))
        return "schema" in schema.names and picture_columns(path.name, schema, None) == ("file_name",)
    except (DataError, OSError, ValueError):
        return False


def picture_columns(shown: str, schema: Any, name: str | None) -> tuple[str, ...]:
    """Return the column with the pictures, or those whose pictures are shown together.

    Args:
        shown: the table's name, for messages.
        schema: of pyarrow.
        name: the column, if it is known; several as `a,b`.

    Raises:
        DataError: no such column, or more than one; the message lists the columns.
    """
    if name is not None:
        parts = () if name in schema.names else tuple(part for each in name.split(",") if (part := each.strip()))
        names = parts or (name,)
        for each in names:
            _check_column(shown, schema, each)
        return names
    structs = [field.name for field in schema if _is_struct(field.type)]
    named = [column for column in NAMES if column in schema.names and _is_plain(schema.field(column).type)]
    lists = [field.name for field in schema if _is_list(field.type) and _is_struct(field.type.value_type)]
    if not structs and not named and not lists:
        raise DataError(
            f"{shown}: no column of pictures found: the columns are {_list(schema.names)}: name one with "
            "`image_column=`"
        )
    if len(structs) > 1 or (not structs and not named and len(lists) > 1):
        raise DataError(
            f"{shown}: several columns of pictures: {_list(structs or lists)}: name one with `image_column=`, or "
            "several that are shown together"
        )
    return ((structs or named or lists)[0],)


def _check_column(shown: str, schema: Any, name: str) -> None:
    if name not in schema.names:
        raise DataError(f"{shown}: `image_column=` {name}: no such column; the columns are {_list(schema.names)}")
    kind = schema.field(name).type
    each = kind.value_type if _is_list(kind) else kind
    if not (_is_struct(each) or _is_plain(each)):
        raise DataError(
            f"{shown}: `image_column=` {name} is of type {kind}: expected bytes, paths, or a struct of both"
        )


def _is_struct(kind: Any) -> bool:
    """Return whether a type is the Hub's: a struct of bytes and path."""
    import pyarrow

    return pyarrow.types.is_struct(kind) and {"bytes", "path"} <= {field.name for field in kind}


def _is_list(kind: Any) -> bool:
    """Return whether a type is a list."""
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


def _is_plain(kind: Any) -> bool:
    """Return whether a type is bytes or text, perhaps as references to a dictionary."""
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    return str(kind).removeprefix("large_").removesuffix("_view") in ("binary", "string")


def _beside(table: str, path: str) -> str:
    """Resolve a path in a table, which is relative to the table's folder."""
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
