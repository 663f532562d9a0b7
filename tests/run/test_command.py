"""Runs over folders with files as their target: what is done stays done, whatever happens in between."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import datasets
import psutil
import pytest
from PIL import Image

from sira_cli import SettingsError, interrupts
from sira_cli.pictures.captions import find_captions
from sira_cli.pictures.names import as_text
from sira_cli.pictures.sources import as_picture, located
from sira_cli.run.ledger import Ledger
from sira_cli.run.lvlm import load
from sira_cli.run.output import Sidecars
from sira_cli.run.sink import FACTS
from tests.run.helpers import EXAMPLES, FAST, make_folder, read, report_of, start, without_time
from tests.support.helpers import imported
from tests.support.scripted import script, written


@pytest.fixture
def folder(tmp_path) -> Path:
    return make_folder(tmp_path / "pictures")


def test_a_finished_file_is_the_metadata_of_an_image_folder(sira, folder, tmp_path, monkeypatch):
    """One of the pictures is none, and another is cut off; a later run tries them again."""
    (folder / "sub").mkdir()
    (folder / "005.png").rename(folder / "sub/005.png")
    (folder / "002-bad.png").write_bytes(EXAMPLES[0].read_bytes()[:5000])
    for _ in range(2):
        code, _, err = sira("caption", folder, "-r", *FAST, "-o", folder / "metadata.jsonl")
        assert code == 3
        assert "001-bad.png: is not a picture" in err
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    cache = str(tmp_path / "cache")
    loaded = datasets.load_dataset("imagefolder", data_dir=str(folder), split="train", cache_dir=cache)
    texts = sorted(record["text"] for record in read(folder / "metadata.jsonl"))
    assert len(texts) == 6
    assert sorted(loaded["text"]) == texts
    assert {image.size for image in loaded["image"]} == {(384, 384)}


def test_nothing_is_done_twice_and_text_files_are_made_of_records(sira, folder, tmp_path, monkeypatch):
    (folder / "sub").mkdir()
    (folder / "000.png").rename(folder / "sub/000.png")
    output, tree = tmp_path / "captions.jsonl", tmp_path / "texts"
    command, into = (
        ("caption", folder, "-r", *FAST, "-o", output),
        ["--output-dir", tree, "--caption-extension", "caption"],
    )
    sira(*command)
    before = without_time(output)
    monkeypatch.setattr("sira_cli.run.lvlm.Lvlm.generate", None)  # no picture may be decoded again
    done = "6 of 7 pictures were done before, 1 failed"
    for more, message in (([], done), (into, done), (["--retry-errors"], "0 of 7 pictures")):
        code, _, err = sira(*command, *more)
        assert code == 3
        assert message in err
        assert without_time(output) == before
    texts = {f"pictures/{path.relative_to(tree)}": path.read_text() for path in tree.rglob("*.*")}
    good = [record for record in read(output) if record["status"] == "ok"]
    assert texts == {record["file_name"].replace("png", "caption"): f"{record['text']}\n" for record in good}
    assert "pictures/sub/000.caption" in texts
    assert list(folder.rglob("*.caption")) == []


def test_nothing_left_to_do_needs_no_weights(sira, folder, llava_folder, tmp_path):
    (folder / "001-bad.png").unlink()
    model, output = Path(shutil.copytree(llava_folder, tmp_path / "checkpoint")), folder / "captions.jsonl"
    command = ("caption", folder, "-m", model, "--max-new-tokens", 3, "-o", output)
    assert sira(*command)[0] == 0
    before, facts = output.read_bytes(), report_of(folder)
    (model / "model.safetensors").unlink()
    said = f"sira: 6 of 6 pictures were done before: {output}\n"
    assert sira(*command) == (0, "", said)
    assert output.read_bytes() == before
    assert "torch" not in imported(*command)[1]
    assert [report_of(folder).get(name) for name in FACTS] == [facts.get(name) for name in FACTS]
    shutil.copy(EXAMPLES[3], folder / "001.png")  # another picture under an old name
    code, _, err = sira(*command)
    assert code == 1
    assert "no safetensors weights" in err


def test_text_files_that_are_all_there_need_no_model(sira, folder):
    for picture in folder.glob("*.png"):
        picture.with_suffix(".txt").write_text("mine\n")
    command = ("caption", folder, "-m", "no/model-of-this-name", "--offline", "--sidecar")
    assert sira(*command) == (0, "", "sira: 7 of 7 pictures have a text file already (--overwrite replaces it)\n")
    (folder / "003.txt").write_text("")
    assert sira(*command)[0] == 1
    assert "offline mode is on" in sira(*command)[2]


def test_one_json_record_per_picture_whether_new_or_done_before(sira, folder):
    (folder / "001-bad.png").unlink()
    output = folder / "captions.jsonl"
    command = ("caption", folder, *FAST, "-o", output, "--json")
    first = sira(*command)[1]
    assert first == output.read_text() == sira(*command)[1]
    shutil.copy(EXAMPLES[4], folder / "002-a.png")
    assert sira(*command)[1] == output.read_text()


def test_pictures_that_were_added_replaced_or_mended_are_done(sira, folder, tmp_path):
    output = folder / "captions.jsonl"
    sira("caption", folder, *FAST, "-o", output)
    old = {record["file_name"]: record for record in read(output)}
    for scene, name, code in ((4, "000-a", 3), (3, "001", 3), (2, "001-bad", 0)):  # new, another one, mended
        shutil.copy(EXAMPLES[scene], folder / f"{name}.png")
        assert sira("caption", folder, *FAST, "-o", output)[0] == code
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
def test_another_configuration_is_refused_before_the_model_is_loaded(sira, tmp_path, monkeypatch, options, difference):
    folder = make_folder(tmp_path, 2)
    output = folder / "captions.jsonl"
    command = ("caption", folder, *FAST, "-o", output)
    sira(*command)
    before = output.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("sira_cli.run.lvlm.load", None)
        code, _, err = sira(*command, *options)
    assert code == 2
    assert output.read_bytes() == before
    assert "--overwrite" in err
    assert f"{output}: holds records of another configuration: {difference}" in err
    (folder / "captions.run.json").unlink()  # then the records themselves are asked
    assert sira(*command, *options)[0] == 2
    assert (sira(*command, *options, "--overwrite")[0], len(read(output))) == (3, 3)


def test_lists_limits_and_shards(sira, folder):
    listed = "\n".join(map(str, sorted(folder.glob("00?.png")))).encode()
    code, out, _ = sira("caption", "--files-from", "-", "--limit", 2, *FAST, "--json", stdin=listed)
    names = [Path(json.loads(line)["file_name"]).name for line in out.splitlines()]
    assert (code, names) == (0, ["000.png", "001.png"])
    names = []
    for index in (1, 2):
        output = folder / f"captions-{index}.jsonl"
        sira("caption", folder, *FAST, "-o", output, "--shard", f"{index}/2")
        names += [record["file_name"] for record in read(output)]
    assert sorted(names) == sorted(path.name for path in folder.glob("*.png"))
    assert len(sira("ask", "--files-from", "-", "Is there a dog?", *FAST, stdin=listed)[1].splitlines()) == 6


def test_sidecars(sira, folder):
    (folder / "001.txt").write_text("mine\n")
    command, lvlm = ("caption", folder, *FAST, "--sidecar"), load("demo", max_new_tokens=6)
    expected = {f"00{number}": lvlm.caption(folder / f"00{number}.png").text + "\n" for number in range(6)}
    said = "6 of 7 pictures have a text file already (--overwrite replaces it), 1 failed"
    both = (["-o", folder / "of.jsonl"], "")
    for more, message in (both, both, (["--json"], said), (["--overwrite"], "")):
        code, out, err = sira(*command, *more)
        texts = {path.stem: path.read_text() for path in folder.glob("*.txt")}
        assert code == 3
        assert message in err
        assert texts == expected | ({} if "--overwrite" in more else {"001": "mine\n"})
        good = [record for record in map(json.loads, out.splitlines()) if record["status"] == "ok"]
        assert {each["file_name"][-7:-4]: f"{each['text']}\n" for each in good} == (texts if "--json" in more else {})
    assert not list(folder.glob(".sira-*"))


def test_a_pair_of_one_name_has_two_text_files(sira, folder):
    Image.new("RGB", (99, 99)).save(folder / "001.jpg")
    code, _, err = sira("caption", folder, *FAST, "--sidecar")
    assert code == 3
    assert "1 text file is named like 001.png.txt, next to another picture's" in err
    lvlm = load("demo", max_new_tokens=6)
    for text, picture in (("001.txt", "001.jpg"), ("001.png.txt", "001.png"), ("002.txt", "002.png")):
        expected = lvlm.caption(folder / picture).text
        assert (folder / text).read_text() == expected + "\n"
        assert find_captions(folder / picture).pictures[0].caption == expected
    make_folder(folder / "x", 1)
    code, _, err = sira("caption", folder, folder / "x", *FAST, "--output-dir", folder)
    assert code == 2
    assert f"would both be described in {folder}/000.txt" in err


@pytest.mark.parametrize("lines", ["one", "keep"])
def test_a_text_file_has_one_line(sira, folder, monkeypatch, lines):
    tokenizer = load("demo").processor.tokenizer
    script(monkeypatch, lambda prompt: [*written(tokenizer, "A dog.\n\nA cat."), tokenizer.eos_token_id])
    options = ("--sidecar", "-o", folder / "of.jsonl", "--set", f"text.lines={lines}")
    err = sira("caption", folder, "--max-new-tokens", 30, "-p", "demo", *options)[2]
    assert {record["text"] for record in read(folder / "of.jsonl")} == {"", "A dog.\n\nA cat."}
    assert (folder / "000.txt").read_text() == ("A dog.\n\nA cat.\n" if lines == "keep" else "A dog. A cat.\n")
    assert ("6 texts of several lines are one line" in err) == (lines == "one")


def test_fail_fast(sira, folder):
    command = ("caption", folder, *FAST, "-o", folder / "captions.jsonl", "--fail-fast")
    for statuses, state in ((["ok", "error"], "stopped"), (["ok", "error", *["ok"] * 5], "finished")):
        assert sira(*command)[0] == 3  # what failed before does not stop it again
        assert [record["status"] for record in read(folder / "captions.jsonl")] == statuses
        assert report_of(folder)["state"] == state


def test_odd_names(sira, tmp_path):
    names = ["with space.png", "quote'\".png", "new\nline.png", os.fsdecode(b"\xff\xfe.png"), "-.png", "ü.png"]
    names.append("\\xff\\xfe.png")  # as the name that is no UTF-8 was written
    hashes = {}
    for number, name in enumerate(names):
        shutil.copy(EXAMPLES[number % 5], tmp_path / name)
        hashes[as_text(name)] = hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
    output = tmp_path / "captions.jsonl"
    for _ in range(2):
        assert sira("caption", tmp_path, *FAST, "-o", output, "--sidecar")[0] == 0
        records = read(output)
        assert len(records) == len(names) == len(list(tmp_path.glob("*.txt")))
        assert {record["file_name"]: record["image_sha256"] for record in records} == hashes


def test_a_thin_picture_is_its_own_error(sira, tmp_path):
    """The bundled model's processor resizes by the shorter edge, to 96 pixels."""
    Image.new("RGB", (1, 5000)).save(tmp_path / "b.png")
    output = tmp_path / "out.jsonl"
    code, _, err = sira("caption", "-b", 2, EXAMPLES[0], tmp_path / "b.png", *FAST, "-o", output)
    thin = "b.png: the image processor refused it: its 1 x 5,000 pixels would become 96 x 480,000, and"
    assert code == 3, err
    assert thin in err, err
    assert [record["status"] for record in read(output)] == ["ok", "error"]


@pytest.mark.parametrize("protected", ["000.txt", "captions.jsonl", "captions.run.json", "a link"])
def test_a_write_protected_file_is_refused_before_the_model_is_loaded(sira, folder, monkeypatch, protected):
    shown, real = (folder / name for name in (("000.txt", "002.txt") if protected == "a link" else [protected] * 2))
    real.write_text("")
    real.chmod(0o444)
    if shown != real:
        shown.symlink_to(real.name)
    monkeypatch.setattr("sira_cli.run.lvlm.load", None)
    code, _, err = sira("caption", folder, *FAST, "--sidecar", "--overwrite", "-o", folder / "captions.jsonl")
    assert code == 2
    assert err.count("\n") == 1
    assert real.read_text() == ""
    assert f"{shown}: is write-protected: allow writing (chmod u+w)" in err


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may be another user for a while")
@pytest.mark.parametrize(
    ("files", "way"),
    [
        (lambda picture: Sidecars([as_picture(picture)]), "write the text files elsewhere with `output_dir=`"),
        (lambda picture: Ledger(picture.with_suffix(".jsonl")), "give another `output=`"),
    ],
)
def test_a_read_only_folder_is_refused_at_once(files, way):
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        picture = Path(shutil.copy(EXAMPLES[0], place))
        os.seteuid(65534)
        try:
            with pytest.raises(SettingsError, match=f"^{place}: is read-only: {way}$"):
                files(picture)
        finally:
            os.seteuid(0)


def test_a_text_file_with_too_long_a_name_is_refused_before_the_run(tmp_path):
    picture = located("http://example.org/", f"{'x' * 251}.png")
    Sidecars([picture], output_dir=tmp_path, extension=".ttt")
    with pytest.raises(SettingsError, match="the name of its text file would be too long"):
        Sidecars([picture], output_dir=tmp_path, extension=".tttt")


# --- interrupted or killed, runs go on to the records of one run

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
    assert run.returncode == 130
    assert b"Traceback" not in err
    assert b"interrupted; finished work is kept: run the same command again to resume" in err
    assert report_of(folder)["state"] == "interrupted"
    assert 3 <= len(read(folder / "captions.jsonl")) < 25
    assert finished(folder) == finished(make_folder(tmp_path / "at-once", 24))


ENDLESS = """
import sys, threading, time
from sira_cli.cli import main
from sira_cli.pictures import picture
usual = picture.decode_picture

def decode(name, data):
    if threading.current_thread() is threading.main_thread():  # it looks whether the picture is a drawn one
        return usual(name, data)
    print("decoding", file=sys.stderr, flush=True)
    time.sleep(1000)

picture.decode_picture = decode
main()
"""


def test_an_interrupt_does_not_wait_for_a_decoder():
    """Python would wait for its thread, and nothing tells a decoder to stop."""
    command = [sys.executable, "-c", ENDLESS, "caption", EXAMPLES[0], "-p", "demo"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        while b"decoding" not in (line := run.stderr.readline()):
            assert line, "the command ended"
        run.send_signal(signal.SIGINT)
        out, _ = run.communicate(timeout=120)
    assert (run.returncode, out) == (interrupts.EXIT_CODE, b"")


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


@pytest.fixture
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
def test_a_killed_worker_changes_no_record(alone, tmp_path, home):
    make_folder(tmp_path / "pictures", 24)
    records, two = tmp_path / "captions.jsonl", ("pictures", "-o", "captions.jsonl", "--engine", "ray:2", "-b", 2)
    with start(tmp_path, home, *two) as run:
        wait_for_records(tmp_path, 1)
        run.terminate()
        _, err = run.communicate(timeout=120)
    assert run.returncode == 130, err
    assert b"run the same command again to resume" in err, err
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
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray's, at its import
def test_a_cluster_without_gpus_is_refused(sira, alone, tmp_path):
    command = ("caption", EXAMPLES[0], "--engine", "ray", "-o", tmp_path / "x.jsonl", "--device", "cuda", "-p", "demo")
    code, _, err = sira(*command)
    assert code == 2, err
    assert "1 Ray workers: the cluster has 0 GPUs" in err, err
