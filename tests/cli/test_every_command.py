"""Every command: help whose examples work, paths that no file can have, completion in the shell."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from sira_cli import load
from sira_cli.cli import app
from sira_cli.cli.help import MAY_BE_PATHS
from sira_cli.cli.options import setting as set_option
from sira_cli.errors import SettingsError
from sira_cli.methods import METHODS
from sira_cli.models import presets

MOST_OPTIONS = 327  # in all --help together, those of groups of commands included
ROOT = typer.main.get_command(app)


def commands(group, path=()):
    """Every command with its path, subcommands included."""
    for name, command in group.commands.items():
        yield from commands(command, (*path, name)) if hasattr(command, "commands") else [((*path, name), command)]


ALL = dict(commands(ROOT))


@pytest.fixture
def completed(sira, monkeypatch):
    """What a shell is told about a line that is being typed."""

    def ask(*typed: str) -> list[str]:
        with monkeypatch.context() as patch:
            patch.setenv("_SIRA_COMPLETE", "complete_bash")
            patch.setenv("COMP_WORDS", " ".join(["sira", *typed]))
            patch.setenv("COMP_CWORD", str(len(typed)))
            return sira()[1].split()

    return ask


@pytest.mark.parametrize("path", ALL, ids="-".join)
def test_every_command_s_help_ends_with_examples_that_can_be_typed(sira, path):
    code, out, _ = sira(*path, "--help")
    body, examples = out.split("\nExamples:\n")
    assert (code, re.search(r"<(int|float|str|path|list|int range|float range)\b", body)) == (0, None)
    lines = [line.strip() for line in examples.strip().splitlines()]
    assert lines == [line.strip() for line in ALL[path].epilog.strip().splitlines()] != []
    for line in lines:
        assert line.startswith("sira " + " ".join(path))
        words = shlex.split(re.split(" > | && ", line)[0])[1 + len(path) :]
        with ALL[path].make_context(path[-1], words):  # raises what is no option or has a wrong value
            pass


def test_commands_and_options_stand_in_groups(sira):
    _, out, _ = sira("caption", "--help")
    titles = re.findall(r"^(\w[\w ]*):$", out, flags=re.MULTILINE)
    groups = ["Text", "Model", "Decoding", "Second look", "Pictures", "Speed", "Output"]
    assert titles == ["Arguments", *groups, "Examples"]
    assert max(len(out.splitlines()), *map(len, out.splitlines())) <= 80
    _, out, _ = sira("--help")
    titles = re.findall(r"^(\w[\w ]*):$", out, flags=re.MULTILINE)
    assert titles == ["Options", "Caption and check", "Look and serve", "Research"]
    assert {line.split()[0] for line in out.splitlines() if re.match(r"  [a-z]+  ", line)} == {path[0] for path in ALL}


def test_options_are_few():
    """A command that needs another one takes it by --set, or is asked whether an old one pays."""
    every = [each for command in [ROOT, *ALL.values()] for each in command.params]
    assert sum(each.param_type_name == "option" and not each.hidden for each in every) <= MOST_OPTIONS


def test_set_takes_what_has_no_option_of_its_own(sira, completed):
    """Every key and setting is completed and shown, and a former option is answered with its new spelling."""
    lines = dict(line.split("=", 1) for line in sira("presets", "show", "demo", "--all")[1].splitlines())
    assert list(lines) == set_option.keys()
    assert (lines["sira.k"], lines["generation.think"], lines["vcd.noise_step"]) == ("7", "false", "500")
    for name in ("caption", "bench", "serve"):
        code, _, err = sira(name, "--no-repeat-ngram-size", "3")
        wanted = "no such option: --no-repeat-ngram-size; use --set generation.no_repeat_ngram_size=VALUE\n"
        assert (code, wanted in err) == (2, True)
    assert completed("caption", "--set", "vcd.n") == ["vcd.noise_step="]


def test_the_shell_completes_commands_options_presets_and_methods(completed):
    assert (completed("cap"), completed("caption", "--retry")) == (["caption"], ["--retry-errors"])
    assert completed("caption", "--method", "greedy") == [name for name in METHODS if name.startswith("greedy")]
    assert set(completed("caption", "-p", "llava")) == {name for name in presets.available() if name[:5] == "llava"}


# --- paths: whatever no file can be called is a usage error of that option

ODD = {
    "~no-such-user/x": "there is no user no-such-user: write ./~no-such-user/x for a folder ~no-such-user",
    "x" * 300: "is too long for a file's name (300 bytes)",
}


def takes_path(parameter: Any) -> bool:
    kinds = str(parameter.type_descriptor.annotation)
    return "Path" in kinds or ("str" in kinds and parameter.name in MAY_BE_PATHS)


CASES = [
    pytest.param(path, parameter, id=f"{'-'.join(path)} {parameter.opts[-1]}")
    for path, command in ALL.items()
    for parameter in command.params
    if hasattr(parameter, "type_descriptor") and takes_path(parameter)
]
assert len(CASES) > 60


@pytest.mark.parametrize(("path", "parameter"), CASES)
def test_a_path_that_no_file_can_have(sira, tmp_path, monkeypatch, path, parameter):
    """In the shortest command line with this value; what else is needed is `x`."""
    monkeypatch.chdir(tmp_path)
    odd, message = list(ODD.items())[ALL[path].params.index(parameter) % len(ODD)]
    words = list[str]()
    for each in ALL[path].params:
        is_argument = each.param_type_name == parameter.param_type_name == "argument"
        if each is parameter or each.required or is_argument:
            words += [each.opts[-1]] if each.param_type_name == "option" else []
            words += [odd if each is parameter else "x"]
    code, out, err = sira(*path, *words)
    assert (code, out, message in " ".join(err.split())) == (2, "", True), err
    assert parameter.opts[-1].lstrip("-").lower() in err.lower() or str(parameter.metavar) in err
    assert list(tmp_path.iterdir()) == []


def test_a_name_may_be_as_long_as_the_system_allows(sira, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    longest = "x" * 250 + ".yaml"
    Path(longest).write_text("model: org/name\n", encoding="utf-8")
    assert sira("presets", "check", longest)[0] == 0
    for odd in ("x" * 300 + "/y", "d/" * 3000, "x" * 245):  # files made from the last one are longer
        assert "is too long for a file's name" in sira("caption", "x", "-o", odd)[2]


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
