"""Errors stay short, whatever stands in a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sira_cli.errors import DataError
from sira_cli.eval.answers import find_files, read_answers
from sira_cli.eval.pope import Pope
from tests.support.eval.made import Made

LONG = "very " * 4_000 + "long"
MANY = {f"COCO_val2014_{number:012d}.jpg": "A dog." for number in range(500)}  # captions by file name
ODD = [
    MANY,
    {LONG: 1},
    {"id": LONG, "image_id": LONG, "question_id": LONG, "text": LONG},
    {"text": [LONG]},
    [LONG],
    LONG,
]
RECORD = {"schema": "sira.ask/1", "method": "vcd", "part": "only", "id": "a/0", "text": "1", "status": "ok"}
QUESTION = {"question_id": 1, "image": "0.jpg", "text": "Is it?", "label": "yes"}


def short(error: DataError, path: Path) -> None:
    said = str(error.value).replace(str(path), "")
    assert len(said) < 400
    assert "\n" not in said


@pytest.mark.parametrize("row", range(len(ODD)))
@pytest.mark.parametrize("benchmark", ["chair", "amber", "pope"])
def test_of_answers(request, tmp_path, benchmark, row):
    (tmp_path / "odd.jsonl").write_text(json.dumps(ODD[row]) + "\n")
    (tmp_path / "coco_pope_random.json").write_text(json.dumps(QUESTION) + "\n")
    reader = Pope([tmp_path / "coco_pope_random.json"]) if benchmark == "pope" else request.getfixturevalue(benchmark)
    with pytest.raises(DataError) as error:
        reader.read([tmp_path / "odd.jsonl"])
    short(error, tmp_path)


@pytest.mark.parametrize("changes", [{"model": LONG}, {"method_settings": MANY}, {"id": "a/0", "text": LONG}])
def test_of_records(tmp_path, changes):
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (RECORD, RECORD | changes)))
    with pytest.raises(DataError) as error:
        read_answers(Made(2), find_files([str(tmp_path / "own.jsonl")])[0])
    short(error, tmp_path)
