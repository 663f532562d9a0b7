"""All findings about a machine, and the presets that fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from sira_cli.analysis.doctor.machine import Folder, Formats, Machine, caches, extras
from sira_cli.analysis.doctor.speed import Speed, measure_few_bits, measure_plain, picture_seconds
from sira_cli.data.report import Report
from sira_cli.errors import ModelNotFoundError
from sira_cli.models.loading import presets
from sira_cli.models.loading.few_bits import FewBitsLinear, Int4Linear, Int8Linear
from sira_cli.models.loading.fitting import Memory, downwards, needed
from sira_cli.models.loading.hub import REACHABLE, find_checkpoint, hub_state
from sira_cli.models.loading.precision import computes_in
from sira_cli.models.loading.preset import Preset
from sira_cli.models.loading.quantization import usable_quantizations
from sira_cli.models.loading.sizes import size_of

NEW_TOKENS = 128  # of a text whose time is estimated
KINDS: dict[str, Callable[[nn.Linear], FewBitsLinear]] = {"int8": Int8Linear, "int4": Int4Linear}
PATIENCE = 60.0  # seconds per picture, more than which is not advised if something else fits


@dataclass(frozen=True)
class PresetFit:
    """A shipped preset on this machine.

    Attributes:
        needed: bytes, of one picture at a time.
        quantization: the one with the most bits that fits and is not slow, else the quickest; None: as stored.
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
        speeds: of products in each precision, and on a CPU in each quantization.
        fits: shipped presets, the best way to run each.
        unknown: shipped presets of unknown size.
        command: to type next.
    """

    schema = "sira.doctor/1"

    machine: Machine
    extras: dict[str, list[str]]
    formats: Formats
    hub: str
    caches: dict[str, Folder]
    speeds: tuple[Speed, ...]
    fits: tuple[PresetFit, ...]
    unknown: tuple[str, ...]
    command: str


def examine() -> Examination:
    """Examine this machine: some seconds for a look at the hub and a few matrix products."""
    machine, hub = Machine.this(), hub_state()
    device = torch.device(machine.device)
    types = (torch.bfloat16, torch.float32) if device.type == "cpu" else (torch.bfloat16,)
    plain = [measure_plain(device, dtype) for dtype in types]
    quantizations = usable_quantizations(machine.device)
    rows = torch.bfloat16 if computes_in(torch.bfloat16) else torch.float32
    few = [measure_few_bits(name, KINDS[name], rows) for name in quantizations if name in KINDS]
    speeds = {speed.name: speed for speed in (*plain, *few)}
    shipped = [presets.read(path) for path in sorted(presets.SHIPPED.glob("*.yaml"))]
    shipped = [preset for preset in shipped if preset.model != presets.BUNDLED]
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


def _fit(preset: Preset, memory: Memory, quantizations: Sequence[str], speeds: Mapping[str, Speed]) -> PresetFit:
    takes = {name: needed(preset, name) for name in (None, *quantizations)}
    fitting = {name: size for name, size in takes.items() if size is not None and size <= memory.usable}
    seconds = {name: _seconds(preset, name, memory, speeds) for name in fitting}
    quick = [name for name, each in seconds.items() if each is not None and each <= PATIENCE]
    best = next(iter(quick or sorted(fitting, key=lambda name: seconds[name] or math.inf)), None)
    try:
        find_checkpoint(preset.model, preset.revision, offline=True)
        downloaded = True
    except ModelNotFoundError:
        downloaded = False
    return PresetFit(preset.name, best, takes[best] or 0, bool(fitting), seconds.get(best), downloaded)


def _seconds(preset: Preset, quantization: str | None, memory: Memory, speeds: Mapping[str, Speed]) -> float | None:
    """Return the seconds of a picture; None: not measured."""
    size, plain = size_of(preset), speeds[_precision(preset, memory, speeds)]
    if size is None or (quantization is not None and quantization not in speeds):
        return None
    layers, head = (plain, plain) if quantization is None else (speeds[quantization], speeds["int8"])
    return picture_seconds(size, NEW_TOKENS, layers, plain, head)


def _precision(preset: Preset, memory: Memory, speeds: Mapping[str, Speed]) -> str:
    """Return the precision that `auto` picks: bfloat16, in which checkpoints are stored, or float32."""
    if "float32" not in speeds or computes_in(torch.bfloat16) or preset.load.dtype != "auto":
        return "bfloat16"
    size = size_of(preset)
    return "float32" if size is not None and 4 * size.weights <= memory.free else "bfloat16"


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
