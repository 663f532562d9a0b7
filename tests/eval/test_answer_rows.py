"""Rows of answers: as the official scripts read them, and lmms-eval's samples; a label is never scored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sira_cli.errors import DataError
from sira_cli.eval.answers import holds_splits
from sira_cli.eval.pope import Pope
from tests.support.eval.coco_data import CAPTIONS

SPLITS = ("adversarial", "popular", "random")
ASKED = "\nAnswer the question using a single word or phrase."


@pytest.fixture
def files(tmp_path) -> list[Path]:
    """As in POPE: yes-questions are in all splits under the same ids, no-questions differ."""
    paths = []
    for split in SPLITS:
        rows = [
            {
                "question_id": number,
                "image": f"COCO_val2014_{number // 4:012d}.jpg",
                "text": f"Is there a {'dog' if number % 2 else split} {number} in the image?",
                "label": "yes" if number % 2 else "no",
            }
            for number in range(1, 9)
        ]
        paths.append(tmp_path / f"coco_pope_{split}.json")
        paths[-1].write_text("".join(json.dumps(row) + "\n" for row in rows))
    return paths


def expected(files: list[Path]) -> dict[str, str]:
    """Every answer is another one."""
    return {
        f"coco {split}/{row['question_id']}": f"Yes, {split} {row['question_id']}"
        for split, path in zip(SPLITS, files, strict=True)
        for row in map(json.loads, path.read_text().splitlines())
    }


def lmms_rows(files: list[Path], **doc: Any) -> list[dict]:
    """What lmms-eval's evaluation tracker writes of its task pope."""
    rows = []
    for split, path in zip(SPLITS, files, strict=True):
        for question in map(json.loads, path.read_text().splitlines()):
            metric = {"question_id": str(question["question_id"]), "score": 1.0, "prediction": "yes"}
            row = {
                "doc_id": len(rows),
                "target": question["label"],
                "filtered_resps": [f"Yes, {split} {question['question_id']}"],
                "doc_hash": "0",
                "pope_accuracy": metric,
                "pope_f1_score": metric,
                "input": question["text"] + ASKED,
            }
            rows.append(row | ({"doc": {"category": split, "question": question["text"], **doc}} if doc else {}))
    return rows


def lines(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("doc", [{}, {"id": "7"}])
def test_all_splits_of_pope_of_lmms_eval(files, tmp_path, doc):
    """By category, or by ids that begin again; files of questions in any order, or not all of them."""
    path = lines(tmp_path / "20260101_samples_pope.jsonl", lmms_rows(files, **doc))
    assert holds_splits(path)
    for chosen in (files, files[::-1], files[1:], files[2:]):
        names = [path.stem.replace("_pope_", " ") for path in chosen]
        texts = {id_: text for id_, text in expected(files).items() if id_.split("/")[0] in names}
        assert Pope(chosen).read([path]) == {"pope": texts}


def test_splits_of_their_own_of_lmms_eval(files, tmp_path):
    rows = lmms_rows(files)
    paths = [
        lines(tmp_path / f"samples_pope_{name}.jsonl", rows[8 * n : 8 * n + 8])
        for n, name in enumerate(("adv", "pop", "random"))
    ]
    assert not any(map(holds_splits, paths))
    assert Pope(files).read(paths) == {"pope": expected(files)}
    with pytest.raises(
        DataError, match=r"pope_adv.jsonl: line 2: answers 'Is there a adversarial 2 .* but question 2 "
    ):
        Pope(files[2:]).read(paths[:1])


@pytest.mark.parametrize("said", ["Yes", ["Yes"], [["Yes"]]])
def test_one_answer_however_deep(files, tmp_path, said):
    rows = [{**row, "filtered_resps": said} for row in lmms_rows(files)[:8]]
    assert {*Pope(files[:1]).read([lines(tmp_path / "a.jsonl", rows)])["pope"].values()} == {"Yes"}
    rows[3]["filtered_resps"] = ["Yes", "No"]
    with pytest.raises(DataError, match=r"line 4: filtered_resps: expected one answer, got 2: \['Yes', 'No'\]"):
        Pope(files[:1]).read([lines(tmp_path / "a.jsonl", rows)])


def test_a_command_with_one_file_for_all_splits(sira, files, tmp_path):
    paths = [lines(tmp_path / f"{name}_samples_pope.jsonl", lmms_rows(files)) for name in ("one", "two")]
    run = ("eval", "pope", *files, "--json", "--answers", *paths, f"mine={paths[0]}")
    report = json.loads(sira(*run)[1])
    assert [(row["method"], row["answered"]) for row in report["rows"]][:3] == [
        *(("mine", 8), ("one_samples_pope", 8), ("two_samples_pope", 8))
    ]


def test_captions_of_lmms_eval(chair, tmp_path):
    """Its tasks coco2014_cap and the like name the image in every metric."""
    rows = [
        {
            "doc_id": number,
            "target": "[]",
            "filtered_resps": [text],
            "coco_CIDEr": {"answer": ["A man."], "pred": text, "image_id": int(image), "id": number},
            "input": "Provide a one-sentence caption for the provided image.",
        }
        for number, (image, text) in enumerate(CAPTIONS.items())
    ]
    assert chair.read([lines(tmp_path / "samples_coco2014_cap_val.jsonl", rows)]) == {"captions": CAPTIONS}


def test_samples_of_amber_do_not_name_their_queries(amber, tmp_path):
    """The task amber_g logs only counts of each caption."""
    row = {"doc_id": 0, "filtered_resps": "A dog.", "amber_chair": {"chair_num": 1}, "input": "Describe this image."}
    with pytest.raises(DataError, match="line 1: expected id, found question, text"):
        amber.read([lines(tmp_path / "samples_amber_g.jsonl", [row])])


LABELS = [
    ("pope", {"question_id": 1, "answer": "yes", "score": 0.9}),
    ("pope", {"question": "Is there a dog?", "answer": "yes", "prediction": "no"}),
    ("pope", {"question_id": 1, "label": "yes", "text": "No"}),
    ("pope", {"question_id": 1, "question": "Is there a dog?", "answer": "yes", "category": "random"}),
    ("pope", {"index": 0, "question": "Is there a dog?", "answer": "Yes", "prediction": "No"}),
    ("chair", {"image_id": 7, "caption": "A dog.", "score": 0.9}),
    ("chair", {"image_id": 7, "id": 1, "caption": "A dog."}),
    ("chair", {"image_id": 7, "caption": "A dog.", "model_caption": "A cat."}),
    ("amber", {"id": 4, "answer": "yes", "score": 0.9}),
    ("amber", {"id": 4, "truth": "yes", "response": "No"}),
]


@pytest.mark.parametrize(("name", "row"), LABELS)
def test_a_row_that_may_hold_the_label_is_refused(request, files, tmp_path, name, row):
    """Its answer could be the label, and what the model said stand under another name."""
    benchmark = Pope(files[:1]) if name == "pope" else request.getfixturevalue(name)
    with pytest.raises(DataError, match=r"a.jsonl: line 1: expected an answer with .*, found "):
        benchmark.read([lines(tmp_path / "a.jsonl", [row])])


def test_questions_are_no_answers(files, tmp_path):
    rows = [json.loads(line) for line in files[0].read_text().splitlines()]
    with pytest.raises(DataError, match="line 1: expected an answer with "):
        Pope(files[:1]).read([files[0]])
    rows = [{name: value for name, value in row.items() if name != "label"} for row in rows]
    with pytest.raises(DataError, match="line 1: is a question, expected an answer"):
        Pope(files[:1]).read([lines(tmp_path / "a.jsonl", rows)])
