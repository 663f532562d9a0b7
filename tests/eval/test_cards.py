"""The benchmarks by name: `sira eval`, options, and what is refused."""

from __future__ import annotations

import pytest

from sira_cli.eval.cards import CARDS, find_cards, options_of_each


def test_every_benchmark_is_listed_with_what_must_be_known_before_a_download(sira):
    code, out, _ = sira("eval")
    assert code == 0
    for card in CARDS.values():
        for text in (card.name, card.title, card.size, card.licence, card.url, card.figures):
            assert text in out
    assert out.endswith("try it:    sira demo --export scenes && sira eval pope,chair,amber scenes -p demo\n")


@pytest.mark.parametrize("name", CARDS)
def test_a_named_one_is_listed_with_its_options(sira, name):
    code, out, _ = sira("eval", name)
    assert (code, out.splitlines()[0]) == (0, f"{name}: {CARDS[name].title} ({CARDS[name].source})")
    for option in CARDS[name].options:
        assert f"--option {option.name}={'|'.join(option.choices) or 'TEXT'}\n" in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["pop", "x"], "pop: no benchmark has this name: expected pope, chair, amber"),
        (["pope,pope", "x"], "pope: is named twice"),
        (["pope", "x", "--option", "rul=vcd"], "--option rul=vcd: no such option of pope: did you mean rule?"),
        (["pope", "x", "--option", "rule=vdc"], "--option rule=vdc: expected official, vcd, "),
        (["pope", "x", "--option", "rule"], "--option rule: expected NAME=VALUE"),
        (["pope", "x", "--option", "rule=vcd", "--option", "pope.rule=opera"], "rule is given twice"),
        (["pope", "x", "--option", "chair.rule=lemma"], "chair is not among the benchmarks: pope"),
        (["pope", "--images", "x"], "pope: PATH is missing"),
        (["amber", "a", "b", "--images", "x"], "amber: expected one PATH, the folder with annotations.json"),
        (["pope,chair", "x", "--answers", "y"], "--answers is for one benchmark"),
        (["pope", "missing"], "missing: is not a folder"),
    ],
)
def test_refusals(sira, args, message):
    code, out, err = sira("eval", *args, "-p", "demo")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_an_option_goes_to_those_that_have_it():
    cards = find_cards(["pope", "chair", "amber"])
    found = options_of_each(cards, ["suffix=", "pope.rule=vcd", "language=nltk"])
    assert found == {
        "pope": {"suffix": "", "rule": "vcd"},
        "chair": {"language": "nltk"},
        "amber": {"suffix": "", "language": "nltk"},
    }


def test_an_empty_folder_says_where_to_get_the_files(sira, tmp_path):
    code, _, err = sira("eval", "amber", tmp_path, "--images", tmp_path)
    assert (code, f"{tmp_path}: has no annotations.json: get AMBER's files from https://" in err) == (2, True)
