"""Paths of calibrations, and the calibration of a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sira_cli.errors import NotCalibratedError, SettingsError
from sira_cli.methods.base import Method
from sira_cli.methods.calibrated import Calibrated
from sira_cli.models.loading import presets

SHIPPED = Path(__file__).parents[2] / "demo" / "calibrations"  # the bundled model's


def place(kind: str, model: str, revision: str) -> Path:
    """Return the path of a model's calibration: `$SIRA_HOME/calibrations/ict/MODEL@REVISION.safetensors`."""
    return presets.home() / "calibrations" / kind / f"{Path(model).name}@{_short(revision)}.safetensors"


def find(kind: str, revision: str) -> Path | None:
    """Return a model's calibration, even if its folder has moved; the user's own comes before a shipped one."""
    for folder in (presets.home() / "calibrations", SHIPPED):
        for path in sorted((folder / kind).glob(f"*@{_short(revision)}.safetensors")):
            return path
    return None


def calibrated(method: Method, model: str, revision: str) -> Method:
    """Return a method with the calibration of a model, if it needs one; a given file is checked."""
    if not isinstance(method, Calibrated):
        return method
    how = f"sira calibrate {method.name} -m {model}"
    if method.calibration is None:
        path = find(method.name, revision)
        if path is None:
            raise NotCalibratedError(
                f"method {method.name} needs a calibration of {model}, which is made once: see `{how} -h`"
            )
        method = replace(method, calibration=str(path))
    origin = method.read().origin
    if origin.revision != revision:
        raise SettingsError(
            f"{method.calibration}: made for {origin.model} ({origin.revision}), not for {model} ({revision}): "
            f"make one with `{how}`"
        )
    return method


def _short(revision: str) -> str:
    return revision.removeprefix("folder-")[:12]
