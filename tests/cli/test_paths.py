"""Paths on the command line: whatever no file can be called is a usage error of that option, for every command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from sira_cli import load
from sira_cli.cli import app
from sira_cli.cli.help import MAY_BE_PATHS
from sira_cli.errors import SettingsError

ODD = {
    "~no-such-user/x": "there is no user no-such-user: write ./~no-such-user/x for a folder ~no-such-user",
    "x" * 300: "is too long for a file's name (300 bytes)",
}


def commands() -> Iterator[tuple[str, Any]]:
    def below(group: Any, name: str) -> Iterator[tuple[str, Any]]:
        for word, command in group.commands.items():
            yield from below(command, f"{name}{word} ") if hasattr(command, "commands") else [(name + word, command)]

    return below(typer.main.get_command(app), "")


def takes_path(parameter: Any) -> bool:
    kinds = str(parameter.type_descriptor.annotation)
    return "Path" in kinds or ("str" in kinds and parameter.name in MAY_BE_PATHS)


def line(command: Any, parameter: Any, value: str) -> list[str]:
    """The shortest command line with this value; what else is needed is `x`."""
    words = []
    for each in command.params:
        is_argument = each.param_type_name == parameter.param_type_name == "argument"
        if each is parameter or each.required or is_argument:
            text = value if each is parameter else "x"
            words += [text] if each.param_type_name == "argument" else [each.opts[-1], text]
    return words


CASES = [
    pytest.param(name, command, parameter, id=f"{name} {parameter.opts[-1]}")
    for name, command in commands()
    for parameter in command.params
    if hasattr(parameter, "type_descriptor") and takes_path(parameter)
]
assert len(CASES) > 60


@pytest.mark.parametrize(("name", "command", "parameter"), CASES)
def test_a_path_that_no_file_can_have(sira, tmp_path, monkeypatch, name, command, parameter):
    monkeypatch.chdir(tmp_path)
    odd, message = list(ODD.items())[command.params.index(parameter) % len(ODD)]
    code, out, err = sira(*name.split(), *line(command, parameter, odd))
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())
    assert parameter.opts[-1].lstrip("-").lower() in err.lower() or str(parameter.metavar) in err
    assert list(tmp_path.iterdir()) == []


def test_a_name_may_be_as_long_as_the_system_allows(sira, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    longest = "x" * 250 + ".yaml"
    Path(longest).write_text("model: org/name\n", encoding="utf-8")
    assert sira("presets", "check", longest)[0] == 0
    for odd in ("x" * 300 + "/y", "d/" * 3000, "x" * 245):  # files made from the last one are longer
        assert "is too long for a file's name" in sira("caption", "x", "-o", odd)[2]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("args", [["presets", "list"], ["presets", "show", "demo"], ["--version"], ["eval", "-h"]])
def test_a_full_disk_at_stdout_is_said(args):
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "sira_cli", *args], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (1, "sira: stdout cannot be written: No space left on device\n")


def test_a_preset_of_the_environment_and_models_of_presets_and_programs_name_users_too(sira, tmp_path, monkeypatch):
    said = "~nouser/x: there is no user nouser: write ./~nouser/x for a folder ~nouser"
    (tmp_path / "mine.yaml").write_text("model: ~nouser/x\n")
    with pytest.raises(SettingsError) as raised:
        load("~nouser/x")
    assert str(raised.value) == said
    monkeypatch.setenv("SIRA_PRESET", "~nouser/x")
    for command in (("presets", "check", tmp_path / "mine.yaml"), ("caption", tmp_path / "mine.yaml")):
        code, out, err = sira(*command)
        assert (code, out, err.splitlines()[-1]) == (2, "", f"sira: {said}")
