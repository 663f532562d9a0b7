"""Tables, which Hugging Face's `datasets` (extra `data`) streams: their rows, and the column with the pictures."""

from __future__ import annotations

import glob
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

from sira_cli.errors import DataError, SettingsError, install
from sira_cli.pictures.names import is_uri, one_line
from sira_cli.pictures.rows import IMAGE_COLUMNS, usual_column
from sira_cli.pictures.sources import connected

# Tables with types, by ending: the builder, and its options.
TABLES: dict[str, tuple[str, dict[str, Any]]] = {".parquet": ("parquet", {"batch_size": 8}), ".arrow": ("arrow", {})}


def ending_of(name: str) -> str:
    """Return the ending of a file's name, in lower case."""
    return os.path.splitext(name)[1].lower()  # noqa: PTH122 (may be a URI)


def rows_of(location: str) -> Any:
    """Return the rows of a table as mappings; pictures are not decoded."""
    try:
        import datasets
    except ImportError as error:
        raise SettingsError(f"{one_line(location)}: is a data set: {install('data')}") from error
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    if is_uri(location):
        with connected(location):
            pass  # refuses what cannot be read here
    builder, options = TABLES[ending_of(location)]
    if builder == "parquet":
        from pyarrow.dataset import ParquetFragmentScanOptions

        # By default, all row groups that were read stay in memory.
        options = {**options, "fragment_scan_options": ParquetFragmentScanOptions(pre_buffer=False)}
    place = glob.escape(location if is_uri(location) else os.path.abspath(location))  # noqa: PTH100 (may be no text)
    with tempfile.TemporaryDirectory(prefix="sira-") as cache:  # for the builder's lock: nothing else is written
        rows = datasets.load_dataset(
            builder, data_files=place, split="train", streaming=True, cache_dir=cache, **options
        )
    return rows.decode(False)


def picture_columns(shown: str, kinds: Mapping[str, str], name: str | None) -> tuple[tuple[str, ...], bool]:
    """Return the column with the pictures, or those whose pictures are shown together; and whether it holds lists."""
    columns = (_usual_column(shown, kinds),) if name is None else _named_columns(shown, kinds, name)
    return columns, len(columns) == 1 and kinds[columns[0]].startswith("list of ")


def _named_columns(shown: str, kinds: Mapping[str, str], name: str) -> tuple[str, ...]:
    columns = parts_of(name)
    if name in kinds or not columns:
        columns = [name]
    for column in columns:
        if column not in kinds:
            raise DataError(f"{shown}: `image_column=` {column}: no such column; the columns are {_names(kinds)}")
        kind = kinds[column]
        if kind.removeprefix("list of ") not in ("picture", "plain"):
            expected = "expected bytes, paths, or a struct of both"
            raise DataError(f"{shown}: `image_column=` {column} is of type {kind}: {expected}")
    return tuple(columns)


def _usual_column(shown: str, kinds: Mapping[str, str]) -> str:
    """Return the column of pictures by its type, or, if it holds texts, by a usual name."""
    texts = [name for name, kind in kinds.items() if kind in ("plain", "list of plain")]
    found = [name for name, kind in kinds.items() if kind == "picture"]
    usual = usual_column(texts, IMAGE_COLUMNS)
    if not found and usual is not None:
        found = [usual]
    if not found:
        found = [name for name, kind in kinds.items() if kind == "list of picture"]
    if not found:
        way = "name one with `image_column=`"
        raise DataError(f"{shown}: no column of pictures found: the columns are {_names(kinds)}: {way}")
    if len(found) > 1:
        way = "name one with `image_column=`, or several that are shown together"
        raise DataError(f"{shown}: several columns of pictures: {_names(found)}: {way}")
    return found[0]


def _names(columns: Iterable[str]) -> str:
    return ", ".join(map(one_line, columns)) or "none"


def kind_of_type(feature: Any) -> str:
    """Return the kind of a column: `picture`, `plain`, `list of ...`, or its type."""
    from datasets import Image

    if isinstance(feature, Image) or _is_struct(feature):
        return "picture"
    inner = getattr(feature, "feature", None)
    if inner is not None:
        return f"list of {kind_of_type(inner)}"
    kind = str(getattr(feature, "dtype", feature))
    return "plain" if re.fullmatch("(large_)?(string|binary)(_view)?|null", kind) else kind


def kind_of(values: Iterable[Any]) -> str:
    """Return the kind of a column of JSON values, or of cells, as `kind_of_type` does."""
    kinds = {_kind_of_value(value) for value in values if value is not None and value != []}
    return " or ".join(sorted(kinds)) or "plain"


def _kind_of_value(value: Any) -> str:
    if isinstance(value, list):
        return f"list of {kind_of(value)}"
    if _is_struct(value):
        return "picture"
    return "plain" if isinstance(value, str) else type(value).__name__


def _is_struct(value: Any) -> bool:
    """Return whether a value, or a column's type, has the bytes of a picture and its path."""
    return isinstance(value, dict) and {"bytes", "path"} <= value.keys()


def parts_of(names: str) -> list[str]:
    """Return names that commas divide."""
    return [part.strip() for part in names.split(",") if part.strip()]
