"""AMBER's files of answers and its own, also those that are not what they should be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sira_cli.errors import DataError
from tests.support.eval.amber_data import ANSWERED, SAID, benchmark, write


def edit(path: Path, place: object, **changes: object) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    content[place].update(changes)
    write(path, content)


# Answers from files.


def rows(texts: dict[str, str]) -> list[dict]:
    return [{"id": int(id_), "response": text} for id_, text in texts.items()]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([{"id": 99, "response": ""}], r"row 1: id 99 is not AMBER's: expected 1 to 11"),
        ([*rows(SAID), {"id": 2, "response": ""}], r"row 4: id 2 is answered already: .*row 2: keep one"),
        (rows(SAID)[::2], r"answers.json: id 2 is not answered: 1 of the 3 answers of generative are missing"),
        ([], r"answers.json: no answers of generative or discriminative"),
        ([{"id": 1, "response": "\ud83d"}], r"row 1: response holds half a character"),
    ],
)
def test_answers_that_do_not_fit_are_named(amber, tmp_path, bad, message):
    with pytest.raises(DataError, match=message):
        amber.read([write(tmp_path / "answers.json", bad)])


def test_files_together_answer_each_ask_once(amber, tmp_path):
    one, other = write(tmp_path / "one.json", rows(SAID)[:2]), write(tmp_path / "other.json", rows(SAID)[1:])
    with pytest.raises(DataError, match=r"other.json: row 1: id 2 is answered already: .*one.json: row 2"):
        amber.read([one, other])
    write(other, rows(SAID)[2:])
    assert amber.read([other, one]) == {"generative": SAID}
    with pytest.raises(DataError, match=r"one.json: id 3 is not answered"):
        amber.read([one])


def test_answers_of_what_is_not_asked_are_passed_over(data, tmp_path):
    captions = benchmark(data, parts=["generative"])
    both = write(tmp_path / "both.json", rows(SAID | ANSWERED))
    assert captions.read([both]) == {"generative": SAID}
    with pytest.raises(DataError, match=r"answers\.json: no answers of generative: expected rows with id"):
        captions.read([write(tmp_path / "answers.json", rows(ANSWERED))])


# AMBER's own files.


@pytest.mark.parametrize(
    ("file", "place", "changes", "message"),
    [
        ("annotations", 1, {"id": 3}, r"annotations.json: row 2: expected id 2, got 3"),
        ("annotations", 1, {"truth": "sky"}, r"row 2: truth: expected a list of words, got 'sky'"),
        ("annotations", 1, {"truth": ["man"]}, r"row 2: truth: 'man' is not in relation.json"),
        ("annotations", 3, {"truth": "Yes"}, r"row 4: truth must be yes or no, got 'Yes'"),
        ("query/query_generative", 1, {"id": 1}, r"row 2: id 1 is there already"),
        ("query/query_generative", 1, {"id": 12}, r"row 2: id 12 is not in .*annotations.json"),
        ("query/query_generative", 1, {"id": 4}, r"row 2: id 4 is annotated as discriminative-attribute-state, expec"),
    ],
)
def test_data_that_are_not_ambers_are_named(data, file, place, changes, message):
    edit(data / f"{file}.json", place, **changes)
    with pytest.raises(DataError, match=message):
        benchmark(data)
