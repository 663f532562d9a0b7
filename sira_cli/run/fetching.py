"""Pictures that a run lacks, fetched from the web before it begins."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing

from sira_cli.pictures.fetching import Estimate, Fetched, ImageFolder, fetch_all, not_here
from sira_cli.pictures.names import public
from sira_cli.run.events import Advanced, Remark, StageStarted


def fetch_missing(
    images: ImageFolder,
    names: Sequence[str],
    again: str = "the same command tries them again",
) -> Generator[StageStarted | Advanced | Remark, None, None]:
    """Fetch pictures that a folder lacks, and yield events; those that fail are left out with a remark.

    Args:
        images: the folder, and the URL of the pictures; without one, nothing is fetched.
        names: below the folder.
        again: how the user has those that failed fetched, for the remark.

    Raises:
        DataError: a name leads out of the folder.
        PictureError: none of the first pictures can be fetched.
    """
    wanted = not_here(names, images.path) if images.url else []
    if not wanted:
        return
    yield StageStarted("pictures", len(wanted))
    results: dict[str, Fetched] = {}
    with closing(fetch_all(images.url, wanted, images.path)) as events:
        for event in events:
            if isinstance(event, Estimate):
                yield Remark(
                    f"fetching {event.pictures:,} pictures from {public(images.url)} to {images.path}, about "
                    f"{event.size / 1e6:,.0f} MB by the first {event.sample}; they are kept"
                )
                continue
            if event.name not in results:  # or it is tried again
                yield Advanced(1, failed=bool(event.error))
            results[event.name] = event
    failed = [one for one in results.values() if one.error]
    if failed:
        yield Remark(
            f"{len(failed)} of {len(wanted)} pictures could not be fetched, such as {failed[0].error}: {again}"
        )
