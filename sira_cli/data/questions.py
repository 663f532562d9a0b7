"""Files of questions, many about each picture: LLaVA's `question_id, image, text`, or `image, question`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sira_cli.data.groups import SEVERAL, names_in, picture_below
from sira_cli.data.rows import brief, read_rows, read_table, some
from sira_cli.errors import DataError, SettingsError
from sira_cli.pictures.cache import Cache
from sira_cli.pictures.find import Shard
from sira_cli.pictures.names import joined
from sira_cli.pictures.picture import Picture, group_of

KEPT = 8  # pictures whose bytes wait for the next question about them
_IDS, _IMAGES, _QUESTIONS = ("question_id", "id"), ("image", "file_name"), ("text", "question")


def question_pictures(
    file: Path,
    asking: Callable[[str], str],
    *,
    images: str | None = None,
    shard: Shard | None = None,
    limit: int | None = None,
) -> list[Picture]:
    """Return the questions of a file, in order, each with its picture."""
    base = str(file.parent) if images is None else images.rstrip("/")
    reads, found = Cache[bytes](KEPT), dict[str, Picture]()
    where = ""
    for where, row in _rows(file):
        names = names_in(where, row)
        name = joined(names) if names else _text(where, row, _IMAGES)
        question = _text(where, row, _QUESTIONS)
        if shard is not None and not shard.holds(name):
            continue
        number = _id(where, row)
        number = f"{name}: {question}" if number is None else number
        group = [picture_below(base, each) for each in names or [name]]
        picture = group_of(group) if names else group[0]
        each = picture.asking(asking(question), number, reads)
        if each.id in found:
            raise DataError(f"{where}: the question {each.id!r} stands twice: give each a `question_id` of its own")
        found[each.id] = each
        if len(found) == limit:
            break
    if not where:
        raise DataError(f"{file}: holds no questions")
    return list(found.values())


def _rows(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    ending = file.suffix.lower()
    if ending == ".parquet":
        try:
            yield from _parquet_rows(file)
        except (OSError, ValueError) as error:
            raise DataError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    elif ending in (".csv", ".tsv"):
        yield from read_table(file)[1]
    else:
        yield from read_rows(file)


def _parquet_rows(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise SettingsError(f"{file} needs pyarrow: pip install 'sira-cli[data]'") from error
    table = parquet.ParquetFile(file)
    columns = [name for name in table.schema_arrow.names if name in (*_IDS, SEVERAL, *_IMAGES, *_QUESTIONS)]
    number = 0
    for batch in table.iter_batches(columns=columns):
        for row in batch.to_pylist():
            yield f"{file}: row {number}", row
            number += 1


def _id(where: str, row: dict[str, Any]) -> str | int | None:
    """Return a question's id; in a table with empty cells, numbers may have become 1.0, 2.0 and NaN."""
    for name in _IDS:
        value = row.get(name)
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if value in (None, "") or value != value:
            continue
        if not isinstance(value, int | str):
            raise DataError(f"{where}: {name} is {brief(value)}: expected a text or a whole number")
        return value
    return None


def _text(where: str, row: dict[str, Any], names: tuple[str, ...]) -> str:
    for name in names:
        if isinstance(row.get(name), str) and row[name].strip():
            return str(row[name])
    found = [name for name in row if row[name] and str(row[name]).strip()]
    raise DataError(f"{where}: expected {' or '.join(names)}, found {some(found) or 'nothing'}")
