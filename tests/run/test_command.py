"""Runs over folders with files as their target: what is done stays done, whatever happens in between."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import datasets
import pytest
from PIL import Image

from sira_cli import SettingsError, interrupts
from sira_cli.methods import find as find_method
from sira_cli.models.presets import resolve
from sira_cli.pictures import selection
from sira_cli.pictures.captions import find_captions
from sira_cli.pictures.names import as_text
from sira_cli.pictures.sources import as_picture, located
from sira_cli.run.lvlm import load
from sira_cli.run.output import FACTS, Files, Output, Sidecars
from sira_cli.run.task import Caption
from tests.support.helpers import SIRA, open_terminal
from tests.support.scripted import script, written

FAST = ("--preset", "demo", "--max-new-tokens", "6")
EXAMPLES = sorted(Path(__file__).parents[2].glob("examples/*.png"))


def make_folder(folder: Path, pictures: int = 6) -> Path:
    """Drawn scenes and one file that is no picture, in the second place."""
    folder.mkdir(exist_ok=True)
    for number in range(pictures):
        shutil.copy(EXAMPLES[number % len(EXAMPLES)], folder / f"{number:03}.png")
    (folder / "001-bad.png").write_text("no picture")
    return folder


@pytest.fixture
def folder(tmp_path) -> Path:
    return make_folder(tmp_path / "pictures")


@pytest.fixture
def finished(sira, monkeypatch) -> Callable[[Path], tuple[int, str, str]]:
    """Runs the command of `start` in this process."""

    def run(folder: Path) -> tuple[int, str, str]:
        with monkeypatch.context() as patch:
            patch.chdir(folder)  # messages hold paths as they are given
            return sira("caption", ".", *FAST, "-o", "captions.jsonl", "-b", 4)

    return run


AT_ONCE: dict[int, bytes] = {}


@pytest.fixture
def at_once(finished, tmp_path_factory) -> Callable[[int], bytes]:
    """What an uninterrupted run leaves, by the number of pictures."""

    def left(pictures: int) -> bytes:
        if pictures not in AT_ONCE:
            folder = make_folder(tmp_path_factory.mktemp("at-once") / "pictures", pictures)
            assert finished(folder)[0] == 3
            AT_ONCE[pictures] = without_time(folder / "captions.jsonl")
        return AT_ONCE[pictures]

    return left


def start(folder: Path, home: Path, *options: object, **settings) -> subprocess.Popen:
    """The installed command over a folder, its records in the folder."""
    command = [SIRA, "caption", ".", *FAST, "-o", "captions.jsonl", "-b", 4, *options]
    return subprocess.Popen(
        [str(part) for part in command],
        cwd=folder,  # messages hold paths as they are given
        env={**os.environ, "SIRA_HOME": str(home)},
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **settings},
    )


def finish(folder: Path, home: Path, *options: object, **settings) -> tuple[int, bytes]:
    """The whole run: exit code, stderr."""
    with start(folder, home, *options, **settings) as run:
        _, err = run.communicate(timeout=300)
    return run.returncode, err


def without_time(path: Path) -> bytes:
    return re.sub(rb'"duration_ms": [0-9.]+', b'"duration_ms": 0', path.read_bytes())


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_records_go_to_the_file_and_nothing_to_stdout(sira, folder, at_once, monkeypatch):
    monkeypatch.chdir(folder)
    code, out, err = sira("caption", ".", *FAST, "-o", "captions.jsonl", "-b", 4)
    assert (code, out) == (3, "")
    bad, summary, next_command = err.splitlines()[-3:]
    assert next_command == "sira: look at them: sira report captions.jsonl"
    assert bad == "sira: 001-bad.png: is not a picture that Pillow can read; convert it to PNG or JPEG"
    again = r"\(--retry-errors tries them again\)"
    assert re.fullmatch(
        rf"sira: 6 of 7 pictures done in \d+ s \([0-9.]+/s after loading\), 1 failed {again}: captions.jsonl", summary
    )
    assert without_time(folder / "captions.jsonl") == at_once(6)
    records = read(folder / "captions.jsonl")
    lvlm = load("demo", max_new_tokens=6)
    assert [record["file_name"] for record in records] == sorted(path.name for path in folder.glob("*.png"))
    for record in records:
        if record["status"] == "ok":
            assert record["text"] == lvlm.caption(folder / record["file_name"]).text


def report_of(folder: Path, name: str = "captions") -> dict:
    return json.loads((folder / f"{name}.run.json").read_text())


def test_the_report_beside_the_records(sira, folder):
    sira("ask", folder, "Is there a dog?", *FAST, "-o", folder / "answers.jsonl", "--alpha", 0.25)
    report, records = report_of(folder, "answers"), read(folder / "answers.jsonl")
    assert (report["state"], report["settings"]["prompt"]) == ("finished", "Is there a dog?")
    assert report["settings"]["sira"]["alpha"] == 0.25
    assert report["pictures"] == {"all": 7, "ok": 6, "error": 1, "ok before": 0, "error before": 0}
    assert report["model"]["revision"] == records[0]["revision"]
    tokens = sum(record["output_tokens"] for record in records)
    assert report["tokens_per_second"] * report["seconds"] == pytest.approx(tokens, rel=0.02)
    assert report["peak_memory_bytes"]["host"] > 1e8
    library = "torchvision" if find_spec("torchvision") else "pillow"
    assert report["pixels"] == f"{library} {version(library)}"


def test_a_finished_file_is_the_metadata_of_an_image_folder(sira, folder, tmp_path, monkeypatch):
    """One of the pictures is none, and another is cut off; a later run tries them again."""
    (folder / "sub").mkdir()
    (folder / "005.png").rename(folder / "sub/005.png")
    (folder / "002-bad.png").write_bytes(EXAMPLES[0].read_bytes()[:5000])
    for _ in range(2):
        code, _, err = sira("caption", folder, "-r", *FAST, "-o", folder / "metadata.jsonl")
        assert (code, "001-bad.png: is not a picture" in err) == (3, True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    cache = str(tmp_path / "cache")
    loaded = datasets.load_dataset("imagefolder", data_dir=str(folder), split="train", cache_dir=cache)
    assert {image.size for image in loaded["image"]} == {(384, 384)}
    texts = [record["text"] for record in read(folder / "metadata.jsonl")]
    assert (len(texts), sorted(loaded["text"])) == (6, sorted(texts))


TIMES = re.compile(r'"(?:began|seconds|\w+_per_second)": .*')


def test_nothing_is_done_twice(sira, folder, monkeypatch):
    output, report = folder / "captions.jsonl", folder / "captions.run.json"
    command = ("caption", folder, *FAST, "-o", output)
    sira(*command)
    before, times = output.read_bytes(), TIMES.findall(report.read_text())
    with monkeypatch.context() as patch:
        patch.setattr("sira_cli.run.lvlm.Lvlm.generate", None)  # no picture may be decoded again
        code, _, err = sira(*command)
        done = "6 of 7 pictures were done before, 1 failed (--retry-errors tries them again)"
        assert (code, err.splitlines()[-2]) == (3, f"sira: {done}: {output}")
        assert output.read_bytes() == before
        code, _, err = sira(*command, "--retry-errors")
    assert (code, without_time(output)) == (3, re.sub(rb'"duration_ms": [0-9.]+', b'"duration_ms": 0', before))
    assert "0 of 7 pictures done in" in err
    assert "6 of 7 pictures were done before, 1 failed" in err
    assert (TIMES.findall(report.read_text()), len(times)) == (times, 4)  # of the run that did most
    sira(*command, "--overwrite", "--limit", 1)
    assert TIMES.findall(report.read_text()) != times


@pytest.fixture
def checkpoint(llava_folder, tmp_path) -> Path:
    """A model's folder of its own, and no other way to load a model."""
    return Path(shutil.copytree(llava_folder, tmp_path / "checkpoint"))


def test_nothing_left_to_do_needs_no_weights(sira, folder, checkpoint):
    (folder / "001-bad.png").unlink()
    output = folder / "captions.jsonl"
    command = ("caption", folder, "-m", checkpoint, "--max-new-tokens", 3, "-o", output)
    assert sira(*command)[0] == 0
    before, facts = output.read_bytes(), report_of(folder)
    (checkpoint / "model.safetensors").unlink()
    code, out, err = sira(*command, "--output-dir", folder / "texts")
    said = [f"6 of 6 pictures were done before: {output}", f"look at them: sira report {output}"]
    assert (code, out, err) == (0, "", "".join(f"sira: {line}\n" for line in said))
    assert output.read_bytes() == before
    texts = {path.stem: path.read_text().strip() for path in (folder / "texts").iterdir()}
    assert texts == {record["file_name"][:-4]: record["text"] for record in read(folder / "captions.jsonl")}
    typed = ["sira", *map(str, command)]
    script = f"import sys; sys.argv = {typed!r}\nfrom sira_cli.cli import main\ntry: main()\n"
    script += "finally: print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert run.stdout == b"[]\n"
    assert {name: report_of(folder)[name] for name in FACTS if name in facts} == {
        name: facts[name] for name in FACTS if name in facts
    }
    shutil.copy(EXAMPLES[3], folder / "001.png")  # another picture under an old name
    code, _, err = sira(*command)
    assert (code, "no safetensors weights" in err) == (1, True)


def test_text_files_that_are_all_there_need_no_model(sira, folder):
    for picture in folder.glob("*.png"):
        picture.with_suffix(".txt").write_text("mine\n")
    command = ("caption", folder, "-m", "no/model-of-this-name", "--offline", "--sidecar")
    assert sira(*command) == (0, "", "sira: 7 of 7 pictures have a text file already (--overwrite replaces it)\n")
    (folder / "003.txt").write_text("")
    code, _, err = sira(*command)
    assert (code, "is not in the cache and offline mode is on" in err) == (1, True)


def test_one_json_record_per_picture_whether_new_or_done_before(sira, folder):
    (folder / "001-bad.png").unlink()
    output, old = folder / "captions.jsonl", ("000", "001", "002", "003", "004")
    command = ("caption", folder, *FAST, "-o", output, "--json")
    first = sira(*command)[1]
    assert first == output.read_text() == sira(*command)[1]
    shutil.copy(EXAMPLES[4], folder / "002-a.png")
    assert sira(*command)[1] == output.read_text()

    for name in old:
        (folder / f"{name}.txt").write_text(f"text of {name}\n")
    (folder / "005.txt").write_text("")  # is no text
    code, out, _ = sira("caption", folder, *FAST, "--sidecar", "--json")
    found = {Path(record["file_name"]).stem: record for record in map(json.loads, out.splitlines())}
    records = {Path(record["file_name"]).stem: record for record in read(output)}
    assert (code, len(found)) == (0, 7)
    for name in ("002-a", "005"):
        assert found[name]["text"] + "\n" == records[name]["text"] + "\n" == (folder / f"{name}.txt").read_text()
    for name in old:
        assert (found[name]["status"], found[name]["text"], found[name]["model"]) == ("ok", f"text of {name}", "")
        types = [{field: type(value) for field, value in each[name].items()} for each in (found, records)]
        assert types[0] == types[1]


def test_pictures_that_were_added_replaced_or_mended_are_done(sira, folder, tmp_path):
    output = folder / "captions.jsonl"
    sira("caption", folder, *FAST, "-o", output)
    old = {record["file_name"]: record for record in read(output)}
    shutil.copy(EXAMPLES[4], folder / "000-a.png")
    shutil.copy(EXAMPLES[3], folder / "001.png")
    assert sira("caption", folder, *FAST, "-o", output)[0] == 3
    shutil.copy(EXAMPLES[2], folder / "001-bad.png")
    assert sira("caption", folder, *FAST, "-o", output)[0] == 0  # other bytes: it is another picture
    shutil.copytree(folder, tmp_path / "fresh", ignore=shutil.ignore_patterns("captions*"))
    sira("caption", tmp_path / "fresh", *FAST, "-o", tmp_path / "fresh/captions.jsonl")
    assert without_time(output) == without_time(tmp_path / "fresh/captions.jsonl")
    again = {record["file_name"]: record for record in read(output)}
    assert [name for name in old if again[name] != old[name]] == ["001-bad.png", "001.png"]


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        (["--alpha", 1.0], "sira.alpha is 0.5 there and 1.0 now"),
        (["--set", "beta=0.1"], "sira.beta is None there and 0.1 now"),
    ],
)
def test_another_configuration_is_refused_before_the_model_is_loaded(sira, folder, monkeypatch, options, difference):
    output = folder / "captions.jsonl"
    for number in range(2, 6):
        (folder / f"{number:03}.png").unlink()
    sira("caption", folder, *FAST, "-o", output)
    before = output.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("sira_cli.run.lvlm.load", None)
        code, _, err = sira("caption", folder, *FAST, "-o", output, *options)
    assert (code, output.read_bytes()) == (2, before)
    assert f"{output}: holds records of another configuration: {difference}" in err
    assert "--overwrite" in err
    (folder / "captions.run.json").unlink()  # then the records themselves are asked
    code, _, err = sira("caption", folder, *FAST, "-o", output, *options)
    assert (code == 2) == ("beta" not in difference)
    assert sira("caption", folder, *FAST, "-o", output, *options, "--overwrite")[0] == 3
    assert len(read(output)) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-o", "captions.txt"], "--output captions.txt: expected a name that ends in .jsonl, or a folder"),
        (["-o", "no/where.jsonl"], "--output no/where.jsonl: the folder no does not exist: make it first"),
        (["--files-from", "nowhere.txt"], "--files-from nowhere.txt: cannot be read: No such file"),
        (["--sidecar", "--caption-extension", ".png"], "caption extension '.png': expected one for text files"),
    ],
)
def test_what_cannot_work_is_known_before_the_model_is_loaded(sira, folder, monkeypatch, options, message):
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sira_cli.run.lvlm.load", None)
    code, out, err = sira("caption", folder, *FAST, *options)
    assert (code, out) == (2, "")
    assert message in err


def test_lists_limits_and_shards(sira, folder):
    listed = "\n".join(str(path) for path in sorted(folder.glob("00?.png")))
    code, out, _ = sira("caption", "--files-from", "-", "--limit", 2, *FAST, "--json", stdin=listed.encode())
    assert code == 0
    assert [Path(json.loads(line)["file_name"]).name for line in out.splitlines()] == ["000.png", "001.png"]
    names = []
    for index in (1, 2):
        output = folder / f"captions-{index}.jsonl"
        sira("caption", folder, *FAST, "-o", output, "--shard", f"{index}/2")
        names += [record["file_name"] for record in read(output)]
    assert sorted(names) == sorted(path.name for path in folder.glob("*.png"))
    assert sira("ask", "Why?", *FAST)[0] == 2
    code, out, _ = sira("ask", "--files-from", "-", "Is there a dog?", *FAST, stdin=listed.encode())
    assert len(out.splitlines()) == 6


def test_sidecars(sira, folder, tmp_path):
    (folder / "001.txt").write_text("mine\n")
    code, out, _ = sira("caption", folder, *FAST, "--sidecar")
    assert (code, out) == (3, "")
    lvlm = load("demo", max_new_tokens=6)
    texts = {path.stem: path.read_text() for path in folder.glob("*.txt")}
    assert texts == {"001": "mine\n"} | {
        f"00{number}": lvlm.caption(folder / f"00{number}.png").text + "\n" for number in (0, 2, 3, 4, 5)
    }
    code, _, err = sira("caption", folder, *FAST, "--sidecar")
    assert err.splitlines()[-1].endswith("6 of 7 pictures have a text file already (--overwrite replaces it), 1 failed")
    sira("caption", folder, *FAST, "--sidecar", "--overwrite")
    assert (folder / "001.txt").read_text() == lvlm.caption(folder / "001.png").text + "\n"
    assert not list(folder.glob(".sira-*"))


def test_a_tree_of_sidecars_from_the_records_of_an_earlier_run(sira, folder, tmp_path, monkeypatch):
    (folder / "sub").mkdir()
    (folder / "000.png").rename(folder / "sub/000.png")
    output = tmp_path / "captions.jsonl"
    sira("caption", folder, "-r", *FAST, "-o", output)
    monkeypatch.setattr("sira_cli.run.lvlm.Lvlm.generate", None)
    tree = ("--output-dir", tmp_path / "texts", "--caption-extension", "caption")
    sira("caption", folder, "-r", *FAST, "-o", output, *tree)
    texts = {str(path.relative_to(tmp_path / "texts")) for path in (tmp_path / "texts").rglob("*.caption")}
    assert texts == {"sub/000.caption", *(f"00{number}.caption" for number in range(1, 6))}
    by_name = {record["file_name"]: record["text"] for record in read(output)}
    assert (tmp_path / "texts/sub/000.caption").read_text() == by_name["pictures/sub/000.png"] + "\n"
    assert not list(folder.rglob("*.caption"))


def test_a_pair_of_one_name_has_two_text_files(sira, folder):
    Image.new("RGB", (99, 99)).save(folder / "001.jpg")
    code, _, err = sira("caption", folder, *FAST, "--sidecar")
    lvlm = load("demo", max_new_tokens=6)
    for text, picture in (("001.txt", "001.jpg"), ("001.png.txt", "001.png"), ("002.txt", "002.png")):
        assert (folder / text).read_text() == lvlm.caption(folder / picture).text + "\n"
    assert (code, "1 text file is named like 001.png.txt, next to another picture's" in err) == (3, True)
    (found,) = find_captions(folder / "001.png").pictures
    assert found.caption == lvlm.caption(folder / "001.png").text
    for name in ("x", "y"):
        make_folder(folder / name, 1)
    code, _, err = sira("caption", folder / "x", folder / "y", *FAST, "--output-dir", folder)
    assert (code, f"would both be described in {folder}/000.txt" in err) == (2, True)


@pytest.mark.parametrize("lines", ["one", "keep"])
def test_a_text_file_has_one_line(sira, folder, monkeypatch, lines):
    tokenizer = load("demo").processor.tokenizer
    script(monkeypatch, lambda prompt: [*written(tokenizer, "A dog.\n\nA cat."), tokenizer.eos_token_id])
    options = ("--sidecar", "-o", folder / "of.jsonl", "--set", f"text.lines={lines}")
    err = sira("caption", folder, "--max-new-tokens", 30, "-p", "demo", *options)[2]
    assert {record["text"] for record in read(folder / "of.jsonl")} == {"", "A dog.\n\nA cat."}
    assert (folder / "000.txt").read_text() == ("A dog.\n\nA cat.\n" if lines == "keep" else "A dog. A cat.\n")
    assert ("6 texts of several lines are one line" in err) == (lines == "one")
    assert "text_settings" not in read(folder / "of.jsonl")[0]


def test_fail_fast(sira, folder):
    code, _, _ = sira("caption", folder, *FAST, "-o", folder / "captions.jsonl", "--fail-fast")
    assert code == 3
    assert [record["status"] for record in read(folder / "captions.jsonl")] == ["ok", "error"]
    assert report_of(folder)["state"] == "stopped"
    # What failed before does not stop it again.
    assert sira("caption", folder, *FAST, "-o", folder / "captions.jsonl", "--fail-fast")[0] == 3
    assert len(read(folder / "captions.jsonl")) == 7
    assert report_of(folder)["state"] == "finished"


def test_odd_names(sira, tmp_path):
    names = ["with space.png", "quote'\".png", "new\nline.png", os.fsdecode(b"\xff\xfe.png"), "-.png", "ü.png"]
    names.append("\\xff\\xfe.png")  # as the name that is no UTF-8 was written
    for number, name in enumerate(names):
        shutil.copy(EXAMPLES[number % 5], tmp_path / name)
    output = tmp_path / "captions.jsonl"
    for _ in range(2):
        assert sira("caption", tmp_path, *FAST, "-o", output, "--sidecar")[0] == 0
        found = [record["file_name"] for record in read(output)]
        assert sorted(found) == sorted(as_text(name) for name in names)
    assert {record["file_name"]: record["image_sha256"] for record in read(output)} == {
        as_text(name): hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in names
    }
    assert len(list(tmp_path.glob("*.txt"))) == 7


def test_pictures_that_vanish_or_cannot_be_read_are_errors(sira, folder, monkeypatch):
    """The folder changes after it was listed; and not even root may have the memory at address 0."""
    (folder / "000-unreadable.png").symlink_to("/proc/self/mem")
    find = selection.find_pictures

    def find_and_change(*args, **kwargs):
        pictures = find(*args, **kwargs)
        (folder / "002.png").unlink()
        shutil.copy(EXAMPLES[0], folder / "999.png")
        return pictures

    monkeypatch.setattr(selection, "find_pictures", find_and_change)
    assert sira("caption", folder, *FAST, "-o", folder / "captions.jsonl")[0] == 3
    records = {record["file_name"]: record["error"] for record in read(folder / "captions.jsonl")}
    assert (len(records), records["002.png"]) == (8, f"{folder}/002.png: no such file")
    assert records["000-unreadable.png"] == f"{folder}/000-unreadable.png: cannot be read: Input/output error"


@pytest.mark.parametrize(
    "number",
    [each if each is signal.SIGINT else pytest.param(each, marks=pytest.mark.slow) for each in interrupts.SIGNALS],
)
def test_an_interrupted_run_keeps_what_is_done_and_says_how_to_go_on(tmp_path, home, finished, at_once, number):
    folder = make_folder(tmp_path / "pictures", 24)
    with start(folder, home, preexec_fn=lambda: signal.signal(number, signal.SIG_DFL)) as run:
        wait_for_records(folder, 3)
        run.send_signal(number)
        _, err = run.communicate(timeout=300)
    assert run.returncode == 130
    assert b"Traceback" not in err
    assert b"interrupted; finished work is kept: run the same command again to resume" in err
    assert report_of(folder)["state"] == "interrupted"
    assert 3 <= len(read(folder / "captions.jsonl")) < 25
    assert finished(folder)[0] == 3
    assert without_time(folder / "captions.jsonl") == at_once(24)


def wait_for_records(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        path = folder / "captions.jsonl"
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.02)
    raise AssertionError(f"no {count} records within five minutes")


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path, home, at_once):
    """SIGKILL, while it loads, decodes or writes; then one run to the end."""
    folder = make_folder(tmp_path / "pictures", 24)
    moments = random.Random(20)
    for _ in range(20):
        with start(folder, home) as run:
            done = (folder / "captions.jsonl").read_bytes().count(b"\n") if (folder / "captions.jsonl").exists() else 0
            if done < 22 and moments.random() < 0.8:
                wait_for_records(folder, done + 1)
                time.sleep(moments.random() * 0.3)
            else:
                time.sleep(moments.random() * 6)
            run.kill()
    assert finish(folder, home)[0] == 3
    assert without_time(folder / "captions.jsonl") == at_once(24)


@pytest.mark.slow
def test_a_bar_on_a_terminal_and_records_in_a_pipe(tmp_path, home):
    folder = make_folder(tmp_path / "pictures")
    controller, terminal = open_terminal()
    with start(folder, home, "--json", stderr=terminal) as run:
        os.close(terminal)
        shown = b""
        with contextlib.suppress(OSError):  # the terminal is gone when the command has ended
            while piece := os.read(controller, 100_000):
                shown += piece
        assert run.stdout is not None
        out = run.stdout.read()
    os.close(controller)
    assert run.returncode == 3
    assert out == (folder / "captions.jsonl").read_bytes()
    assert b"7/7" in shown
    assert b"1 failed" in shown
    rates = re.findall(rb"[0-9.]+/s", shown)
    assert rates[-1] == rates[-2]  # the last line and the bar


@pytest.mark.slow
def test_a_full_disk(tmp_path, home, at_once):
    """A limit for the size of files, in the middle of a record."""
    folder = make_folder(tmp_path / "pictures")
    resource = pytest.importorskip("resource", reason="this system has no limits for a process, as Windows")
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))  # noqa: E731
    code, err = finish(folder, home, preexec_fn=limit)
    assert code == 1
    assert b"captions.jsonl: cannot be written: File too large: what is finished is kept" in err
    kept = read(folder / "captions.jsonl")
    assert 0 < len(kept) < 7
    assert finish(folder, home)[0] == 3
    assert without_time(folder / "captions.jsonl") == at_once(6)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_files(tmp_path, home):
    """All of them damaged, so that it takes seconds."""
    peaks, many = {}, 10_000
    for count in (100, many):
        folder = tmp_path / str(count)
        folder.mkdir()
        for number in range(count):
            (folder / f"{number:05}.png").write_bytes(b"\x89PNG" * 500)
        code, err = finish(folder, home, "-q")
        assert code == 3
        assert err.count(b"\n") == count
        assert len(read(folder / "captions.jsonl")) == count
        peaks[count] = report_of(folder)["peak_memory_bytes"]["host"]
    assert peaks[many] < peaks[100] + 20e6 + 3e3 * many


@pytest.mark.parametrize("command", [["caption", "-b", 2], ["trace"]])
def test_a_thin_picture_is_its_own_error(sira, tmp_path, command):
    """The bundled model's processor resizes by the shorter edge, to 96 pixels."""
    folder = tmp_path / "scenes"
    folder.mkdir()
    shutil.copy(EXAMPLES[0], folder / "a.png")
    Image.new("RGB", (1, 5000)).save(folder / "b.png")
    name, *options = command
    code, _, err = sira(name, *options, folder, "-p", "demo", "-o", tmp_path / "out.jsonl")
    assert code == 3, err
    assert "b.png: the image processor refused it: its 1 x 5,000 pixels would become 96 x 480,000, and" in err
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["status"] for line in lines if "status" in line] == ["ok", "error"]


@pytest.mark.parametrize("protected", ["000.txt", "captions.jsonl", "captions.run.json", "a link"])
def test_a_write_protected_file_is_refused_before_the_model_is_loaded(sira, folder, monkeypatch, protected):
    real = folder / ("002.txt" if protected == "a link" else protected)
    real.write_text("")
    real.chmod(0o444)
    if protected == "a link":
        (folder / "000.txt").symlink_to("002.txt")
    monkeypatch.setattr("sira_cli.run.lvlm.load", None)
    code, _, err = sira("caption", folder, *FAST, "--sidecar", "--overwrite", "-o", folder / "captions.jsonl")
    shown = "000.txt" if protected == "a link" else protected
    assert (code, err.count("\n")) == (2, 1)
    assert f"{folder / shown}: is write-protected: allow writing (chmod u+w)" in err
    assert real.read_text() == ""


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may be another user for a while")
@pytest.mark.parametrize(
    ("options", "way"),
    [
        ({"sidecar": True}, "write the text files elsewhere with `output_dir=`"),
        ({"output": "of.jsonl"}, "give another `output=`"),
    ],
)
def test_a_read_only_folder_is_refused_at_once(options, way):
    with tempfile.TemporaryDirectory() as place:
        folder = make_folder(Path(place) / "pictures", 1)
        for path in (Path(place), folder):
            path.chmod(0o755)
        pictures = [as_picture(folder / "000.png")]
        output = {name: folder / "of.jsonl" for name in options if name == "output"}
        task = Caption.of(resolve("demo"), find_method("sira"))
        os.seteuid(65534)
        try:
            with pytest.raises(SettingsError) as found:
                Output(task, pictures, Files(**options | output))
        finally:
            os.seteuid(0)
    assert str(found.value) == f"{folder}: is read-only: {way}"


@pytest.mark.parametrize("name", ["x" * 251 + ".png", "x" * 300 + "/a.png"])
def test_a_text_file_whose_name_would_be_too_long_is_refused_before_the_run(tmp_path, name):
    """The system itself says which are."""
    picture = located(f"http://example.org/{name}", name)
    if "/" not in name:
        Sidecars([picture], output_dir=tmp_path, extension=".ttt")
    with pytest.raises(SettingsError, match="the name of its text file would be too long"):
        Sidecars([picture], output_dir=tmp_path, extension=".tttt")
    place = tmp_path / picture.mirrored(".tttt")
    with pytest.raises(OSError, match="File name too long"):
        place.parent.mkdir(exist_ok=True) if "/" in name else place.touch()
