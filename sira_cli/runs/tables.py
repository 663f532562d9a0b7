"""A file of records as a table: CSV, or Parquet (extra `parquet`)."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from collections.abc import Iterable
from dataclasses import fields
from itertools import chain, islice
from pathlib import Path
from typing import Any

from sira_cli.errors import SettingsError
from sira_cli.files import replacing
from sira_cli.models.records import OPTIONAL, Result

COLUMNS = [field.name for field in fields(Result)]
ROWS = 10_000  # in a Parquet row group


def check_format(path: Path) -> None:
    """Check that a table can be written there.

    Raises:
        SettingsError: Parquet needs pyarrow, which is missing.
    """
    if path.suffix.lower() == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise SettingsError(f"{path}: Parquet needs pyarrow: pip install 'sira-cli[parquet]', or write .csv")


def write_table(records: Iterable[dict[str, Any]], path: Path) -> None:
    """Write records to a .csv or .parquet file, one row each; what is nested (`words`, ...) is written as JSON.

    Raises:
        SiraError: it cannot be written.
    """
    write = _write_parquet if path.suffix.lower() == ".parquet" else _write_csv
    rows = iter(records)
    first = next(rows, {})
    columns = [name for name in COLUMNS if name in first or name not in OPTIONAL]
    flat = (_flat(row) for row in chain([first] if first else [], rows))
    with replacing(path) as file:
        write(flat, columns, file)


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    nested = {name: value for name, value in record.items() if isinstance(value, list | dict)}
    return record | {name: json.dumps(value, ensure_ascii=False) for name, value in nested.items()}


def _write_csv(records: Any, columns: list[str], file: Any) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    writer = csv.DictWriter(text, columns, extrasaction="ignore")
    writer.writeheader()
    writer.writerows(records)
    text.detach()


def _write_parquet(records: Any, columns: list[str], file: Any) -> None:
    import pyarrow
    from pyarrow import parquet

    kinds = {"int": pyarrow.int64(), "float": pyarrow.float64()}
    types = {
        field.name: kinds.get(str(field.type).removesuffix(" | None"), pyarrow.string()) for field in fields(Result)
    }
    schema = pyarrow.schema([(name, types[name]) for name in columns])
    with parquet.ParquetWriter(file, schema) as writer:
        while rows := list(islice(records, ROWS)):
            writer.write_table(pyarrow.Table.from_pylist(rows, schema))
