"""Changed captions next to the originals: nothing is replaced but files that an earlier run of these records wrote."""

from __future__ import annotations

from pathlib import Path

from sira_cli.data.captions.find import Captions
from sira_cli.errors import SettingsError
from sira_cli.pictures.picture import Picture
from sira_cli.runs.targets import Targets


def check_own(captions: Captions, target: Path, targets: Targets) -> None:
    """Check that `Captions.write` replaces nothing but files that an earlier run with the same records has written.

    Args:
        captions: the originals.
        target: of `Captions.write`.
        targets: of this run.

    Raises:
        SettingsError: an existing file holds something else.
    """

    def fixed(picture: Picture) -> str | None:
        name = picture.id or targets.name(picture)
        if targets.store is None or not targets.store.key(name):
            return None
        return str(targets.store.record(name)["fixed"])

    foreign = captions.foreign(target, targets.wrote, fixed)
    if foreign is not None:
        raise SettingsError(
            f"`fixed=` {foreign}: exists, and is not as an earlier run of these records wrote it: give another, "
            "remove it, or `overwrite=`"
            if targets.any
            else f"`fixed=` {foreign}: exists: give another, or `overwrite=`"
        )
