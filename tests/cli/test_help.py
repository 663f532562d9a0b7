"""Help: options in groups, plain names for values, examples that work; completion in the shell."""

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
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


ALL = dict(commands(ROOT))


@pytest.fixture
def completed(sira, monkeypatch):
    """What a shell is told about a line that is being typed."""

    def ask(*typed: str) -> list[str]:
        monkeypatch.setenv("_SIRA_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(["sira", *typed]))
        monkeypatch.setenv("COMP_CWORD", str(len(typed)))
        _, out, _ = sira()
        monkeypatch.delenv("_SIRA_COMPLETE")
        return out.split()

    return ask


@pytest.mark.parametrize("path", ALL, ids="-".join)
def test_every_command_s_help_names_values_plainly_and_ends_with_examples(sira, path):
    code, out, _ = sira(*path, "--help")
    assert code == 0
    body, examples = out.split("\nExamples:\n")
    assert not re.search(r"<(int|float|str|path|list|int range|float range)\b", body)
    lines = [line.strip() for line in examples.strip().splitlines()]
    assert 1 <= len(lines) <= 3
    for line in lines:
        assert line.startswith("sira " + " ".join(path))


def test_arguments_are_written_in_one_way_and_defaults_are_shown(sira):
    commands = ("compare", "report", "ask", "presets show")
    usage = {name: sira("help", *name.split())[1].splitlines()[0] for name in commands}
    assert usage["compare"] == "Usage: sira compare [OPTIONS] A.jsonl B.jsonl"
    assert usage["report"] == "Usage: sira report [OPTIONS] FILE..."
    assert usage["ask"] == "Usage: sira ask [OPTIONS] [PATH]... [QUESTION]"
    assert usage["presets show"] == "Usage: sira presets show [OPTIONS] NAME"
    shown = " ".join(sira("help", "caption")[1].split())
    assert "Decoding: What is not given is the preset's. --method" in shown
    for default in ("sira", "auto", "local", ".txt"):
        assert f"[default: {default}]" in shown


@pytest.mark.parametrize("path", ALL, ids="-".join)
def test_examples_are_commands_that_can_be_typed(path):
    for line in ALL[path].epilog.strip().splitlines():
        words = shlex.split(re.split(" > | && ", line)[0])[1 + len(path) :]
        with ALL[path].make_context(path[-1], words):  # raises what is no option or has a wrong value
            pass


def test_options_and_commands_stand_in_groups(sira):
    _, out, _ = sira("caption", "--help")
    titles = re.findall(r"^(\w[\w ]*):$", out, flags=re.MULTILINE)
    groups = ["Text", "Model", "Decoding", "Second look", "Pictures", "Speed", "Output"]
    assert titles == ["Arguments", *groups, "Examples"]
    decoding = out.split("\nDecoding:\n")[1].split("\nSecond look:\n")[0]
    assert ("--alpha X" in decoding, "--output" in decoding) == (True, False)
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
    _, shown, _ = sira("presets", "show", "demo", "--all")
    lines = dict(line.split("=", 1) for line in shown.splitlines())
    assert list(lines) == set_option.keys()
    assert (lines["sira.k"], lines["generation.think"], lines["vcd.noise_step"]) == ("7", "false", "500")
    for name in ("caption", "bench", "serve"):
        code, _, err = sira(name, "--no-repeat-ngram-size", "3")
        assert code == 2
        assert "no such option: --no-repeat-ngram-size; use --set generation.no_repeat_ngram_size=VALUE\n" in err
    assert completed("caption", "--set", "vcd.n") == ["vcd.noise_step="]


def test_the_shell_completes_commands_options_presets_and_methods(completed):
    assert completed("cap") == ["caption"]
    assert completed("caption", "--retry") == ["--retry-errors"]
    assert completed("caption", "--method", "greedy") == [name for name in METHODS if name.startswith("greedy")]
    assert set(completed("caption", "-p", "llava")) == {name for name in presets.available() if name[:5] == "llava"}
    assert completed("caption", "--quan") == ["--quantization"]
