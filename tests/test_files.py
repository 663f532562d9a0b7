"""Files are written whole or not at all; those of other content are only overwritten if --overwrite says so."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import typer

from sira_cli.cli import app
from sira_cli.demo.export import export
from sira_cli.demo.questions import held_out
from sira_cli.errors import SettingsError, SiraError
from sira_cli.files import make_folder, replacing
from tests.support.eval.writing import lines, save
from tests.support.traces import make_trace, write_traces

KILLED = """
import os, signal, sys
from pathlib import Path
from sira_cli.files import replacing
with replacing(Path(sys.argv[1])) as file:
    file.write(b"half of it")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_a_killed_process_left_behind_is_gone_after_the_next_write(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("old")
    for _ in range(3):
        subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
        assert path.read_text() == "old"
        assert len(names(tmp_path)) == 2
    with replacing(path) as file:
        file.write(b"new")
    assert (path.read_text(), names(tmp_path)) == ("new", ["table.csv"])


def test_two_writers_of_one_file_do_not_disturb_each_other(tmp_path):
    path = tmp_path / "table.csv"
    with replacing(path) as first:
        first.write(b"first, " * 10_000)
        with replacing(path) as second:
            second.write(b"second")
        with pytest.raises(ZeroDivisionError), replacing(path) as third:
            third.write(b"third" * (1 // 0))
        assert path.read_text() == "second"
    assert (path.read_text(), names(tmp_path)) == ("first, " * 10_000, ["table.csv"])


def test_a_write_that_fails_removes_no_file_of_the_next_writer(tmp_path, monkeypatch):
    path, unlink = tmp_path / "table.csv", Path.unlink

    def unlinking(self: Path, **options) -> None:
        with monkeypatch.context() as plain:
            plain.setattr(Path, "unlink", unlink)
            with replacing(path) as file:  # in between another one begins
                file.write(b"whole")
                self.unlink(**options)

    monkeypatch.setattr(Path, "unlink", unlinking)
    with pytest.raises(ZeroDivisionError), replacing(path) as file:
        file.write(b"new" * (1 // 0))
    assert (path.read_text(), names(tmp_path)) == ("whole", ["table.csv"])


def test_folders_of_a_new_file_are_made(tmp_path):
    with replacing(tmp_path / "a" / "b" / "file") as file:
        file.write(b"x")
    assert (tmp_path / "a" / "b" / "file").read_bytes() == b"x"
    with pytest.raises(SettingsError, match="file: exists, but a folder is needed here"):
        replacing(tmp_path / "a" / "b" / "file" / "other").__enter__()


@pytest.mark.parametrize("kind", ["link", "dangling", "hard link", "pipe", "folder", "stranger"])
def test_a_temporary_name_that_somebody_has_taken_is_left_alone(tmp_path, kind):
    """In a folder that others may write to, the name can be foretold: a link there would lead to any file."""
    path, victim = tmp_path / "table.csv", tmp_path / "victim"
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    (taken,) = tmp_path.iterdir()
    if kind != "stranger":
        taken.unlink()
    elif os.geteuid() != 0:
        pytest.skip("needs a file of another user")
    if kind != "dangling":
        victim.write_text("mine")
    make = {
        "link": lambda: taken.symlink_to(victim),
        "dangling": lambda: taken.symlink_to(victim),
        "hard link": lambda: taken.hardlink_to(victim),
        "pipe": lambda: os.mkfifo(taken),
        "folder": taken.mkdir,
        "stranger": lambda: os.chown(taken, 12345, 12345),
    }
    make[kind]()
    before = taken.lstat()
    with replacing(path) as file:
        file.write(b"new")
    assert path.read_text() == "new"
    assert taken.lstat() == before
    assert victim.exists() == (kind != "dangling")
    assert kind == "dangling" or victim.read_text() == "mine"
    assert len(names(tmp_path)) == 2 + (kind != "dangling")


def test_names_modes_and_errors_are_those_of_plain_files(tmp_path):
    longest = tmp_path / ("x" * 255)
    with replacing(longest) as file:
        file.write(b"x")
    (tmp_path / "plain").write_text("x")
    assert len({stat.S_IMODE(path.stat().st_mode) for path in (longest, tmp_path / "plain")}) == 1
    (tmp_path / "folder").mkdir()
    for place in (tmp_path / ("x" * 256), tmp_path / "folder"):
        with pytest.raises(SiraError, match="cannot be written"), replacing(place) as file:
            file.write(b"x")
    assert names(tmp_path) == ["folder", "plain", "x" * 255]
    with pytest.raises(SettingsError, match=f"{os.devnull}: exists, but a folder is needed here: give another path"):
        make_folder(Path(os.devnull))


def test_a_replaced_file_keeps_mode_and_owner_and_a_link_stays(tmp_path):
    secret, link = tmp_path / "secret", tmp_path / "link.txt"
    secret.write_text("old")
    secret.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(secret, 12345, 12345)
    before = secret.stat()
    (tmp_path / "folder").mkdir()
    link.symlink_to("folder/target.txt")
    for path in (secret, link, link):  # the link's target does not exist at first
        with replacing(path) as file:
            file.write(b"new")
    after = secret.stat()
    assert after.st_mode == before.st_mode
    assert after.st_uid == before.st_uid
    assert after.st_gid == before.st_gid
    assert link.is_symlink() is True
    assert (tmp_path / "folder/target.txt").read_text() == "new"
    assert secret.read_text() == "new"
    assert names(tmp_path) == ["folder", "link.txt", "secret"]
    secret.chmod(0o400)
    with pytest.raises(SettingsError, match="secret: is write-protected"), replacing(secret):
        pass
    assert secret.read_text() == "new"


# Commands: not overwritten without --overwrite, and not before the replacement is complete.

EXAMPLE = sorted(Path(__file__).parents[1].glob("examples/*.png"))[0]
TRACE = ("trace", EXAMPLE, "-p", "demo", "--max-new-tokens", 2)
DEMO, SCENES = ("-p", "demo"), ("--scenes", "--limit", 2)
DRIFT, SWEEP = ("drift", EXAMPLE, *DEMO), ("sweep", *DEMO, "--limit", 1, "--k", 7, "--alpha", 1)
POPE = ("pope", "scenes/pope/scenes_pope_adversarial.json", "--images", "scenes/images", "--against", "sira")
VTI = ("--images", EXAMPLE.parent)
BENCH = ("bench", *DEMO, "--method", "sira", "--max-new-tokens", 2, "--runs", 1, "-o", "out.json")
# What writes a file, and the file: the first decode before that, and refuse a file that is in their way beforehand.
BOTH = {
    "trace": ((*TRACE, "-o", "out.jsonl"), "out.jsonl"),
    "full logits": ((*TRACE, "--full-logits", "out.safetensors"), "out.safetensors"),
    "drift": ((*DRIFT, "-o", "out.json"), "out.json"),
    "drift figure": ((*DRIFT, "--plot", "out.png"), "out.png"),
    "bench": (BENCH, "out.json"),
    "sweep figure": ((*SWEEP, "--plot", "out.png"), "out.png"),
}
COMMANDS = BOTH | {
    "report": (("report", "trace.jsonl", "-o", "out.html"), "out.html"),
    "table": (("export", "captions.jsonl", "--csv", "out.csv"), "out.csv"),
    "export": (("demo", "--export", "scenes", "--limit", 1), "scenes/coco/ids.txt"),
}
DECODING = BOTH | {
    "trace to a folder": ((*TRACE, "--output-dir", "."), f"{EXAMPLE.stem}.trace.jsonl"),
    "caption": (("caption", EXAMPLE, *DEMO, "-o", "out.jsonl"), "out.jsonl"),
    "caption text": (("caption", EXAMPLE, *DEMO, "--output-dir", "."), f"{EXAMPLE.stem}.txt"),
    "ask": (("ask", EXAMPLE, "A dog?", *DEMO, "-o", "out.jsonl"), "out.jsonl"),
    "check": (("check", "captions.jsonl", *DEMO, "-o", "out.jsonl"), "out.jsonl"),
    "eval": (("eval", *POPE, *DEMO, "-o", "."), "sira-pope.jsonl"),
    "sweep": ((*SWEEP, "-o", "out.jsonl"), "out.jsonl"),
    "sweep preset": ((*SWEEP, "--write-preset", "out.yaml"), "out.yaml"),
    "support": (("calibrate", "support", *DEMO, *SCENES, "-o", "out.json"), "out.json"),
    "ict": (("calibrate", "ict", *DEMO, *SCENES, "-o", "out.safetensors"), "out.safetensors"),
    "vti": (("calibrate", "vti", "pairs.jsonl", *VTI, *DEMO, "-o", "out.safetensors"), "out.safetensors"),
    "maskcd": (("calibrate", "maskcd", *DEMO, "--scenes", "-o", "out.safetensors"), "out.safetensors"),
}


def test_all_commands_that_overwrite_are_here():
    def commands(group, *names):
        for name, command in getattr(group, "commands", {}).items():
            yield from commands(command, *names, name)
        if any("--overwrite" in parameter.opts for parameter in group.params):
            yield names[: 1 + (names[0] == "calibrate")]

    here = {command[: 1 + (command[0] == "calibrate")] for command, _ in (COMMANDS | DECODING).values()}
    assert here == set(commands(typer.main.get_command(app)))


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes") / "scenes"
    export([held_out(0)], folder)
    return folder


@pytest.mark.parametrize("name", DECODING)
def test_nothing_is_removed_before_its_replacement_is_complete(sira, tmp_path, monkeypatch, scenes, name):
    command, file = DECODING[name]
    monkeypatch.chdir(tmp_path)
    Path("scenes").symlink_to(scenes)
    lines(Path("captions.jsonl"), [{"file_name": str(EXAMPLE), "text": "A dog."}])
    pair = {"image": EXAMPLE.name, "question": "What?", "value": "A dog.", "h_value": "A cat."}
    lines(Path("pairs.jsonl"), [pair] * 3)
    save(Path(file), "mine")
    wrong = ["-m" if part == "-p" else "./nowhere" if part == "demo" else part for part in command]
    if command[0] == "sweep":  # on drawn scenes it takes the bundled model alone
        wrong = [*command, "--k", 99]
    code, _, err = sira(*wrong, "--overwrite")
    kept = Path(file).read_text(encoding="utf-8")
    assert code > 0, err
    assert "nowhere" in err or "99" in err, err
    assert kept == "mine", err
    with monkeypatch.context() as patch:
        patch.setattr("torch.nn.Embedding.forward", Mock(side_effect=KeyboardInterrupt))
        code, _, err = sira(*command, "--overwrite")
    assert code == 130, err
    (kept,) = (path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes() == b"mine")
    assert kept.name == Path(file).name or f"{file}: the run that replaces it is not complete" in err
    if name in ("caption", "trace", "sweep"):
        kept.replace(file)
        assert sira(*command, "--overwrite")[0] == 0
        assert not [path for path in tmp_path.rglob("*") if "kept" in path.name]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_file_of_other_content_stays(sira, tmp_path, monkeypatch, name):
    command, file = COMMANDS[name]
    monkeypatch.chdir(tmp_path)
    path = save(tmp_path / file, "mine")
    write_traces(tmp_path / "trace.jsonl", make_trace())  # for the report
    with monkeypatch.context() as patch:
        patch.setattr("sira_cli.run.lvlm.load", None)  # it is known before
        code, out, err = sira(*command)
    assert code == 2
    assert out == ""
    assert path.read_text() == "mine"
    assert (f"{file}: line 1 is not one of a trace" if name == "trace" else f"{file}: exists") in err
    assert "or --overwrite" in err
    if name in ("report", "export"):
        assert sira(*command, "--overwrite")[0] == 0
        assert path.read_text() != "mine"
        before = path.stat().st_mtime_ns
        assert sira(*command)[0] == 0  # the same content
        assert path.stat().st_mtime_ns == before


def test_a_report_of_another_benchmark_stays(sira, tmp_path, monkeypatch, scenes):
    monkeypatch.chdir(tmp_path)
    Path("scenes").symlink_to(scenes)
    command = ("eval", *POPE, *DEMO, "--max-new-tokens", 1, "-o", "answers")
    assert sira(*command)[0] == 0
    save(Path("answers/report.json"), {"benchmark": "chair"})
    code, out, err = sira("eval", *POPE[:2], "--answers", "answers", "-o", "answers")
    assert code == 2
    assert out == ""
    assert "answers/report.json holds the report of chair: give another folder" in err
