"""Every command: help whose examples work, options in groups, completion in the shell."""

from __future__ import annotations

import re
import shlex

import pytest
import typer

from sira_cli.cli import app
from sira_cli.cli.options import setting as set_option
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
