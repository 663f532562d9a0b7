"""Write files whole or not at all."""

from __future__ import annotations

import codecs
import errno
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PureWindowsPath
from typing import BinaryIO

from sira_cli.errors import DataError, SettingsError, SiraError

_LONGEST = 255  # bytes of a name, on all usual file systems
_WINDOWS_LONGEST = 259  # characters of a path there, unless long paths are switched on
# Names of devices, with any extension, and what no name holds. learn.microsoft.com/windows/win32/fileio/naming-a-file
_WINDOWS_RESERVED = re.compile(
    r'(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³]) *(\..*)?|.*([<>:"|?*\0-\x1f].*|[. ])',
    re.IGNORECASE | re.DOTALL,
)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a new file that takes the place of `path`, in folders that it makes, when the block ends without an error.

    Readers see the old file or the new one, never a part of it, even if the process is killed. A link stays, and its
    target is replaced; mode and owner stay. Other hard links of the old file keep its content.
    """
    check_unprotected(path)
    make_folder(path.parent)
    with writing(path):
        path = path.resolve() if path.is_symlink() else path
        temporary, file = _temporary(path)
        _take_over(path, file)
        if os.name == "nt":  # no open file is replaced or removed there
            with _removed_after_errors(temporary):
                with file:
                    yield file
                temporary.replace(path)
        else:  # while it is locked: from then on another process may write it
            with file, _removed_after_errors(temporary):
                yield file
                if not file.closed:
                    file.flush()
                temporary.replace(path)


def _take_over(path: Path, file: BinaryIO) -> None:
    """Give a new file the owner and the mode of the file that it replaces, as far as the system lets us."""
    with suppress(FileNotFoundError):
        before = path.stat()
        if os.name != "nt":
            with suppress(OSError):
                os.fchown(file.fileno(), before.st_uid, before.st_gid)
            with suppress(OSError):
                os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))


def check_unprotected(path: Path) -> None:
    """Check that a file, or the one that a link names, may be replaced; root has to ask for it as all others."""
    try:
        protected = not path.stat().st_mode & 0o222 or not _may(path, os.W_OK)
    except OSError:  # it does not exist, or `writing` says what is wrong
        return
    if protected and path.is_file():
        raise SettingsError(f"{path}: is write-protected: allow writing (chmod u+w), or give another place")


@contextmanager
def _removed_after_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _temporary(path: Path) -> tuple[Path, BinaryIO]:
    """Open and lock an empty file next to `path`.

    Its name depends only on `path`, so the next writer of the same file reuses the leftover of a killed process. Where
    another process writes it, or anything else has this name, the name is random.
    """
    stem = f".sira-{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:16]}"
    leftover = path.with_name(f"{stem}.tmp")
    with suppress(OSError):  # a link, or a file of another user, who could have foretold the name
        file = _opened(leftover, 0)
        if _is_ours(file, leftover):
            file.truncate()
            return leftover, file
        file.close()
    while True:
        temporary = path.with_name(f"{stem}-{secrets.token_hex(4)}.tmp")
        with suppress(FileExistsError):
            return temporary, _opened(temporary, os.O_EXCL)


def _opened(path: Path, flags: int) -> BinaryIO:
    """Open a file for writing as it is, or create it; no link is followed, and no pipe waited for."""
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):
        flags |= getattr(os, name, 0)
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o666), "wb")


def _is_ours(file: BinaryIO, path: Path) -> bool:
    """Lock an open file; return whether only this process writes it, and only by this name."""
    from filelock import lock_descriptor  # late: the list of benchmarks imports this module, and help has to be fast

    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        return False
    if os.name != "nt" and found.st_uid != os.geteuid():
        return False
    with suppress(OSError):  # this file system has no locks
        if not lock_descriptor(file.fileno(), blocking=False):
            return False
    try:
        return os.path.samestat(found, path.lstat())
    except FileNotFoundError:
        return False


def write_whole(path: Path, data: bytes, *, overwrite: bool = True) -> None:
    """Write a file. Without `overwrite` an existing file of other content is left alone."""
    if not overwrite and path.exists():
        if path.is_file() and path.read_bytes() == data:
            return
        raise SettingsError(f"{path}: exists with other content: give another path, or `overwrite=`")
    with replacing(path) as file:
        file.write(data)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of a block that writes to `path` into messages."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error


def check_folder(folder: Path, advice: str) -> None:
    """Check that files can be made in a folder, or the folder in its parents."""
    folder = next((each for each in (folder, *folder.absolute().parents) if each.exists()), folder)
    if folder.is_dir() and not _may(folder, os.W_OK | os.X_OK):
        raise SettingsError(f"{folder}: is read-only: {advice}")


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, unless it exists."""
    with writing(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise SettingsError(f"{folder}: exists, but a folder is needed here: give another path") from None


def encoding_of(beginning: bytes) -> str:
    """Return the encoding of a text file: what its byte order mark says, UTF-8 without one."""
    if beginning.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    return "utf-16" if beginning.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"


def text_in(data: bytes, shown: str) -> str:
    """Return the text of a file's bytes."""
    try:
        return data.decode(encoding_of(data))
    except UnicodeDecodeError:
        raise not_utf8(shown) from None


def not_utf8(shown: str) -> DataError:
    """Return the error for a text in an unknown encoding."""
    return DataError(
        f"{shown}: is not UTF-8 text: save it as UTF-8 (in a spreadsheet: CSV UTF-8; "
        "else: iconv -f WINDOWS-1252 -t UTF-8, or its encoding)"
    )


def too_long(path: Path) -> bool:
    """Return whether a path has a name that is too long for a file or folder."""
    if any(len(os.fsencode(part)) > _LONGEST for part in path.parts):  # also where the folder is still to be made
        return True
    try:
        path.lstat()
    except OSError as error:
        return error.errno == errno.ENAMETOOLONG
    return False


def reserved(path: Path) -> str | None:
    """Return a name in a path that Windows reserves or does not allow; None: no such name, or another system.

    A file `aux.txt` would be a device there, and `a:b.txt` a hidden part of the file `a`.
    """
    if os.name != "nt":
        return None
    whole = PureWindowsPath(str(path))
    names = whole.parts[1:] if whole.anchor else whole.parts
    return next((name for name in names if name != ".." and _WINDOWS_RESERVED.fullmatch(name)), None)


def length_on_windows(path: str | Path) -> str:
    """Return a remark for messages about a path that Windows may find too long, else nothing."""
    length = len(str(Path(path).absolute())) if os.name == "nt" else 0
    if length <= _WINDOWS_LONGEST:
        return ""
    return f" (a path of {length} characters: Windows takes {_WINDOWS_LONGEST} unless its long paths are switched on)"


def from_home(path: str | Path) -> Path:
    """Return a path with `~` or `~user` expanded."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        user = str(path).partition(os.sep)[0]
        raise SettingsError(f"{path}: there is no user {user[1:]}: write ./{path} for a folder {user}") from None


def relative(path: Path, folder: Path) -> str:
    """Return a path relative to a folder; absolute if it is on another drive."""
    try:
        return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
    except ValueError:
        return path.resolve().as_posix()


def cannot_write(path: Path, error: OSError) -> SiraError:
    """Return the error for a full disk and the like."""
    return SiraError(
        f"{path}: cannot be written: {error.strerror}{length_on_windows(path)}: what is finished is kept; "
        "fix the cause and run the same command again to go on"
    )
