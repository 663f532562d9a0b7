"""What commands say while pictures are fetched from the web."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from sira_cli.cli.terminal.console import Progress, note
from sira_cli.models.presets import cache
from sira_cli.pictures.checks import check_images
from sira_cli.pictures.fetching import Estimate, Fetched, check_web_folder, fetch_all, folder_name, not_here
from sira_cli.pictures.names import public
from sira_cli.pictures.web import is_web


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
    """Fetch pictures at a URL that a folder lacks, and show the progress; those that fail are left out with a note.

    Raises:
        PictureError: none of the first pictures can be fetched.
    """
    if images is None or not is_web(images):
        return
    wanted = not_here(names, folder)
    if not wanted:
        return
    results: dict[str, Fetched] = {}
    with (
        closing(fetch_all(images, wanted, folder)) as events,
        Progress.on_terminal("pictures", len(wanted)) as progress,
    ):
        for event in events:
            if isinstance(event, Estimate):
                note(
                    f"fetching {event.pictures:,} pictures from {public(images)} to {folder}, about "
                    f"{event.size / 1e6:,.0f} MB by the first {event.sample}; they are kept"
                )
                continue
            if event.name not in results:  # or it is tried again
                progress.advance(error=bool(event.error))
            results[event.name] = event
    failed = [one for one in results.values() if one.error]
    if failed:
        note(
            f"{len(failed)} of {len(wanted)} pictures could not be fetched, such as {failed[0].error}: the same "
            "command with --retry-errors tries them again"
        )
