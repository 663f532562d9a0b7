"""Commands on a device that has what a Mac's GPU has. There is no Mac here: `tests.support.apple_gpu_runs` plays it.

What cannot be seen so: kernels that MPS does not have, or that compute something else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PICTURE = Path(__file__).parents[2] / "examples" / "scene-2900010.png"
SABOTAGE = """
import runpy, sys
from sira_cli.core import rules
rules.kl_divergence.__code__ = (lambda log_p, log_q: log_p.double().sum(dim=-1)).__code__
sys.argv = sys.argv[1:]
runpy.run_module("tests.support.apple_gpu_runs", run_name="__main__", alter_sys=True)
"""


def ran(folder: Path, names: tuple[str, ...], *how: str) -> dict[str, dict]:
    command = [sys.executable, *(how or ("-m", "tests.support.apple_gpu_runs")), str(folder), str(PICTURE), *names]
    environment = {**os.environ, "SIRA_HOME": str(folder / "home")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def failed(found: dict[str, dict]) -> dict[str, str]:
    return {name: each["stderr"] for name, each in found.items() if each["code"] != 0}


def test_a_trace_and_its_page(tmp_path):
    found = ran(tmp_path, ("trace", "report"))
    assert failed(found) == {}
    assert [each["devices"] for each in found.values()] == [["card:0"], []]  # the report needs no model


@pytest.mark.slow
def test_every_command(tmp_path):
    found = ran(tmp_path, ())
    assert failed(found) == {}
    assert len(found) >= 15
    assert {name for name, each in found.items() if each["devices"] != ["card:0"]} == {"report"}


@pytest.mark.slow
def test_float64_on_the_device_is_noticed(tmp_path):
    """`kl_divergence` as it was before it went to the CPU first."""
    found = ran(tmp_path, ("trace",), "-c", SABOTAGE, "apple_gpu_runs")
    assert "TypeError: Cannot convert a torch.float64 tensor to MPS" in failed(found)["trace"]
