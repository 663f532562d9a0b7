"""Runs that are interrupted or killed go on to the records of one run, also on a Ray cluster."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from sira_cli import interrupts
from tests.run.helpers import EXAMPLES, FAST, make_folder, read, report_of, start, without_time

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray's, at its import
INTO = (".", "-o", "captions.jsonl", "-b", 4)


@pytest.fixture
def finished(sira, monkeypatch) -> Callable[[Path], bytes]:
    """Run the command to its end in this process; return what it leaves."""

    def run(folder: Path) -> bytes:
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            assert sira("caption", *INTO, *FAST)[0] == 3
        return without_time(folder / "captions.jsonl")

    return run


@pytest.mark.parametrize(
    "number",
    [each if each is signal.SIGINT else pytest.param(each, marks=pytest.mark.slow) for each in interrupts.SIGNALS],
)
def test_an_interrupted_run_keeps_what_is_done_and_says_how_to_go_on(tmp_path, home, finished, number):
    folder = make_folder(tmp_path / "pictures", 24)
    with start(folder, home, *INTO, preexec_fn=lambda: signal.signal(number, signal.SIG_DFL)) as run:
        wait_for_records(folder, 3)
        run.send_signal(number)
        _, err = run.communicate(timeout=300)
    assert (run.returncode, b"Traceback" in err) == (130, False)
    assert b"interrupted; finished work is kept: run the same command again to resume" in err
    assert report_of(folder)["state"] == "interrupted"
    assert 3 <= len(read(folder / "captions.jsonl")) < 25
    assert finished(folder) == finished(make_folder(tmp_path / "at-once", 24))


def wait_for_records(folder: Path, count: int) -> int:
    """Wait until a file has so many records; return how many it has."""
    path, deadline = folder / "captions.jsonl", time.monotonic() + 300
    while time.monotonic() < deadline:
        if path.exists() and (done := path.read_bytes().count(b"\n")) >= count:
            return done
        time.sleep(0.02)
    raise AssertionError(f"no {count} records within five minutes")


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path, home, finished):
    """SIGKILL, while it loads, decodes or writes; then one run to the end."""
    folder, moments, done = make_folder(tmp_path / "pictures", 24), random.Random(20), 0
    for _ in range(20):
        with start(folder, home, *INTO) as run:
            if done < 22 and moments.random() < 0.8:
                done = wait_for_records(folder, done + 1)
                time.sleep(moments.random() * 0.3)
            else:
                time.sleep(moments.random() * 6)
            run.kill()
    assert finished(folder) == finished(make_folder(tmp_path / "at-once", 24))


# --- a Ray cluster, one started for each test


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Not the cluster of a test beside this one; its workers do not wait until the tests beside it are done."""
    monkeypatch.setenv("RAY_ADDRESS", "local")
    monkeypatch.setenv("RAY_worker_niceness", "0")


def worker_of(run) -> psutil.Process:
    """Wait for a process of Ray that decodes for a command."""
    while run.poll() is None:
        for process in psutil.Process(run.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it has ended
                if "(Captioner)).submit" in " ".join(process.cmdline()):
                    return process
    raise AssertionError("no worker has decoded")


@pytest.mark.slow
def test_stopped_and_with_a_worker_killed_the_records_are_those_of_one_process(tmp_path, home):
    make_folder(tmp_path / "pictures", 24)
    records, two = tmp_path / "captions.jsonl", ("pictures", "-o", "captions.jsonl", "--engine", "ray:2", "-b", 2)
    with start(tmp_path, home, *two) as run:
        wait_for_records(tmp_path, 1)
        run.terminate()
        _, err = run.communicate(timeout=120)
    assert (run.returncode, b"run the same command again to resume" in err) == (130, True), err
    before = records.read_bytes()
    assert 0 < before.count(b"\n") < 25
    for command in (two, ("pictures", "-o", "one.jsonl")):
        with start(tmp_path, home, *command) as run:
            if command is two:
                worker_of(run).kill()
            _, err = run.communicate(timeout=240)
        assert run.returncode == 3, err
        done = before.count(b'"status": "ok"') if command is two else 0
        assert (f"{done} of 25 pictures were done before".encode() in err) == (command is two)
    assert without_time(records) == without_time(tmp_path / "one.jsonl")


@pytest.mark.slow
def test_a_cluster_without_gpus_is_refused(sira, tmp_path):
    command = ("caption", EXAMPLES[0], "--engine", "ray", "-o", tmp_path / "x.jsonl", "--device", "cuda", "-p", "demo")
    code, _, err = sira(*command)
    assert (code, "1 Ray workers: the cluster has 0 GPUs" in err) == (2, True), err
