"""Output of the commands: the calibration, and a preset that names it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sira_cli.cli.terminal.console import note
from sira_cli.cli.terminal.output import check_file, check_preset_file, save_preset
from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from sira_cli.methods.calibrated import Calibration
    from sira_cli.models.preset import Preset
    from sira_cli.run.lvlm import Lvlm

Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="Target (default: where --method finds it)."),
]
WritePreset = Annotated[
    Path | None,
    typer.Option("--write-preset", metavar="FILE.yaml", help="Write a preset that names the calibration."),
]


def check_targets(output: Path | None, write_preset: Path | None, overwrite: bool) -> None:
    """Check the files to write, before anything is measured."""
    check_file("--output", output, overwrite)
    check_preset_file(write_preset, overwrite)


def check_place(kind: str, lvlm: Lvlm, output: Path | None, overwrite: bool) -> None:
    """Check that the new calibration would not replace the user's own one."""
    from sira_cli.models.presets import calibration_path

    path = calibration_path(kind, lvlm.preset.model, lvlm.revision)
    if output is None and path.exists() and not overwrite:
        raise SettingsError(f"{path}: exists: replace it with --overwrite, or give another file with --output")


def save(calibration: Calibration, preset: Preset, output: Path | None, write_preset: Path | None) -> None:
    """Write a calibration where `load` finds it, or to `output`, and a preset that names it."""
    from sira_cli.models.presets import calibration_path

    kind = calibration.origin.kind
    path = output or calibration_path(kind, calibration.origin.model, calibration.origin.revision)
    calibration.write(path)
    if output is None:
        note(f"{path}: --method {kind} finds it by the model")
    else:
        note(f"{path}: use it with --method {kind} --set calibration={path}")
    if write_preset is not None:
        own = {**preset.methods.get(kind, {}), "calibration": str(path.resolve())}
        save_preset(
            preset.model_copy(update={"methods": {**preset.methods, kind: own}}),
            write_preset,
            f"with a calibration for {kind}",
            f"the calibration for {kind}",
        )
