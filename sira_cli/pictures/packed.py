"""Files that hold other files: how they are compressed, by their names, and which kinds are not read."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

from sira_cli.errors import SettingsError, install
from sira_cli.pictures.names import one_line
from sira_cli.pictures.sources import opened

_COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
_SHORT = {".tgz": ".tar.gz", ".tbz2": ".tar.bz2", ".txz": ".tar.xz", ".tzst": ".tar.zst"}
TARS = (".tar", *(f".tar{compression}" for compression in _COMPRESSIONS), *_SHORT)
ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError)  # of files that are damaged or cut off

_ARCHIVE = "is an archive, expected a picture, a folder or a data set: unpack it, then give the folder"
_COMPRESSED = "is compressed, which is read of .tar, .jsonl, .json, .csv and .tsv files only: unpack it first"
_SHEET = "is a spreadsheet, expected a picture or a table such as .csv: save it as CSV UTF-8"
_UNREAD = {
    **dict.fromkeys((".zip", ".7z", ".rar"), _ARCHIVE),
    **dict.fromkeys((*_COMPRESSIONS, ".lz4", ".lzma"), _COMPRESSED),
    **dict.fromkeys((".xlsx", ".xls", ".ods"), _SHEET),
}
UNREAD = frozenset(_UNREAD)


def endings_of(name: str) -> tuple[str, str]:
    """Return the ending of a file's name, and that of the compression around it: `.jsonl`, `.gz`; in lower case."""
    stem, last = os.path.splitext(name.lower())  # noqa: PTH122 (may be a URI)
    if last in _SHORT:
        stem, last = os.path.splitext(stem + _SHORT[last])  # noqa: PTH122
    if last not in _COMPRESSIONS:
        return last, ""
    inner = os.path.splitext(stem)[1]  # noqa: PTH122
    return inner, last


def unread(name: str) -> str:
    """Return why a file of this name is neither a picture nor a data set, and what to do; empty if it may be one."""
    return _UNREAD.get(os.path.splitext(name.lower())[1], "")  # noqa: PTH122


@contextmanager
def unpacked(location: str) -> Iterator[BinaryIO]:
    """Open a file, or an object in a store, and decompress it as its name says."""
    _, compression = endings_of(location)
    with opened(location) as file:
        match compression:
            case "":
                yield file
            case ".gz":
                yield cast(BinaryIO, gzip.GzipFile(fileobj=file))
            case ".bz2":
                yield cast(BinaryIO, bz2.BZ2File(file))
            case ".xz":
                yield cast(BinaryIO, lzma.LZMAFile(file))  # noqa: SIM115 (the file is closed by `opened`)
            case _:
                yield _zstandard(file, location)


def _zstandard(file: BinaryIO, location: str) -> BinaryIO:
    try:
        import pyarrow
    except ImportError as error:
        raise SettingsError(f"{one_line(location)}: is compressed by Zstandard: {install('data')}") from error
    return cast(BinaryIO, io.BufferedReader(pyarrow.CompressedInputStream(file, "zstd")))
