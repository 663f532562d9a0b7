"""How the names of pictures appear in messages and in records."""

from __future__ import annotations

import os

from sira_cli.pictures import stores


def one_line(name: str) -> str:
    """Return a name for a message: newlines and bytes that are no text are escaped, credentials left out."""
    name = stores.public(name) if stores.is_uri(name) else name
    return name if name.isprintable() else ascii(name)


def as_text(file_name: str) -> str:
    """Return a name for a record: bytes that are not UTF-8 become `\\xff`, which every JSON reader takes."""
    return os.fsencode(file_name).decode("utf-8", "backslashreplace")
