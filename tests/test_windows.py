"""Windows, as far as it can be played here: what it lacks is taken away in a process of its own, or its console set.

Not seen so: its file systems and locks. `.github/workflows/ci.yml` runs the tests there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path, PureWindowsPath
from types import SimpleNamespace

import pytest

from sira_cli import files
from sira_cli.cli.options.choosing import with_revision
from sira_cli.errors import SettingsError
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.sources import FileSource, StoreSource, located
from sira_cli.run.output import Sidecars

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


def run(*args: object, folder: Path, before: str = "", **environment: str) -> subprocess.CompletedProcess[bytes]:
    script = f"{before}\nimport sys; sys.argv = {['sira', *map(str, args)]!r}\nfrom sira_cli.cli import main; main()"
    variables = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "SIRA_HOME": str(folder / "home"), **environment}
    return subprocess.run([sys.executable, "-c", script], capture_output=True, cwd=folder, env=variables, check=False)


def test_a_command_needs_nothing_that_windows_lacks(tmp_path):
    few = ("-p", "demo", "--max-new-tokens", "3", "-b", "auto")
    done = run("caption", EXAMPLE, *few, "-o", "captions.jsonl", folder=tmp_path, before=WITHOUT)
    assert done.returncode == 0, done.stderr.decode()
    missed = run("--version", folder=tmp_path, before=f"{WITHOUT}\nimport resource")
    assert b"ModuleNotFoundError" in missed.stderr  # the names are taken away


def test_a_console_of_one_code_page(tmp_path):
    """A name that cp1252 has no letters for is escaped; nothing ends in an error."""
    picture, missing = tmp_path / "狗 ł.png", tmp_path / "猫.png"
    picture.write_bytes(EXAMPLE.read_bytes())
    args = ("caption", picture, missing, "-p", "demo", "--max-new-tokens", "3")
    done = run(*args, folder=tmp_path, PYTHONIOENCODING="cp1252", PYTHONUTF8="0")
    assert done.returncode == 3
    assert rb"\u72d7 \u0142.png: " in done.stdout
    assert rb"\u732b.png: no such file" in done.stderr


@pytest.mark.parametrize(
    ("path", "below"),
    [
        *((r"C:\Bilder\a@b.jpg", "Bilder/a@b.txt"), ("C://a.jpg", "a.txt"), (r"\\server\share\d\a.jpg", "d/a.txt")),
        *((r"..\d\a.jpg", "d/a.txt"), ("d/a:b.jpg", "d/a:b.txt")),
    ],
)
def test_a_drive_is_no_scheme_and_no_folder_of_texts(path, below, monkeypatch):
    assert type(located(path).sources[0]) is FileSource
    assert type(located("file:///C:/a.jpg").sources[0]) is StoreSource
    assert with_revision(path.replace("@", "-")) == (path.replace("@", "-"), None)
    assert with_revision(f"{path}@v1") == (path, "v1")
    monkeypatch.setattr("sira_cli.pictures.picture.Path", PureWindowsPath)
    assert located(path).mirrored(".txt").as_posix() == below


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        *(("d/AUX.b.png", "AUX.b.txt"), ("d/a:b.jpg", "a:b.txt"), ("d./a.jpg", "d."), ("com1/a.jpg", "com1")),
        *((name, None) for name in ("console.jpg", "d/.a.jpg", "a.con.jpg", "käfer 狗.jpg")),
    ],
)
def test_texts_of_a_store_get_no_name_that_windows_reserves(name, refused, tmp_path, monkeypatch):
    """The system's name is all that is played: what `os` says besides is true."""
    pictures = [Picture((StoreSource(f"s3://bucket/{name}", name),))]
    Sidecars(pictures, extension=".txt", output_dir=tmp_path)  # elsewhere they are ordinary names
    monkeypatch.setattr(files, "os", SimpleNamespace(**{**vars(os), "name": "nt"}))
    message = re.escape(f"would be named {refused}, which Windows does not allow")
    with nullcontext() if refused is None else pytest.raises(SettingsError, match=message):
        Sidecars(pictures, extension=".txt", output_dir=tmp_path)
