"""Object stores and the Hugging Face Hub (`s3://`, `gs://`, `hf://`, ...), by way of fsspec."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit, urlunsplit

from sira_cli.errors import SettingsError

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def is_uri(path: str) -> bool:
    """Return whether a path names something in an object store, or on the web."""
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
def opened(uri: str) -> Iterator[BinaryIO]:
    """Open an object, or a local path, for random access."""
    with _connected(uri):
        filesystem, path = filesystem_of(uri)
        with filesystem.open(path, "rb") as file:
            yield cast(BinaryIO, file)


def walk(uri: str, recursive: bool) -> Iterator[tuple[str, str]]:
    """Yield URI and path below for every file in a folder but hidden ones; for anything else the URI itself.

    A `*` in the last part of a URI stands for any characters, unless an object has that name. The order is that
    of a local folder: a folder's files by name, then its subfolders.
    """
    try:
        with _connected(uri):
            filesystem, path = filesystem_of(uri)
            found: list[str] | None = None
            if filesystem.isdir(path):
                found = filesystem.find(path, maxdepth=None if recursive else 1)
            elif "*" in path.rpartition("/")[2] and not filesystem.exists(path):
                found, path = filesystem.glob(path), path.rpartition("/")[0]
    except OSError as error:
        raise SettingsError(f"{public(uri)}: cannot be listed: {error}") from error
    if found is None:
        yield uri, uri.partition("://")[2]
        return
    below = [name[len(path.rstrip("/")) :].strip("/").split("/") for name in found]
    visible = [names for names in below if not any(name.startswith(".") for name in names)]
    folder = uri.rpartition("/")[0] if "*" in uri.rpartition("/")[2] else uri.rstrip("/")
    for names in sorted(visible, key=lambda names: [(1, name) for name in names[:-1]] + [(0, names[-1])]):
        yield f"{folder}/{'/'.join(names)}", "/".join(names)


@contextmanager
def _connected(uri: str) -> Iterator[None]:
    """Turn the errors of every kind of store into an OSError."""
    try:
        yield
    except (OSError, SettingsError):
        raise
    except Exception as error:
        raise OSError(f"{public(uri)}: {str(error) or type(error).__name__}") from error


def filesystem_of(uri: str) -> tuple[Any, str]:
    """Return the store of a URI, and the path in it; refuse a kind of store that cannot be read here."""
    from fsspec.core import url_to_fs

    try:
        filesystem, path = url_to_fs(uri)
    except ImportError as error:
        raise SettingsError(f"{public(uri)}: {error}, with pip") from error
    except ValueError as error:
        raise SettingsError(f"{public(uri)}: {error}: expected a store such as s3://bucket/folder") from error
    return filesystem, path
