"""Pictures that a list names, fetched once from a folder on the web into a folder on this machine."""

from __future__ import annotations

import hashlib
import os.path
import re
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from urllib.parse import quote, urlsplit

from sira_cli.errors import DataError, PictureError, SettingsError
from sira_cli.files import make_folder, write_whole
from sira_cli.pictures.names import public, without_password
from sira_cli.pictures.opening import picture_size
from sira_cli.pictures.web import WebSource

AT_ONCE = 4  # downloads
SAMPLE = 5  # pictures that tell the size of the others
_SAFE = "/~,;=+@"  # characters of a name that stay as they are in a URL, besides letters, digits and _.-


@dataclass(frozen=True)
class Fetched:
    """A picture that was fetched, or the reason why it was not."""

    name: str
    size: int  # of the file in bytes; 0 if it failed
    error: str = ""


@dataclass(frozen=True)
class Estimate:
    """How much there is to fetch, by the first pictures."""

    pictures: int
    size: float  # of all of them in bytes
    sample: int  # number of pictures that were tried


@dataclass(frozen=True)
class ImageFolder:
    """A folder of pictures that a list names; those that it lacks are fetched from a URL, if there is one."""

    path: Path
    url: str = ""  # of a folder on the web


def check_web_folder(url: str) -> None:
    """Check that a URL can be the folder of pictures."""
    try:
        host = urlsplit(url).hostname
    except ValueError:
        host = None
    if not host or re.search("[?#]", url):
        raise SettingsError(
            f"`images=` {public(url)}: expected the URL of a folder, without ? or #, such as "
            "http://images.cocodataset.org/val2014"
        )


def folder_name(url: str) -> str:
    """Return a name for the folder of what is fetched from a URL: readable, and of no other URL."""
    address = without_password(url).rstrip("/")
    readable = re.sub(r"[^\w.-]+", "_", address.partition("://")[2], flags=re.ASCII)
    return f"{readable[:80]}-{hashlib.sha256(address.encode()).hexdigest()[:8]}"


def not_here(names: Sequence[str], folder: Path) -> list[str]:
    """Return the names of pictures that a folder does not have; each must lie below the folder.

    Raises:
        DataError: a name leads out of the folder.
    """
    for name in names:
        windows = PureWindowsPath(name)
        if windows.drive or windows.root or ".." in windows.parts or not name.strip("./") or "\0" in name:
            raise DataError(f"{name!r}: is not the name of a picture below a folder, and is not fetched")
    return [name for name in names if not os.path.lexists(folder / name)]


def fetch_all(url: str, names: Sequence[str], folder: Path) -> Generator[Fetched | Estimate]:
    """Fetch pictures, and yield each; after the first ones an `Estimate`; at the end those that failed once more.

    Args:
        url: as for `fetch`.
        names: as for `fetch`.
        folder: as for `fetch`.

    Raises:
        PictureError: none of the first pictures can be fetched.
    """
    results = []
    for one in fetch(url, names[:SAMPLE], folder):
        results.append(one)
        yield one
    sizes = [one.size for one in results if not one.error]
    if results and not sizes:
        others = len(names) - 1
        more = f", nor any of the other {others} that are not in {folder}" if others else ""
        raise PictureError(f"{results[0].error}{more}: is `images=` right?")
    rest = names[SAMPLE:]
    if rest:
        yield Estimate(len(names), sum(sizes) / len(sizes) * len(names), len(results))
    for one in fetch(url, rest, folder):
        results.append(one)
        yield one
    yield from fetch(url, [one.name for one in results if one.error], folder)


def fetch(url: str, names: Sequence[str], folder: Path) -> Generator[Fetched]:
    """Fetch pictures, several at once, and yield each when its file is whole; what is no picture is not kept.

    Args:
        url: a folder on the web, at a public address; see `WebSource` for the limits.
        names: names below the folder, checked by `not_here`.
        folder: where the files are written, under the same names.
    """
    base = url.rstrip("/")
    executor = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="sira-fetch")
    try:
        waiting = [executor.submit(_fetch, base, name, folder) for name in names]
        for done in as_completed(waiting):
            yield done.result()
    finally:  # also if nobody wants the rest
        executor.shutdown(wait=True, cancel_futures=True)


def _fetch(base: str, name: str, folder: Path) -> Fetched:
    location = f"{base}/{quote(name, safe=_SAFE)}"
    try:
        data = WebSource(location, name).read()
        picture_size(location, data)
    except PictureError as error:
        return Fetched(name, 0, str(error))
    path = folder / PurePosixPath(name)
    make_folder(path.parent)
    write_whole(path, data)
    return Fetched(name, len(data))
