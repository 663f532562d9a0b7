"""All findings about a machine, and the presets that fit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from sira_cli.analysis.doctor.machine import Folder, Formats, Machine, caches, extras
from sira_cli.analysis.doctor.speed import Speed, measure_plain
from sira_cli.data.report import Report
from sira_cli.errors import ModelNotFoundError
from sira_cli.models.loading import presets
from sira_cli.models.loading.fitting import Memory, downwards, most_bits, needed
from sira_cli.models.loading.hub import REACHABLE, find_checkpoint, hub_state
from sira_cli.models.loading.precision import computes_in
from sira_cli.models.loading.preset import Preset
from sira_cli.models.loading.quantization import usable_quantizations
from sira_cli.models.loading.sizes import size_of

NEW_TOKENS = 128  # of a text whose time is estimated
PATIENCE = 60.0  # seconds per picture, more than which is not advised if something else fits


@dataclass(frozen=True)
class PresetFit:
    """A shipped preset on this machine.

    Attributes:
        needed: bytes, of one picture at a time.
        quantization: None: as the checkpoint is stored.
        fits: whether the memory suffices.
        seconds: for a photograph and a text of 128 tokens, roughly; None: it does not fit, or was not measured.
        downloaded: whether its files are on this machine.
    """

    preset: str
    quantization: str | None
    needed: int
    fits: bool
    seconds: float | None
    downloaded: bool


@dataclass(frozen=True)
class Examination(Report):
    """All findings.

    Attributes:
        extras: missing packages by extra.
        hub: `reachable`, `offline mode`, or the reason why it cannot be reached.
        speeds: of products in each precision.
        fits: shipped presets, the best way to run each.
        unknown: shipped presets of unknown size.
        command: to type next.
    """

    machine: Machine
    extras: dict[str, list[str]]
    formats: Formats
    hub: str
    caches: dict[str, Folder]
    speeds: tuple[Speed, ...]
    fits: tuple[PresetFit, ...]
    unknown: tuple[str, ...]
    command: str

    def to_json(self) -> str:
        """Return one JSON object."""
        return self.as_json("sira.doctor/1")


def examine() -> Examination:
    """Examine this machine: some seconds for a look at the hub and a few matrix products."""
    machine, hub = Machine.this(), hub_state()
    device = torch.device(machine.device)
    types = (torch.bfloat16, torch.float32) if device.type == "cpu" else (torch.bfloat16,)
    speeds = {dtype: measure_plain(device, dtype) for dtype in types}
    shipped = [presets.read(path) for path in sorted(presets.SHIPPED.glob("*.yaml"))]
    shipped = [preset for preset in shipped if preset.model != presets.BUNDLED]
    quantizations = usable_quantizations(machine.device)
    fits = {preset.name: _fit(preset, machine.memory, quantizations, speeds) for preset in shipped if size_of(preset)}
    return Examination(
        machine=machine,
        extras=extras(),
        formats=Formats.here(),
        hub=hub,
        caches=caches(),
        speeds=tuple(speeds.values()),
        fits=tuple(sorted(fits.values(), key=lambda fit: (fit.needed, fit.preset))),
        unknown=tuple(preset.name for preset in shipped if preset.name not in fits),
        command=_advised(fits, hub),
    )


def _fit(
    preset: Preset, memory: Memory, quantizations: Sequence[str], speeds: Mapping[torch.dtype, Speed]
) -> PresetFit:
    found = most_bits(preset, memory, quantizations)
    quantization, takes = found or (None, needed(preset) or 0)
    seconds = None
    size = size_of(preset)
    if found is not None and quantization is None and size is not None:
        speed = speeds[_precision(preset, memory, speeds)]
        seconds = speed.prefill(size) + (NEW_TOKENS - 1) * speed.step(size)
    try:
        find_checkpoint(preset.model, preset.revision, offline=True)
        downloaded = True
    except ModelNotFoundError:
        downloaded = False
    return PresetFit(preset.name, quantization, takes, found is not None, seconds, downloaded)


def _precision(preset: Preset, memory: Memory, speeds: Mapping[torch.dtype, Speed]) -> torch.dtype:
    """Return the precision that `auto` picks: bfloat16, in which checkpoints are stored, or float32."""
    if torch.float32 not in speeds or computes_in(torch.bfloat16) or preset.load.dtype != "auto":
        return torch.bfloat16
    size = size_of(preset)
    return torch.float32 if size is not None and 4 * size.weights <= memory.free else torch.bfloat16


def _advised(fits: Mapping[str, PresetFit], hub: str) -> str:
    """Return the command for the largest model that fits and is not slow, up to the default; else for the quickest."""
    default = presets.find(presets.DEFAULT)
    usable = [
        fit for preset in downwards(default) if (fit := fits[preset.name]).fits and (fit.downloaded or hub == REACHABLE)
    ]
    quick = [fit for fit in usable if fit.seconds is None or fit.seconds <= PATIENCE]
    usable.sort(key=lambda fit: fit.seconds or math.inf)
    best = next(iter(quick or usable), None)
    if best is None:
        return "sira demo"
    if best.preset == default.name and best.quantization is None:
        return "sira caption photo.jpg"
    quantization = f" --quantization {best.quantization}" if best.quantization else ""
    return f"sira caption photo.jpg -p {best.preset}{quantization}"
