"""How pictures are named: by paths and URIs, in messages and in records."""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from collections.abc import Iterable
from urllib.parse import urlsplit, urlunsplit

_BETWEEN = " | "  # the names of pictures that are shown together
_ESCAPED_BYTE = re.compile(r"\\x[89a-f][0-9a-f]")
_BASE64 = re.compile(r"(?:data:[^,]*;base64,)?[A-Za-z0-9+/\s]{64,}={0,2}\s*")  # no path: those have a full stop
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_LONGEST = 200  # characters in a message


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


def one_line(name: str) -> str:
    """Return a name for a message: escaped where it is not printable, shortened in the middle, without credentials."""
    if is_uri(name):
        name = public(name)
    if not name.isprintable():
        name = ascii(name)
    if len(name) <= _LONGEST:
        return name
    return f"{name[: _LONGEST // 2]}...{name[3 - _LONGEST // 2 :]}"


def is_base64(text: str) -> bool:
    """Return whether a text is a picture as base64, or a data URL, and no name."""
    return _BASE64.fullmatch(text) is not None


def on_disk(path: str) -> str:
    """Return a path in the Unicode form that exists (macOS writes `é` as two characters); as it is if neither does."""
    if path.isascii() or os.path.lexists(path):
        return path
    folder, name = os.path.split(path)
    for form in ("NFC", "NFD"):
        other_name = os.path.join(folder, unicodedata.normalize(form, name))  # noqa: PTH118 (may be no path)
        for other in (other_name, unicodedata.normalize(form, path)):
            if os.path.lexists(other):
                return other
    return path


def is_utf8(text: str) -> bool:
    """Return whether UTF-8 can hold a text: it has no lone surrogates, which stand for bytes that are not text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_text(file_name: str) -> str:
    """Return a name for a record, from which `from_text` restores it: bytes that are not UTF-8 become `\\xff`.

    A name that already looks escaped has its backslashes doubled; a long text that is no name is cut, with a hash.
    """
    data = os.fsencode(file_name)
    if len(data) > _LONGEST and is_base64(file_name):
        return f"{file_name[:64]}...{hashlib.sha256(data).hexdigest()[:16]}"
    text = data.decode("utf-8", "backslashreplace")
    if not _ESCAPED_BYTE.search(text):
        return text
    return data.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def from_text(text: str) -> str:
    """Return the file name that a record holds; see `as_text`."""
    if not _ESCAPED_BYTE.search(text):
        return text
    escape = re.compile(rb"\\(?:x([0-9a-f]{2})|\\)")
    return os.fsdecode(escape.sub(_unescaped, text.encode()))


def _unescaped(match: re.Match[bytes]) -> bytes:
    return bytes.fromhex(match[1].decode()) if match[1] else b"\\"


def joined(names: Iterable[str]) -> str:
    """Return the common name of pictures that are shown together, divided by `|`, which is escaped inside names."""
    several = [*names]
    return several[0] if len(several) == 1 else _BETWEEN.join(name.replace("|", "\\|") for name in several)


def parted(name: str) -> list[str]:
    """Return the names in a name made by `joined`."""
    if _BETWEEN not in name:
        return [name]
    return [part.replace("\\|", "|") for part in name.split(_BETWEEN)]
