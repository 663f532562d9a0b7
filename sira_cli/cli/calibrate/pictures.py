"""Pictures for a calibration: a few dozen are enough."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from sira_cli.cli.options.common import FewOptions
from sira_cli.cli.terminal.console import note
from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from sira_cli.models.loading.preset import Preset
    from sira_cli.pictures.picture import Picture

PICTURES = 32  # unless --limit is given
SCENE_BATCH = 16

Scenes = Annotated[bool, typer.Option("--scenes", help="Draw scenes (default with the bundled model).")]
BatchSize = Annotated[
    int | None,
    typer.Option("-b", "--batch-size", metavar="N", min=1, help="Pictures measured together (default: 1; scenes 16)."),
]


def some_pictures(
    paths: Sequence[str] | None, selection: FewOptions, scenes: bool, preset: Preset
) -> tuple[list[Picture], bool]:
    """Return the first few pictures, and whether they are drawn scenes.

    Raises:
        SettingsError: no pictures are given, or both files and scenes.
        PictureError: none of the pictures exists.
    """
    from sira_cli.models.loading.presets import BUNDLED

    if scenes and paths:
        raise SettingsError("give pictures, or --scenes, not both")
    if scenes or (not paths and preset.model == BUNDLED):
        return drawn_scenes(selection), True
    found = selection.selected(paths).pictures()
    if selection.limit is None and len(found) > PICTURES:
        note(f"taking the first {PICTURES} of {len(found):,} pictures: --limit N takes N")
        return found[:PICTURES], False
    return found, False


def drawn_scenes(selection: FewOptions) -> list[Picture]:
    """Return the first validation scenes, as many as --limit says or `PICTURES`."""
    from sira_cli.demo.questions import validation_pictures

    return list(islice(validation_pictures(), selection.limit or PICTURES))
