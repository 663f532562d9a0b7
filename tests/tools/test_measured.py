"""What the documents say of records and calibrations, against the files themselves."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from tools import measured

ROOT = Path(__file__).parents[2]
CALIBRATIONS = ROOT / "sira_cli" / "demo" / "calibrations"


def cells(table: str) -> list[list[str]]:
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[1:]]


def calibration(kind: str) -> dict[str, np.ndarray]:
    (path,) = (CALIBRATIONS / kind).glob("*.safetensors")
    return load_file(path)


def test_heads_and_slices_are_those_of_the_calibrations():
    mass = calibration("maskcd")["image_mass"].astype(float)
    z = (mass - mass.mean(axis=1, keepdims=True)) / mass.std(axis=1, keepdims=True)
    silenced = int((z > 2.5 * np.sqrt(3 / 31)).sum())
    assert measured.maskcd_heads() == f"{silenced} of its {mass.size} heads are silenced."
    found = calibration("ict")
    for level, slices, best, median in cells(measured.ict_slices()):
        accuracy = found[f"{level}.accuracy"]
        assert int(slices) == accuracy.size
        assert best == f"{100 * accuracy.max():.1f} %"
        assert median == f"{100 * np.sort(accuracy.ravel())[(accuracy.size - 1) // 2]:.1f} %"  # torch's: the lower


def test_the_line_is_that_of_the_preset():
    line = re.search(r"min_support: ([\d.]+)", (ROOT / "presets/demo.yaml").read_text())
    assert line is not None
    assert measured.line_figures().startswith(f"Below {line[1]} are ")
