"""Object stores and the Hugging Face Hub (`s3://`, `gs://`, `hf://`, ...), by way of fsspec."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit, urlunsplit

from sira_cli.errors import SettingsError

Tree = dict[str, Any]  # what is in a folder, by name: None for a file, a tree for a folder
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


def tree(uri: str, recursive: bool) -> tuple[str, Tree | None]:
    """Return a folder's URI and everything in it, nested by name; for anything else its path, and None.

    A `*` in the last part of a URI stands for any characters, unless an object has that name.
    """
    try:
        with _connected(uri):
            filesystem, path = filesystem_of(uri)
            if filesystem.isdir(path):
                found, folder = filesystem.find(path, maxdepth=None if recursive else 1), uri.rstrip("/")
            elif "*" in path.rpartition("/")[2] and not filesystem.exists(path):
                found, path, folder = filesystem.glob(path), path.rpartition("/")[0], uri.rpartition("/")[0]
            else:
                return uri.partition("://")[2], None
    except OSError as error:
        raise SettingsError(f"{public(uri)}: cannot be listed: {error}") from error
    root: Tree = {}
    for name in found:
        *folders, file = name[len(path.rstrip("/")) :].strip("/").split("/")
        inside = root
        for each in folders:
            inside[each] = inside.get(each) or {}  # an object may have the name of a folder
            inside = inside[each]
        inside.setdefault(file, None)
    return folder, root


def names(root: Tree, folder: str) -> tuple[list[str], list[str]]:
    """Return the names of files and of folders in a folder of a tree, such as `sub/`."""
    for name in folder.split("/")[:-1]:
        root = root[name]
    return [name for name in root if root[name] is None], [name for name in root if root[name] is not None]


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
