"""Random calibrations for models with random weights: a method's cost does not depend on their values."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sira_cli._version import __version__
from sira_cli.methods import find
from sira_cli.methods.base import Method
from sira_cli.methods.calibrated import Calibrated, Calibration, Origin
from sira_cli.run.lvlm import Lvlm

RANDOM = "random"  # the revision of a model with random weights


@contextmanager
def with_stand_ins(names: Iterable[str], lvlm: Lvlm) -> Iterator[dict[str, Method]]:
    """Yield the methods that need a calibration, each with one of random values, if the weights are random."""
    found: dict[str, Method] = {}
    with tempfile.TemporaryDirectory(prefix="sira-bench-") as folder:
        for name in names:
            method = find(name)
            if isinstance(method, Calibrated) and lvlm.revision == RANDOM:
                path = Path(folder) / f"{name}.safetensors"
                origin = Origin(name, lvlm.preset.model, RANDOM, {}, __version__)
                Calibration(origin, method.stand_in(lvlm.model)).write(path)
                found[name] = replace(method, calibration=str(path))
        yield found
