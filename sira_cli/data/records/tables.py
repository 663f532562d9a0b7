"""A file of records as a table: CSV, or Parquet (extra `parquet`)."""

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

from sira_cli.data.records.lines import split_optional
from sira_cli.data.records.record import OPTIONAL, Result
from sira_cli.errors import SettingsError
from sira_cli.files import replacing

COLUMNS = [field.name for field in fields(Result)]
ROWS = 10_000  # in a Parquet row group


def check_format(path: Path) -> None:
    """Check that a table can be written in the format that its name says.

    Raises:
        SettingsError: Parquet needs pyarrow, which is missing.
    """
    if path.suffix.lower() == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise SettingsError(f"{path}: Parquet needs pyarrow: pip install 'sira-cli[parquet]', or write .csv")


def write_table(lines: Iterable[bytes], path: Path, keys: Container[str] = ()) -> None:
    """Write records to a .csv or .parquet file, one row each; nested fields (`words`, ...) stay JSON.

    Args:
        lines: of a file of records.
        path: of the table.
        keys: all keys of the records.

    Raises:
        SiraError: the file cannot be written.
    """
    write = _write_parquet if path.suffix.lower() == ".parquet" else _write_csv
    ids = [name for name in ("__key__", "id") if name in keys]
    columns = [*ids, *(name for name in COLUMNS if name in keys or name not in OPTIONAL)]
    with replacing(path) as file:
        write(map(_flat, lines), columns, file)


def _flat(line: bytes) -> dict[str, Any]:
    """Return a record whose lists and mappings stay unparsed JSON: they are long, and stand at its end."""
    if not line.startswith(b'{"schema": "sira.'):
        line = json.dumps(_as_written(json.loads(line)), ensure_ascii=False).encode()
    rest, optional = split_optional(line)
    record: dict[str, Any] = json.loads(rest + b"}")
    for name, value in optional.items():
        record[name] = value.decode() if name == "data" or value.startswith((b"[", b"{")) else json.loads(value)
    return record


def _as_written(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with its fields in sira's order."""
    return {name: record[name] for name in COLUMNS if name in record}


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
