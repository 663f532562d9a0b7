"""Kinds of sources of captions, and their readers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sira_cli.data.captions.files import ENDINGS, TEXT_COLUMNS, CaptionFile, CaptionRow, metadata_in
from sira_cli.data.captions.texts import METADATA, Found, texts_of_pictures
from sira_cli.data.records.table_rows import table_rows
from sira_cli.errors import PictureError, SettingsError
from sira_cli.pictures.find import find_pictures, is_container
from sira_cli.pictures.names import as_text, one_line
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.tables import is_table, is_table_of_records
from sira_cli.view.items import CaptionItem
from sira_cli.view.line_reading import MARK, LineReading
from sira_cli.view.reading import Reading, WholeReading, row_of, signature_of, unreadable

EDITS = ".edits.jsonl"
_NO_RECORDS = (EDITS, ".errors.jsonl")  # files in a folder that are not captions


def reading_of(
    source: str | Path, recursive: bool, extension: str, image_column: str | None, text_column: str | None
) -> Reading:
    """Return the reader for a source.

    Args:
        source: a file of captions, a folder, or a data set.
        recursive: include subfolders.
        extension: of text files next to pictures.
        image_column, text_column: of files of captions; None: the first usual name.

    Raises:
        DataError: a file cannot be read.
        SettingsError: it is not a source of captions, or holds no pictures.
    """
    place = Path(source)
    columns = (image_column, text_column)
    if not place.exists():
        raise SettingsError(f"{one_line(str(source))}: no such file or folder")
    if place.is_dir():
        if _of_folder(place, recursive, extension, or_files=True) is not None:
            return WholeReading(
                lambda: _of_folder(place, recursive, extension) or [], lambda: signature_of(place, recursive=recursive)
            )
        if all(_is_lines(file) for file in _files_in(place)):
            return LineReading(lambda: _files_in(place), *columns)
        return WholeReading(
            lambda: [row for file in _files_in(place) for row in _rows_of(file, *columns)],
            lambda: signature_of(*_files_in(place)),
        )
    if not is_table_of_records(place) and is_container(str(place)):
        return WholeReading(
            lambda: [_of_data_set(picture) for picture in find_pictures([str(place)])], lambda: signature_of(place)
        )
    if is_table_of_records(place) or (place.is_file() and place.suffix.lower() in ENDINGS):
        if _is_lines(place):
            return LineReading(lambda: [place], *columns)
        return WholeReading(lambda: _rows_of(place, *columns), lambda: signature_of(place))
    raise SettingsError(
        f"{one_line(str(source))}: expected a folder of pictures, or a file of captions "
        f"({', '.join(ENDINGS)}, .tar, .parquet)"
    )


def folder_of(place: Path) -> Path:
    """Return the folder that picture names are relative to."""
    return place if place.is_dir() else place.parent


def _is_lines(path: Path) -> bool:
    """Return whether a file holds lines of JSON that can be read one by one.

    Raises:
        DataError: the file cannot be read.
    """
    if path.suffix.lower() != ".jsonl":
        return False
    try:
        with path.open("rb") as file:
            return not file.read(64).lstrip(MARK + b" \t\r\n").startswith(b"[")
    except OSError as error:
        raise unreadable(path, error) from error


def _rows_of(path: Path, image_column: str | None, text_column: str | None) -> list[CaptionRow | None]:
    """Return the rows of a file of captions that is read as a whole; None for one that cannot be read.

    Args:
        path: .jsonl with one array, .json, .csv, .tsv, or a table of records.
        image_column, text_column: the columns' names; None: the first usual name that a row has.

    Raises:
        DataError: the file cannot be read, or lacks a column.
    """
    if is_table(path.name):
        return [row_of(values, image_column, text_column) for _, values in table_rows(path)]
    return [*CaptionFile.read(path, image_column, text_column).rows]


def _of_folder(folder: Path, recursive: bool, extension: str, *, or_files: bool = False) -> list[CaptionItem] | None:
    """Return the pictures of a folder with the texts next to them; None for `or_files` if no picture has one."""
    try:
        pictures = find_pictures([str(folder)], recursive=recursive)
    except SettingsError:
        if or_files and _files_in(folder):
            return None
        raise
    if any(picture.has_columns for picture in pictures):
        return [_of_data_set(picture) for picture in pictures]
    texts = texts_of_pictures(pictures, extension, None)
    if or_files and not texts and _files_in(folder):
        return None
    texts = texts or texts_of_pictures(pictures, METADATA, None)
    return [_of_file(picture, texts.get(picture.identity)) for picture in pictures]


def _of_file(picture: Picture, found: Found | None) -> CaptionItem:
    name = as_text(picture.relative)
    text, source, error = found or Found("")
    facts = {"status": "error", "error": error} if error else {"source": source} if source else {}
    return CaptionItem(name, name, picture, text, facts)


def _files_in(folder: Path) -> list[Path]:
    """Return the metadata of a folder; without any, its files of records."""
    if (metadata := metadata_in(folder)) is not None:
        return [metadata]
    lines = [file for file in folder.glob("*.jsonl") if not file.name.endswith(_NO_RECORDS)]
    tables = [file for file in folder.glob("*.parquet") if file.with_suffix(".jsonl") not in lines]
    return sorted([*lines, *filter(is_table_of_records, tables)])


def _of_data_set(picture: Picture) -> CaptionItem:
    """Return a picture of a data set with the text next to it."""
    values: Mapping[str, Any] = {}
    try:
        names = [name for name in picture.column_names() if _names_text(name)]
        values = picture.columns(names) if names else {}
    except PictureError:
        pass  # opening it raises the error
    text = next((values[name] for name in sorted(values, key=_text_order) if isinstance(values.get(name), str)), "")
    name = as_text(picture.relative)
    return CaptionItem(name, name, picture, text.strip())


def _names_text(name: str) -> bool:
    return name.lower() in TEXT_COLUMNS or name.lower().rpartition(".")[2] == "txt"


def _text_order(name: str) -> int:
    return TEXT_COLUMNS.index(name.lower()) if name.lower() in TEXT_COLUMNS else len(TEXT_COLUMNS)
