"""The output of a data set's file when all its pictures have their texts: records, a table, a new shard."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sira_cli.data.records.lines import as_line
from sira_cli.data.records.tables import write_table
from sira_cli.files import replacing
from sira_cli.pictures import rows
from sira_cli.pictures.names import as_text
from sira_cli.pictures.tables import is_table
from sira_cli.pictures.webdataset import key_and_extension, members_of, opened_tar

KEY = "__key__"  # as WebDataset calls it
_COLUMNS = ("text", "status", "error", "finish_reason")  # that a table gets
# And these as JSON, if there are any.
_NESTED = (
    "warnings",
    "words",
    "choices",
    "objects",
    "claims",
    "verify",
    "removed",
    "candidates",
    "added",
    "forbidden",
    "data",
)
_RARE = (*_NESTED, "draft", "reasoning")  # columns of few runs
_ROWS = 100  # in a row group: with pictures in it, each is some ten megabytes


def write_jsonl(records: Mapping[str, dict[str, Any]], path: Path) -> None:
    """Write records as lines of JSON, each with its key.

    Args:
        records: by key.
        path: of the new file.

    Raises:
        SiraError: the file cannot be written.
    """
    with replacing(path) as file:
        file.writelines(_lines(records))


def write_parquet(records: Mapping[str, dict[str, Any]], source: str, keys: Iterable[str], path: Path) -> None:
    """Write a table of records; if the source is a table, copy it with more columns.

    Args:
        records: by key.
        source: the data set's file.
        keys: of its rows, in order; later rows are numbered.
        path: of the new file.

    Raises:
        SiraError: the file cannot be written.
    """
    if is_table(source):
        _widen(records, source, iter(keys), path)
    else:
        write_table(_lines(records), path, {KEY, *(name for record in records.values() for name in record)})


def write_tar(records: Mapping[str, dict[str, Any]], source: str, extension: str, path: Path) -> None:
    """Copy a shard, and add each key's text as a member; of a damaged shard, only complete members are copied.

    Args:
        records: by key.
        source: the shard.
        extension: of the new members, such as `caption.txt`; members of this extension are left out.
        path: of the new shard.

    Raises:
        SiraError: the file cannot be written.
    """
    with replacing(path) as file, tarfile.open(fileobj=file, mode="w") as new:
        texts = {
            record["file_name"].partition("/")[2]: record["text"].encode()
            for record in records.values()
            if record["status"] == "ok"
        }
        current, text = "", None
        for member, data in _members(source):
            key, ending = key_and_extension(member.name) or ("", "")
            if ending == extension:
                continue
            if key != current:
                _add_text(new, f"{current}.{extension}", text)
                current, text = key, texts.pop(as_text(key), None)  # of several pictures of a key
            text = texts.pop(as_text(member.name), text)
            new.addfile(member, io.BytesIO(data))
            new.members = []  # type: ignore[attr-defined] # it would keep all of them
        _add_text(new, f"{current}.{extension}", text)


def _members(source: str) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """Yield the files in a shard, up to the first that is damaged."""
    with suppress(tarfile.TarError, EOFError), opened_tar(source) as archive:
        for member in members_of(archive):
            if (content := archive.extractfile(member) if member.isreg() else None) is not None:
                yield member, content.read()


def _add_text(tar: tarfile.TarFile, name: str, text: bytes | None) -> None:
    if text is not None:
        member = tarfile.TarInfo(name)
        member.size = len(text)
        tar.addfile(member, io.BytesIO(text))


def _lines(records: Mapping[str, dict[str, Any]]) -> Iterator[bytes]:
    for key, record in records.items():
        yield as_line({"schema": record["schema"], KEY: key, **record})


def _widen(records: Mapping[str, dict[str, Any]], source: str, keys: Iterator[str], path: Path) -> None:
    """Copy a table in small batches, with more columns. If a name is taken, the new column is `sira_NAME`."""
    import pyarrow
    from pyarrow import parquet

    schema = rows.schema(source)
    rare = [name for name in _RARE if any(name in record for record in records.values())]
    new = [*_COLUMNS, *rare]
    wider = schema
    for name in new:
        while name in wider.names:
            name = f"sira_{name}"
        wider = wider.append(pyarrow.field(name, pyarrow.string()))
    first = 0
    with replacing(path) as file, parquet.ParquetWriter(file, wider) as writer:
        for batch in rows.all_batches(source, _ROWS):
            found = [records.get(next(keys, str(first + row))) for row in range(batch.num_rows)]
            added = [pyarrow.array([_cell(record, name) for record in found], pyarrow.string()) for name in new]
            writer.write_batch(pyarrow.record_batch([*batch.columns, *added], schema=wider))
            first += batch.num_rows


def _cell(record: dict[str, Any] | None, name: str) -> str | None:
    if record is None or name not in record:
        return None
    return json.dumps(record[name], ensure_ascii=False) if name in _NESTED else str(record[name])
