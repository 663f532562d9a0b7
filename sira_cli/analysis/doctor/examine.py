"""All findings about a machine, and the presets that fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sira_cli.analysis.doctor.machine import Machine, extras
from sira_cli.core import selfcheck
from sira_cli.errors import ModelNotFoundError
from sira_cli.models import presets
from sira_cli.models.hub import REACHABLE, find_checkpoint, hub_state
from sira_cli.models.preset import Preset
from sira_cli.models.sizes import downwards, needed
from sira_cli.run.report import Report


@dataclass(frozen=True)
class PresetFit:
    """A shipped preset on this machine.

    Attributes:
        needed: bytes, of one picture at a time.
        fits: whether the memory suffices.
        downloaded: whether its files are on this machine.
    """

    preset: str
    needed: int
    fits: bool
    downloaded: bool


@dataclass(frozen=True)
class Examination(Report):
    """All findings.

    Attributes:
        exact: the self-check of the fork under this transformers, and whether this version was tested.
        extras: missing packages by extra.
        hub: `reachable`, `offline mode`, or the reason why it cannot be reached.
        fits: shipped presets, the smallest first.
        unknown: shipped presets of unknown size.
        command: to type next.
    """

    schema = "sira.doctor/1"

    machine: Machine
    exact: str
    extras: dict[str, list[str]]
    hub: str
    fits: tuple[PresetFit, ...]
    unknown: tuple[str, ...]
    command: str


def examine() -> Examination:
    """Examine this machine, and look whether the hub can be reached."""
    machine, hub = Machine.this(), hub_state()
    shipped = [presets.read(path) for path in sorted(presets.SHIPPED.glob("*.yaml"))]
    shipped = [preset for preset in shipped if preset.model != presets.BUNDLED]
    fits = {
        preset.name: PresetFit(preset.name, size, size <= machine.memory.usable, _is_downloaded(preset))
        for preset in shipped
        if (size := needed(preset)) is not None
    }
    return Examination(
        machine=machine,
        exact=_exact(machine.transformers),
        extras=extras(),
        hub=hub,
        fits=tuple(sorted(fits.values(), key=lambda fit: (fit.needed, fit.preset))),
        unknown=tuple(preset.name for preset in shipped if preset.name not in fits),
        command=_advised(fits, hub),
    )


def _exact(version: str) -> str:
    tested = "tested" if selfcheck.is_tested(version) else f"not tested (tested: {selfcheck.TESTED})"
    return f"{tested}; self-check: {selfcheck.failure() or 'exact'}"


def _is_downloaded(preset: Preset) -> bool:
    try:
        find_checkpoint(preset.model, preset.revision, offline=True)
    except ModelNotFoundError:
        return False
    return True


def _advised(fits: Mapping[str, PresetFit], hub: str) -> str:
    """Return the command for the largest model that fits, up to the default."""
    default = presets.find(presets.DEFAULT)
    for preset in downwards(default):
        fit = fits[preset.name]
        if fit.fits and (fit.downloaded or hub == REACHABLE):
            return "sira caption photo.jpg" + ("" if preset.name == default.name else f" -p {preset.name}")
    return "sira demo"
