"""Records as a table: CSV, or Parquet (extra `data`)."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from collections.abc import Container, Iterable
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

from sira_cli.errors import SettingsError, install
from sira_cli.files import replacing
from sira_cli.run.records import OPTIONAL, Result

COLUMNS = [field.name for field in fields(Result)]
ROWS = 10_000  # in a Parquet row group


def write_table(records: Iterable[dict[str, Any]], path: Path, keys: Container[str]) -> None:
    """Write records to a .csv or .parquet file, one row each; nested fields (`words`, ...) are JSON."""
    is_parquet = path.suffix.lower() == ".parquet"
    if is_parquet and importlib.util.find_spec("pyarrow") is None:
        raise SettingsError(f"{path}: Parquet needs pyarrow: {install('data')}, or write .csv")
    ids = ["id"] if "id" in keys else []
    columns = [*ids, *(name for name in COLUMNS if name in keys or name not in OPTIONAL)]
    with replacing(path) as file:
        (_write_parquet if is_parquet else _write_csv)(map(_flat, records), columns, file)


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with its lists and mappings, and the value of a schema, as JSON."""
    return {
        name: json.dumps(value, ensure_ascii=False) if name == "data" or isinstance(value, list | dict) else value
        for name, value in record.items()
    }


def _write_csv(records: Any, columns: list[str], file: Any) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows([record.get(name, "") for name in columns] for record in records)
    text.detach()


def _write_parquet(records: Any, columns: list[str], file: Any) -> None:
    import pyarrow
    from pyarrow import parquet

    kinds = {"int": pyarrow.int64(), "float": pyarrow.float64()}
    types = {
        field.name: kinds.get(str(field.type).removesuffix(" | None"), pyarrow.string()) for field in fields(Result)
    }
    schema = pyarrow.schema([(name, types.get(name, pyarrow.string())) for name in columns])
    with parquet.ParquetWriter(file, schema) as writer:
        while rows := list(islice(records, ROWS)):
            writer.write_table(pyarrow.Table.from_pylist(rows, schema))
