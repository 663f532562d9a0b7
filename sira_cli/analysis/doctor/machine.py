"""This machine: versions, device, memory, and installed extras."""

from __future__ import annotations

import importlib.metadata
import platform
from dataclasses import dataclass

import torch
import transformers
from packaging.requirements import Requirement

from sira_cli.analysis.bench.measure import device_name
from sira_cli.models.placement import pick_device
from sira_cli.models.sizes import Memory, memory_for_models

DISTRIBUTION = "sira-cli"


@dataclass(frozen=True)
class Machine:
    """The machine.

    Attributes:
        device: the device that `--device auto` picks.
        chip: its name.
        memory: of the device, for models.
    """

    system: str
    python: str
    torch: str
    transformers: str
    device: str
    chip: str
    memory: Memory

    @staticmethod
    def this() -> Machine:
        """Return this machine."""
        picked = pick_device("auto")
        return Machine(
            system=platform.platform(),
            python=platform.python_version(),
            torch=torch.__version__,
            transformers=transformers.__version__,
            device=picked,
            chip=device_name(torch.device(picked)),
            memory=memory_for_models(picked),
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
