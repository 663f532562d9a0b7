"""The catalogue of benchmarks: `sira eval --list`, and a command for each."""

from __future__ import annotations

import pytest
import typer

from sira_cli.cli.eval import app
from sira_cli.eval.catalog import CARDS

OWN = [name for name, card in CARDS.items() if not card.command]
COMMANDS = typer.main.get_command(app).commands


def test_every_benchmark_is_listed_with_what_must_be_known_before_a_download(sira):
    code, out, _ = sira("eval", "--list")
    assert code == 0
    for card in CARDS.values():
        for text in (card.name, card.title, card.size, card.licence, card.url, card.figures):
            assert text in out


def test_every_benchmark_has_a_command():
    assert list(COMMANDS) == [*OWN, "all"]
    assert {card.command.split()[2] for card in CARDS.values() if card.command} <= {*OWN}


@pytest.mark.parametrize("name", OWN)
def test_its_help_is_made_of_the_card(sira, name):
    assert COMMANDS[name].short_help == CARDS[name].title + "."
    for word in CARDS[name].source.split():
        assert word in sira("eval", name, "--help")[1]


@pytest.mark.parametrize("name", [name for name, card in CARDS.items() if card.read is not None])
def test_an_empty_folder_says_where_to_get_the_files(sira, tmp_path, name):
    code, _, err = sira("eval", name, "--data", tmp_path, "--images", tmp_path)
    assert (code, CARDS[name].url in err, "--data" in err) == (2, True, True)
