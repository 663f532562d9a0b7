"""Windows, as far as it can be played here: what it lacks is taken away in a process of its own, or its console set.

Not seen so: its file systems (reserved names, paths of more than 260 characters) and locks. `.github/workflows/ci.yml`
runs the tests there.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sira_cli import files
from sira_cli.pictures.lists import read_list

PACKAGE = Path(files.__file__).parent
EXAMPLE = PACKAGE.parent / "examples" / "scene-2900010.png"
# Modules that Windows does not have, taken from `sira` only: libraries ask `sys.platform` first. One signal likewise.
WITHOUT = """
import builtins, signal
del signal.SIGHUP
real = builtins.__import__
def without(name, globals=None, *args, **kwargs):
    missing = ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty")
    if name in missing and str((globals or {}).get("__name__")).split(".")[0] in ("sira_cli", "__main__"):
        raise ModuleNotFoundError(f"No module named {name!r}")
    return real(name, globals, *args, **kwargs)
builtins.__import__ = without
"""
COMMANDS = {
    "caption": ["caption", EXAMPLE, "-p", "demo", "--max-new-tokens", "3", "-o", "captions.jsonl", "-b", "auto"],
    "schema": ["caption", EXAMPLE, "-p", "demo", "--schema", "tags:2"],
    "demo": ["demo", "--limit", "1"],
}


def run(*args: object, folder: Path, before: str = "", **environment: str) -> subprocess.CompletedProcess[bytes]:
    script = f"{before}\nimport sys; sys.argv = {['sira', *map(str, args)]!r}\nfrom sira_cli.cli import main; main()"
    variables = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "SIRA_HOME": str(folder / "home"), **environment}
    return subprocess.run([sys.executable, "-c", script], capture_output=True, cwd=folder, env=variables, check=False)


@pytest.mark.parametrize(
    "name", ["caption", *(pytest.param(each, marks=pytest.mark.slow) for each in ("schema", "demo"))]
)
def test_commands_need_nothing_that_windows_lacks(name, tmp_path):
    done = run(*COMMANDS[name], folder=tmp_path, before=WITHOUT)
    assert done.returncode == 0, done.stderr.decode()


def test_the_names_that_are_taken_away_are_missed(tmp_path):
    """So that the test above can fail."""
    done = run("--version", folder=tmp_path, before=WITHOUT + "\nimport resource")
    assert b"ModuleNotFoundError" in done.stderr


def test_a_console_of_one_code_page(tmp_path):
    """A name that cp1252 has no letters for is escaped; nothing ends in an error."""
    picture = tmp_path / "狗 ł.png"
    picture.write_bytes(EXAMPLE.read_bytes())
    console = {"PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0"}
    missing = tmp_path / "猫.png"
    args = ("caption", picture, missing, "-p", "demo", "--max-new-tokens", "3")
    done = run(*args, folder=tmp_path, **console)
    assert done.returncode == 3  # the one that does not exist
    assert rb"\u72d7 \u0142.png: " in done.stdout
    assert rb"\u732b.png: no such file" in done.stderr


@pytest.mark.parametrize("args", [["--help"], ["presets", "list"], ["eval", "--list"]], ids="-".join)
def test_tables_on_such_a_console(args, tmp_path):
    done = run(*args, folder=tmp_path, PYTHONIOENCODING="cp1252", PYTHONUTF8="0")
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)


def test_lists_with_carriage_returns():
    text = "C:\\Bilder\\käfer.jpg\r\n\\\\server\\share\\b.png\r\n"
    expected = ["C:\\Bilder\\käfer.jpg", "\\\\server\\share\\b.png"]
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):  # as Notepad and PowerShell write them
        assert read_list(io.BytesIO(text.encode(encoding))) == expected


def test_an_open_file_is_not_replaced(tmp_path, monkeypatch):
    """Windows refuses it. Its name is all that is played: what `os` says besides is true."""
    monkeypatch.setattr(files, "os", SimpleNamespace(**{**vars(os), "name": "nt"}))
    closed, replace = [], Path.replace

    def replacing(self: Path, target: Path) -> Path:
        closed.append(file.closed)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", replacing)
    target = tmp_path / "a.txt"
    target.write_text("old")
    with files.replacing(target) as file:
        file.write(b"new")
    assert (target.read_text(), closed) == ("new", [True])


def test_processes_are_started_not_forked():
    """Windows has no fork: a child is a new Python, with all that it needs in its arguments."""
    forking = r"os\.fork|multiprocessing|ProcessPool|preexec_fn|start_new_session|killpg|process_group"
    found = [path.name for path in PACKAGE.rglob("*.py") if re.search(forking, path.read_text(encoding="utf-8"))]
    assert found == []
