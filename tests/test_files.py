"""Files that are written whole or not at all, whoever is killed on the way."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sira_cli.errors import SettingsError, SiraError
from sira_cli.files import make_folder, replacing

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


def test_names_modes_and_errors_are_those_of_plain_files(tmp_path):
    longest = tmp_path / ("x" * 255)
    with replacing(longest) as file:
        file.write(b"x")
    (tmp_path / "plain").write_text("x")
    assert len({stat.S_IMODE(path.stat().st_mode) for path in (longest, tmp_path / "plain")}) == 1
    (tmp_path / "folder").mkdir()
    for place in (tmp_path / "nowhere" / "file", tmp_path / ("x" * 256), tmp_path / "folder"):
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
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert (link.is_symlink(), (tmp_path / "folder/target.txt").read_text(), secret.read_text()) == (True, "new", "new")
    assert names(tmp_path) == ["folder", "link.txt", "secret"]
    secret.chmod(0o400)
    with pytest.raises(SettingsError, match="secret: is write-protected"), replacing(secret):
        pass
    assert secret.read_text() == "new"
