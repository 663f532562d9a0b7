"""Runs that are interrupted, killed or out of space go on to the records of one run, also on a Ray cluster."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sira_cli import interrupts
from sira_cli.errors import ModelNotFoundError
from sira_cli.models import presets
from sira_cli.pictures.sources import located
from sira_cli.run.on_ray import OnRay
from sira_cli.run.task import Caption
from tests.run.helpers import EXAMPLES, FAST, make_folder, read, report_of, start, without_time
from tests.support.helpers import open_terminal

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


@pytest.mark.slow
def test_a_full_disk(tmp_path, home, finished):
    """A limit for the size of files, in the middle of a record."""
    folder = make_folder(tmp_path / "pictures")
    resource = pytest.importorskip("resource", reason="this system has no limits for a process, as Windows")
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))  # noqa: E731
    with start(folder, home, *INTO, preexec_fn=limit) as run:
        _, err = run.communicate(timeout=300)
    full = b"captions.jsonl: cannot be written: File too large: what is finished is kept"
    assert (run.returncode, full in err, 0 < len(read(folder / "captions.jsonl")) < 7) == (1, True, True)
    assert finished(folder) == finished(make_folder(tmp_path / "at-once"))


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_files(tmp_path, home):
    """All of them damaged, so that it takes seconds."""
    peaks, many = {}, 10_000
    for count in (100, many):
        folder = tmp_path / str(count)
        folder.mkdir()
        for number in range(count):
            (folder / f"{number:05}.png").write_bytes(b"\x89PNG" * 500)
        with start(folder, home, *INTO, "-q") as run:
            _, err = run.communicate(timeout=300)
        assert (run.returncode, err.count(b"\n"), len(read(folder / "captions.jsonl"))) == (3, count, count)
        peaks[count] = report_of(folder)["peak_memory_bytes"]["host"]
    assert peaks[many] < peaks[100] + 20e6 + 3e3 * many


@pytest.mark.slow
def test_a_bar_on_a_terminal(tmp_path, home):
    folder, shown = make_folder(tmp_path / "pictures"), b""
    controller, terminal = open_terminal()
    with start(folder, home, *INTO, stderr=terminal) as run:
        os.close(terminal)
        with contextlib.suppress(OSError):  # the terminal is gone when the command has ended
            while piece := os.read(controller, 100_000):
                shown += piece
    os.close(controller)
    assert (run.returncode, b"7/7" in shown, b"1 failed" in shown) == (3, True, True)


# --- a Ray cluster, one started for each test


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Not the cluster of a test beside this one; its workers do not wait until the tests beside it are done."""
    monkeypatch.setenv("RAY_ADDRESS", "local")
    monkeypatch.setenv("RAY_worker_niceness", "0")


def worker_of(run) -> int | None:
    """A process of Ray below a command that is decoding."""
    parents, working = {}, []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(process.name)] = int(process.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            if b"MapWorker(MapBatches(Captioner)).submit" in process.joinpath("cmdline").read_bytes():
                working.append(int(process.name))
        except OSError:
            continue
    for process in working:
        above = process
        while above in parents and above != run.pid:
            above = parents[above]
        if above == run.pid:
            return process
    return None


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc for the workers")
def test_stopped_and_with_a_worker_killed_the_records_are_those_of_one_process(tmp_path, home):
    make_folder(tmp_path / "pictures", 24)
    records, two = tmp_path / "two/captions.jsonl", ("pictures", "-o", "two", "--engine", "ray:2", "-b", 2)

    with start(tmp_path, home, *two) as run:
        while run.poll() is None and not (records.exists() and records.stat().st_size):
            time.sleep(0.05)
        run.terminate()
        _, err = run.communicate(timeout=120)
    assert (run.returncode, b"run the same command again to resume" in err) == (130, True), err
    before = records.read_bytes()
    assert 0 < before.count(b"\n") < 25

    with start(tmp_path, home, *two) as run:
        while run.poll() is None and not (working := worker_of(run)):
            time.sleep(0.05)
        os.kill(working, signal.SIGKILL)
        _, err = run.communicate(timeout=240)
    done = before.count(b'"status": "ok"')
    assert (run.returncode, f"{done} of 25 pictures were done before".encode() in err) == (3, True), err

    with start(tmp_path, home, "pictures", "-o", "one") as run:
        run.communicate(timeout=240)
    assert without_time(records) == without_time(tmp_path / "one/captions.jsonl")


@pytest.mark.slow
def test_what_is_wrong_with_the_model_ends_the_run():
    preset = presets.resolve("org/nowhere")
    engine = OnRay({"device": "auto", "offline": False}, 1, workers=1)
    try:
        engine.begin(Caption(preset, preset.method("sira"), "Describe it."), lambda name: "")
        with pytest.raises(ModelNotFoundError, match="nowhere"):
            list(engine.results([(located(str(EXAMPLES[0])), "0.png")]))
    finally:
        engine.end()


@pytest.mark.slow
def test_a_cluster_without_gpus_is_refused(sira, tmp_path):
    command = ("caption", EXAMPLES[0], "--engine", "ray", "-o", tmp_path / "x.jsonl", "--device", "cuda", "-p", "demo")
    code, _, err = sira(*command)
    assert (code, "1 Ray workers: the cluster has 0 GPUs" in err) == (2, True), err
