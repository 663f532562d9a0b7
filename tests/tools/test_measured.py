"""What the documents say of records and calibrations, against the files themselves."""

from __future__ import annotations

import json
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


def test_every_k_stands_beside_its_own_figures():
    kl = {row["k"]: row["kl"]["mean"] for row in json.loads((ROOT / "docs/bench/demo-k.json").read_text())["rows"]}
    files = ("docs/bench/demo-sweep-k.json", "sira_cli/demo/model/choice.json")
    swept = [row for file in files for row in json.loads((ROOT / file).read_text())["rows"]]
    text = measured.k_table()
    rows = cells(text)
    assert [int(row[0]) for row in rows] == sorted(kl) == [1, 2, 3, 4, 5, 6, 7]
    for row in rows:
        k = int(row[0])
        (there,) = (each for each in swept if (each["k"], each["alpha"]) == (k, 0.5))
        assert float(row[1]) == round(kl[k], 3)
        assert row[2] == f"{round(100 * kl[k] / max(kl.values()))} %"
        for cell, name in ((row[3], "CHAIRi"), (row[4], "coverage")):
            figure = there["differences"][name]
            numbers = [float(number) for number in re.findall(r"[+-]\d+\.\d", cell)]
            assert numbers == [round(figure[part], 1) for part in ("value", "low", "high")]
    marks = {row[5]: int(row[0]) for row in rows if row[5]}
    rule = min(k for k, value in kl.items() if value >= 0.9 * max(kl.values()))
    assert marks == {"the paper's L/2": 4, "the rule": rule, "labels": 7}
    assert f"it would give {min(k for k, value in kl.items() if value >= 0.8 * max(kl.values()))}." in text


def test_heads_and_slices_are_those_of_the_calibrations():
    mass = calibration("maskcd")["image_mass"].astype(float)
    z = (mass - mass.mean(axis=1, keepdims=True)) / mass.std(axis=1, keepdims=True)
    silenced = int((z > 2.5 * np.sqrt(3 / 31)).sum())
    assert measured.maskcd_heads() == f"Of its {mass.size} heads {silenced} are silenced."
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
