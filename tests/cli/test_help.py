"""Help: options in groups, plain names for values, examples that work; completion in the shell."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import pytest
import typer

from sira_cli.cli import app
from sira_cli.methods import METHODS
from sira_cli.models import presets

ROOT = typer.main.get_command(app)


def commands(group, path=()):
    """Every command with its path, subcommands included."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


ALL = dict(commands(ROOT))


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


@pytest.mark.parametrize("path", ALL, ids="-".join)
def test_examples_are_commands_that_can_be_typed(path):
    for line in ALL[path].epilog.strip().splitlines():
        words = shlex.split(line.partition(" > ")[0])[1 + len(path) :]
        with ALL[path].make_context(path[-1], words):  # raises what is no option or has a wrong value
            pass


def test_options_of_caption_stand_in_groups(sira):
    _, out, _ = sira("caption", "--help")
    titles = re.findall(r"^(\w[\w ]*):$", out, flags=re.MULTILINE)
    assert titles == [
        "Arguments",
        "Options",
        "Model",
        "Decoding",
        "Text",
        "JSON",
        "Second look",
        "Pictures",
        "Speed",
        "Output",
        "Examples",
    ]
    decoding = out.split("\nDecoding:\n")[1].split("\nPictures:\n")[0]
    assert "--alpha X" in decoding
    assert "--output" not in decoding


def test_an_option_that_commands_share_has_a_group_only_where_it_belongs_to_one(sira):
    _, out, _ = sira("bench", "--help")
    assert "\nOutput:\n" not in out


def completed(*typed: str) -> list[str]:
    environment = {**os.environ, "_SIRA_COMPLETE": "complete_bash"}
    environment |= {"COMP_WORDS": " ".join(["sira", *typed]), "COMP_CWORD": str(len(typed))}
    script = "import sys; sys.argv = ['sira']; from sira_cli.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    return done.stdout.split()


def test_the_shell_completes_commands_options_presets_and_methods():
    assert completed("cap") == ["caption"]
    assert completed("caption", "--retry") == ["--retry-errors"]
    assert completed("caption", "--method", "greedy") == [name for name in METHODS if name.startswith("greedy")]
    assert set(completed("caption", "-p", "llava")) == {name for name in presets.available() if name[:5] == "llava"}
    assert completed("caption", "--engine", "r") == ["ray"]
