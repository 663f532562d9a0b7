"""Pictures in object stores (`s3://`, `gs://`, ...), by way of pyarrow's filesystems."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, BinaryIO
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from sira_cli.errors import SettingsError

GOOGLE_SECONDS = 15  # of tries; the library of Google's store goes on for a quarter of an hour
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def is_uri(path: str) -> bool:
    """Return whether a path names something in an object store."""
    return _URI.match(path) is not None


def public(uri: str) -> str:
    """Return a URI without credentials and options: for records and messages."""
    return without_password(re.split("[?#]", uri)[0])


def without_password(uri: str) -> str:
    """Return a URI without user and password."""
    try:
        parts = urlsplit(uri)
    except ValueError:  # such as `http://[x`: it will be an error of its own
        return re.sub(r"//[^/]*@", "//", uri)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


@contextmanager
def _connected() -> Iterator[None]:
    """Turn httpx's network errors under `hf://` into OSErrors, as other stores raise."""
    from httpx2 import HTTPError

    try:
        yield
    except HTTPError as error:
        raise OSError(str(error) or type(error).__name__) from error


@_connected()
def read(uri: str) -> bytes:
    """Return all bytes of an object.

    Raises:
        OSError: it does not exist, or cannot be read.
        SettingsError: no such kind of store.
    """
    filesystem, path = _located(uri)
    with filesystem.open_input_stream(path) as stream:
        data: bytes = stream.read()
    return data


@_connected()
def read_range(uri: str, offset: int, size: int) -> bytes:
    """Return a part of an object; fewer bytes if it ends before.

    Raises:
        OSError, SettingsError: as `read`.
    """
    filesystem, path = _located(uri)
    with filesystem.open_input_file(path) as file:
        data: bytes = file.read_at(size, offset)
    return data


@_connected()
def open_file(uri: str) -> BinaryIO:
    """Open an object for random access.

    Raises:
        OSError, SettingsError: as `read`.
    """
    filesystem, path = _located(uri)
    opened: BinaryIO = filesystem.open_input_file(path)
    return opened


@_connected()
def stream(uri: str) -> BinaryIO:
    """Open an object for reading from start to end.

    Raises:
        OSError, SettingsError: as `read`.
    """
    filesystem, path = _located(uri)
    opened: BinaryIO = filesystem.open_input_stream(path)
    return opened


def walk(uri: str, recursive: bool) -> Iterator[tuple[str, str]]:
    """Yield URI and path below for every file in a folder but hidden ones; for anything else the URI itself.

    A `*` in the last part of a URI stands for any characters, unless an object has that name. The order is that
    of a local folder: a folder's files by name, then its subfolders.

    Raises:
        SettingsError: there is no such kind of store, or it does not answer.
    """
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise SettingsError(f"{public(uri)}: is not a URI: {error}") from error
    try:
        with _connected():
            filesystem, path = _located(uri)
            from pyarrow.fs import FileSelector, FileType

            pattern = ""
            kind = filesystem.get_file_info(path).type
            if kind == FileType.NotFound and "*" in path.rpartition("/")[2]:
                path, _, pattern = path.rpartition("/")
                parts = parts._replace(path=parts.path.rpartition("/")[0])
                kind, recursive = filesystem.get_file_info(path).type, False
            if kind == FileType.Directory:
                found = filesystem.get_file_info(FileSelector(path, recursive=recursive))
        if kind != FileType.Directory:
            yield uri, parts.path.lstrip("/")
            return
    except OSError as error:
        reason = str(error).partition(" error_info=")[0]  # Google's library says all again after it
        raise SettingsError(f"{public(uri)}: cannot be listed: {reason}") from error
    files = [entry.path[len(path) :].strip("/").split("/") for entry in found if entry.type == FileType.File]
    visible = [names for names in files if not any(name.startswith(".") for name in names)]
    if pattern:
        visible = [names for names in visible if fnmatchcase(names[-1], pattern)]
    for names in sorted(visible, key=lambda names: [(1, name) for name in names[:-1]] + [(0, names[-1])]):
        below = "/".join(names)
        yield urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{quote(below)}")), below


def _located(uri: str) -> tuple[Any, str]:
    parts = urlsplit(uri)
    if parts.scheme.lower() in ("gs", "gcs") and "retry_limit_seconds" not in parts.query:
        query = "&".join(filter(None, (parts.query, f"retry_limit_seconds={GOOGLE_SECONDS}")))
    else:
        query = parts.query
    filesystem, root = _filesystem(urlunsplit(parts._replace(path="/", query=query)))
    return filesystem, root.rstrip("/") + unquote(parts.path).rstrip("/")


@functools.cache  # one client per store serves all pictures, in all threads
def _filesystem(root: str) -> tuple[Any, str]:
    if urlsplit(root).scheme.lower() in ("http", "https"):
        raise SettingsError(f"{public(root)}: only single pictures are read from the web: download files with many")
    try:
        from pyarrow.fs import FileSystem
    except ImportError as error:
        raise SettingsError(f"{public(root)} needs pyarrow: pip install 'sira-cli[parquet]'") from error
    try:
        filesystem, path = FileSystem.from_uri(root)
    except ValueError as error:  # pyarrow's ArrowInvalid
        reason = str(error).replace(root, public(root))
        raise SettingsError(f"{public(root)}: {reason}: expected a store such as s3://bucket/folder") from error
    return filesystem, path
