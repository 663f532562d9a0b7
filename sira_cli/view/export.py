"""The corrected captions as a new file: the original's lines with edits, without rejected ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sira_cli.data.captions.files import is_failure, with_text
from sira_cli.data.groups import SEVERAL
from sira_cli.data.records.lines import as_line
from sira_cli.errors import SettingsError
from sira_cli.files import replacing
from sira_cli.view.collection import Collection
from sira_cli.view.edits import Edits
from sira_cli.view.items import CaptionItem
from sira_cli.view.line_reading import MARK

_PIECE = 2**16  # bytes


def export(captions: Collection, edits: Edits, path: str | Path) -> int:
    """Write the corrected captions as lines of JSON; unchanged lines equal the original's byte for byte.

    Args:
        captions: the originals.
        edits: the changes to apply.
        path: a file that ends in .jsonl; picture names are written relative to its folder.

    Returns:
        The number of captions written.

    Raises:
        SettingsError: the path is that of the originals or of the log.
        SiraError: it cannot be written.
    """
    target = Path(path)
    if target.suffix.lower() != ".jsonl":
        raise SettingsError(f"`export=` {target}: expected a file that ends in .jsonl")
    if target.resolve() in (captions.source.resolve(), edits.path.resolve()):
        raise SettingsError(f"`export=` {target}: would replace what it is made from: give another file")
    edits.refresh()
    count = 0
    with replacing(target) as file:
        for line in exported(captions, edits, target.parent):
            file.write(line)
            count += 1
    return count


def exported(captions: Collection, edits: Edits, folder: Path | None = None) -> Iterator[bytes]:
    """Yield the lines of `export`.

    Args:
        captions, edits: as for `export`.
        folder: the folder that names are relative to; None: that of the originals.
    """
    moved = folder is not None and folder.resolve() != captions.folder.resolve()
    for number, name, raw in captions.lines():
        if name not in edits.history.states and raw is not None and not moved:
            yield _ended(raw.removeprefix(MARK))
            continue
        item = captions.item(number)
        state = edits.state(item)
        if state.decision == "rejected":
            continue
        if state.text == item.text and item.raw is not None and not moved:
            yield _ended(item.raw)
            continue
        values = _with(item, state.text)
        if moved and folder is not None:
            values |= _names(item, item.picture.name_in(folder.resolve()))
        yield as_line(values)


def _names(item: CaptionItem, name: str) -> dict[str, Any]:
    """Return the fields that name an item's picture, or its pictures."""
    images = item.picture.images(name)
    listed = [column for column in (item.image_column, SEVERAL) if images and isinstance(item.values.get(column), list)]
    return {item.image_column: name, **dict.fromkeys(listed, images)}


def in_pieces(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines joined to larger pieces: sending a piece costs as much as a hundred lines."""
    piece, size = [], 0
    for line in lines:
        piece.append(line)
        size += len(line)
        if size >= _PIECE:
            yield b"".join(piece)
            piece, size = [], 0
    yield b"".join(piece)


def _ended(line: bytes) -> bytes:
    return line if line.endswith(b"\n") else line + b"\n"


def _with(item: CaptionItem, text: str) -> dict[str, Any]:
    """Return an item's row with a text. A failed record becomes a successful one once it has a text."""
    named = {} if item.image_column in item.values else {item.image_column: item.name, item.text_column: item.text}
    values = {**named, **item.values}
    if text == item.text:
        return values
    values = with_text({item.text_column: item.text, **values}, item.text_column, text)
    if is_failure(values):
        values |= {"status": "ok", "error": ""}
    return values
