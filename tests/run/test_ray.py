"""Runs on a Ray cluster, one started for each test: the same records as on one machine, whatever is killed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sira_cli.errors import ModelNotFoundError
from sira_cli.models import presets
from sira_cli.pictures.sources import located
from sira_cli.run.on_ray import OnRay
from sira_cli.run.task import Caption
from tests.support.helpers import SIRA

EXAMPLES = sorted(Path(__file__).parents[2].glob("examples/*.png"))
LOADING = {"device": "auto", "offline": False}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray's, at its import


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Not the cluster of a test beside this one."""
    monkeypatch.setenv("RAY_ADDRESS", "local")


def start(folder: Path, home: Path, output: str, *options: object) -> subprocess.Popen:
    """The installed command over the folder's pictures, its records in another folder."""
    command = [SIRA, "caption", "pictures", "--preset", "demo", "-o", output, *map(str, options)]
    return subprocess.Popen(command, cwd=folder, env={**os.environ, "SIRA_HOME": str(home)}, stderr=subprocess.PIPE)


def without_time(path: Path) -> bytes:
    return re.sub(rb'"duration_ms": [0-9.]+', b'"duration_ms": 0', path.read_bytes())


def workers_of(run: subprocess.Popen) -> list[int]:
    """Processes of Ray below a command that are decoding."""
    parents, working = {}, []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(process.name)] = int(process.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            if b"MapWorker(MapBatches(Captioner)).submit" in process.joinpath("cmdline").read_bytes():
                working.append(int(process.name))
        except OSError:
            continue
    return [process for process in working if run.pid in ancestors(process, parents)]


def ancestors(process: int, parents: dict[int, int]) -> list[int]:
    found = []
    while process in parents:
        process = parents[process]
        found.append(process)
    return found


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc for the workers")
def test_stopped_and_with_a_worker_killed_the_records_are_those_of_one_process(tmp_path, home):
    (tmp_path / "pictures").mkdir()
    for number in range(8):
        shutil.copy(EXAMPLES[number % len(EXAMPLES)], tmp_path / "pictures" / f"{number:02}.png")
    (tmp_path / "pictures/03-bad.png").write_text("no picture")
    records = tmp_path / "two/captions.jsonl"
    options = ("--engine", "ray:2", "-b", 2)

    with start(tmp_path, home, "two", *options) as run:
        while run.poll() is None and not (records.exists() and records.stat().st_size):
            time.sleep(0.05)
        run.terminate()
        _, err = run.communicate(timeout=120)
    assert run.returncode == 130, err
    assert b"run the same command again to resume" in err
    before = records.read_bytes()
    assert 0 < before.count(b"\n") < 9

    with start(tmp_path, home, "two", *options) as run:
        while run.poll() is None and not (working := workers_of(run)):
            time.sleep(0.05)
        os.kill(working[0], signal.SIGKILL)
        _, err = run.communicate(timeout=240)
    assert run.returncode == 3, err
    done = before.count(b'"status": "ok"')
    assert f"{done} of 9 pictures were done before".encode() in err

    with start(tmp_path, home, "one") as run:
        run.communicate(timeout=240)
    assert without_time(records) == without_time(tmp_path / "one/captions.jsonl")


def results(preset: str, pictures: list[tuple[str, str]], workers: int = 2, **settings: object) -> dict:
    preset = presets.resolve(preset).with_settings(max_new_tokens=4, **settings)
    engine = OnRay(LOADING, 1, workers=workers)
    try:
        engine.begin(Caption(preset, preset.method("sira"), "Describe it."), lambda name: "")
        named = [(located(path), name) for path, name in pictures]
        return {event.name: event.record for event in engine.results(named)}
    finally:
        engine.end()


@pytest.mark.slow
def test_what_is_wrong_with_the_model_ends_the_run(tmp_path):
    with pytest.raises(ModelNotFoundError, match="nowhere"):
        results("org/nowhere", [(str(EXAMPLES[0]), "0.png")], workers=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x.png", "--engine", "ray"], "--engine ray reads and writes files: give paths, and -o FILE"),
        (["-", "--engine", "ray", "-o", "x.jsonl"], "--engine ray reads and writes files"),
        (["x.png", "--engine", "ray:all"], "--engine ray:all: expected local, vllm, ray, or ray:N"),
        (["x.png", "--engine", "ray", "-o", "x.jsonl", "--device", "cuda"], "1 Ray workers: the cluster has 0 GPUs"),
    ],
)
def test_what_cannot_work_is_refused(sira, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    shutil.copy(EXAMPLES[0], "x.png")
    code, _, err = sira("caption", *arguments, "--preset", "demo")
    assert code == 2
    assert message in err


def test_without_ray_the_message_says_how_to_get_it(sira, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, err = sira("caption", EXAMPLES[0], "--engine", "ray", "-o", tmp_path / "x.jsonl", "--preset", "demo")
    assert (code, "[ray]'" in err) == (2, True)
