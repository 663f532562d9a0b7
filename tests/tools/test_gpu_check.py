"""`tools/gpu_check.sh`: its parts on a CPU, and what becomes of one that fails or does not end."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from sira_cli.analysis.bench.report import BenchReport
from tools.gpu_check import Part, all_parts, run_part

SCRIPT = Path(__file__).parents[2] / "tools" / "gpu_check.sh"


def part(script: str, seconds: int = 60) -> Part:
    return Part("part", seconds, ("-c", script), ("-c", script))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "gpu-check").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("script", "result", "says"),
    [
        ("print('figures: 7 of 7'); print('and more')", "passed", "7 of 7"),
        ("print('so it went'); raise SystemExit('it is wrong')", "failed", "it is wrong"),
        ("import os; print('half'); os.kill(os.getpid(), 9)", "failed", "half"),
        ("print('no GPU'); raise SystemExit(77)", "skipped", "no GPU"),
    ],
)
def test_what_becomes_of_a_part(folder, script, result, says):
    found = run_part(part(script), folder, tiny=False, left=1000)
    assert (found.result, found.says) == (result, says)
    assert script in (folder / "gpu-check/part.log").read_text()


def test_a_part_that_does_not_end_is_ended_with_all_that_it_started(folder):
    """As a compiler or a worker would be, the process that it starts is of its own session's group."""
    mark = folder / "alive"
    child = f"import time, pathlib\nfor _ in range(600): pathlib.Path({str(mark)!r}).touch(); time.sleep(0.05)"
    script = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(600)"
    found = run_part(part(script, seconds=3), folder, tiny=False, left=1000)
    assert (found.result, found.says) == ("failed", "not done after 3 s")
    assert mark.exists()
    mark.unlink()
    time.sleep(0.5)
    assert not mark.exists()


@pytest.mark.slow
def test_every_part_runs_on_a_cpu(tmp_path):
    done = subprocess.run([SCRIPT, "--tiny", "-o", tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = json.loads((tmp_path / "gpu-check/outcomes.json").read_text())
    assert [row["part"] for row in outcomes] == list(all_parts())
    assert {row["part"]: row["says"] for row in outcomes if row["result"] != "passed"} == {"memory-limit": "no GPU"}
    assert all(row["says"] for row in outcomes)
    rows = (tmp_path / "gpu-check.md").read_text().splitlines()[6:]
    assert [row.split(" | ")[0] for row in rows] == [f"| {name}" for name in all_parts()]
    for one in all_parts().values():
        if one.figures:
            assert BenchReport.from_json((tmp_path / one.figures).read_text()).runs == 1
