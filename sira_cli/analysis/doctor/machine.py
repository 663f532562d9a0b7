"""This machine: device, memory, threads, arithmetic, installed extras, and stored files."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
import transformers
from huggingface_hub import constants
from packaging.requirements import Requirement

from sira_cli.analysis.bench.measure import device_name
from sira_cli.models.loading import presets
from sira_cli.models.loading.fitting import Memory, memory_for_models
from sira_cli.models.loading.placement import pick_device
from sira_cli.models.loading.precision import computes_in
from sira_cli.pictures.left_out import KNOWN, REMEDIES
from sira_cli.pictures.opening import endings

DISTRIBUTION = "sira-cli"


@dataclass(frozen=True)
class Machine:
    """The machine.

    Attributes:
        device: the device that `--device auto` picks.
        chip: its name.
        memory: of the device, for models.
        threads: number of threads that torch uses.
        cores: physical ones; None: the system does not say.
        load: programs that want to run, on average over the last minute, this one included.
        instructions: of the CPU, as torch uses them.
        arithmetic: 16-bit types that the CPU computes in; it converts others to float32 first.
    """

    system: str
    python: str
    torch: str
    transformers: str
    device: str
    chip: str
    memory: Memory
    threads: int
    cores: int | None
    load: float
    instructions: str
    arithmetic: tuple[str, ...]

    @staticmethod
    def this(device: str = "auto") -> Machine:
        """Return this machine."""
        picked = pick_device(device)
        types = (torch.bfloat16, torch.float16)
        return Machine(
            system=platform.platform(),
            python=platform.python_version(),
            torch=torch.__version__,
            transformers=transformers.__version__,
            device=picked,
            chip=device_name(torch.device(picked)),
            memory=memory_for_models(picked),
            threads=torch.get_num_threads(),
            cores=psutil.cpu_count(logical=False),
            load=round(psutil.getloadavg()[0], 1),
            instructions=torch.backends.cpu.get_cpu_capability(),
            arithmetic=tuple(str(dtype).removeprefix("torch.") for dtype in types if computes_in(dtype)),
        )


def extras() -> dict[str, list[str]]:
    """Return the extras by name, each with its packages that are missing; empty if `sira` is not an installed package.

    `dev` is left out.
    """
    try:
        stated = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    names = importlib.metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or []
    found: dict[str, list[str]] = {name: [] for name in sorted(names) if name != "dev"}
    for requirement in map(Requirement, stated):
        for name, missing in found.items():
            if requirement.marker is not None and requirement.marker.evaluate({"extra": name}):
                missing += [] if _installed(requirement) else [str(requirement).partition(";")[0].strip()]
    return found


def _installed(requirement: Requirement) -> bool:
    try:
        return requirement.specifier.contains(importlib.metadata.version(requirement.name), prereleases=True)
    except importlib.metadata.PackageNotFoundError:
        return False


@dataclass(frozen=True)
class Formats:
    """Endings of picture and clip files.

    Attributes:
        read: those that are read here.
        not_read: other common formats, each with its remedy, or an empty text.
    """

    read: tuple[str, ...]
    not_read: dict[str, str]

    @staticmethod
    def here() -> Formats:
        """Return the formats of this installation."""
        readable = endings()
        return Formats(tuple(sorted(readable)), {each: REMEDIES.get(each, "") for each in sorted(KNOWN - readable)})


@dataclass(frozen=True)
class Folder:
    """A folder of files that can be fetched or made again."""

    path: str
    bytes: int
    free: int | None

    @staticmethod
    def of(path: Path) -> Folder:
        """Measure a folder, which may not exist. Links do not count: the hub's cache has many to one file."""
        size = 0
        for where, _, names in os.walk(path):
            for name in names:
                file = Path(where, name)
                size += 0 if file.is_symlink() else file.stat().st_size
        place = next((parent for parent in (path, *path.parents) if parent.exists()), None)
        return Folder(str(path), size, None if place is None else shutil.disk_usage(place).free)


def caches() -> dict[str, Folder]:
    """Return the folders of models from the hub, and of files that `sira` makes."""
    return {"models": Folder.of(Path(constants.HF_HUB_CACHE)), "sira": Folder.of(presets.cache())}
