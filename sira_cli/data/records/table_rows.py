"""Records read back from the tables that `-o captions.parquet` writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from sira_cli.data.records.record import OPTIONAL
from sira_cli.errors import DataError
from sira_cli.pictures import rows


def table_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place and the original form of each record of a table, where nested values are JSON.

    Raises:
        DataError: the table cannot be read.
        SettingsError: pyarrow is missing.
    """
    try:
        names = tuple(rows.schema(str(path)).names)
        for first, batch in rows.batches(str(path), names):
            for number, row in enumerate(batch.to_pylist(), start=first + 1):
                record = {name: _unpacked(name, value) for name, value in row.items() if value is not None}
                yield f"{path}: row {number}", record
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def _unpacked(name: str, value: Any) -> Any:
    if name in OPTIONAL and name != "draft" and isinstance(value, str) and value.startswith(("[", "{")):
        with suppress(ValueError):
            return json.loads(value)
    return value
