"""What commands say while pictures are fetched from the web."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from sira_cli.cli.terminal.console import Progress, note
from sira_cli.errors import PictureError
from sira_cli.models.presets import cache
from sira_cli.pictures.checks import check_images
from sira_cli.pictures.fetching import Fetched, check_web_folder, fetch, folder_name, not_here
from sira_cli.pictures.names import public
from sira_cli.pictures.web import is_web

SAMPLE = 5  # pictures that tell the size of the others


def images_folder(images: str | None, usual: Path | None = None) -> Path:
    """Return the folder of a command's pictures; the `usual` one, or the cache, has those at a URL once fetched."""
    if images is None or not is_web(images):
        return Path(images or usual or "")
    check_web_folder(images)
    return usual or cache() / "pictures" / folder_name(images)


def check_or_fetch(images: str | None, names: Sequence[str]) -> None:
    """Check that the folder of a command's pictures holds any of them; those at a URL are fetched first."""
    folder = images_folder(images)
    fetch_missing(images, names, folder)
    check_images(folder, names)


def fetch_missing(images: str | None, names: Sequence[str], folder: Path) -> None:
    """Fetch pictures at a URL that a folder lacks; those that fail are tried once more, and then left out with a note.

    Raises:
        PictureError: none of the first pictures can be fetched.
    """
    if images is None or not is_web(images):
        return
    wanted = not_here(names, folder)
    if not wanted:
        return
    first = _fetch(images, wanted[:SAMPLE], folder)
    sizes = [one.size for one in first if not one.error]
    if not sizes:
        others = len(wanted) - 1
        more = f", nor any of the other {others} that are not in {folder}" if others else ""
        raise PictureError(f"{first[0].error}{more}: is `images=` right?")
    rest = wanted[SAMPLE:]
    if rest:
        size = sum(sizes) / len(sizes) * len(wanted)
        note(
            f"fetching {len(wanted):,} pictures from {public(images)} to {folder}, about {size / 1e6:,.0f} MB "
            f"by the first {len(first)}; they are kept"
        )
    results = first + _fetch(images, rest, folder)
    if any(one.error for one in results):
        results = _fetch(images, [one.name for one in results if one.error], folder)
    failed = [one for one in results if one.error]
    if failed:
        note(
            f"{len(failed)} of {len(wanted)} pictures could not be fetched, such as {failed[0].error}: the same "
            "command with --retry-errors tries them again"
        )


def _fetch(url: str, names: Sequence[str], folder: Path) -> list[Fetched]:
    """Fetch pictures, and show the progress."""
    results = []
    with closing(fetch(url, names, folder)) as fetched, Progress.on_terminal("pictures", len(names)) as progress:
        for one in fetched:
            results.append(one)
            progress.advance(error=bool(one.error))
    return results
