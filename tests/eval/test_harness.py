"""Answers as lmms-eval and VLMEvalKit save them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from sira_cli.errors import DataError
from sira_cli.eval.answers.harness import holds_splits
from sira_cli.eval.pope import Pope
from tests.support.eval.amber_data import ANSWERED, QUESTIONS, benchmark, write
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


def vlmevalkit_rows(files: list[Path], image: bool) -> list[dict]:
    """Questions that several splits share are one row there, with all their categories."""
    rows: dict[tuple[str, str], dict] = {}
    for split, path in zip(SPLITS, files, strict=True):
        for question in map(json.loads, path.read_text().splitlines()):
            row = rows.setdefault(
                (question["image"], question["text"]),
                {
                    "index": len(rows),
                    "question": question["text"],
                    "answer": question["label"].capitalize(),
                    "category": "",
                    **(
                        {"image_path": question["image"]}
                        if image
                        else {"image_path": f"/data/images/POPE/{len(rows)}.jpg"}
                    ),
                    "prediction": f"Yes, {question['text']}",
                },
            )
            row["category"] = ",".join(filter(None, [row["category"], split]))
    return list(rows.values())


def save(path: Path, rows: list[dict]) -> Path:
    if path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=4), encoding="utf-8")
    elif path.suffix == ".xlsx":
        book = pytest.importorskip("openpyxl").Workbook()
        for row in ([*rows[0]], *([*row.values()] for row in rows)):
            book.active.append(row)
        book.save(path)
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(
                file, [*rows[0]], delimiter="\t" if path.suffix == ".tsv" else ",", quoting=csv.QUOTE_ALL
            )
            writer.writeheader()
            writer.writerows(rows)
    return path


@pytest.mark.parametrize("ending", [".json", ".xlsx"])
@pytest.mark.parametrize("image", [True, False])
def test_pope_of_vlmevalkit(files, tmp_path, ending, image):
    """By picture and question; where pictures have names of VLMEvalKit's own, in the order of the split."""
    rows = vlmevalkit_rows(files, image)
    assert len(rows) == 4 + 3 * 4
    path = save(tmp_path / f"model_POPE{ending}", rows[::-1] if image else rows)
    texts = {
        f"coco {split}/{row['question_id']}": f"Yes, {row['text']}"
        for split, file in zip(SPLITS, files, strict=True)
        for row in map(json.loads, file.read_text().splitlines())
    }
    if image:
        assert Pope(files).read([path]) == {"pope": texts}
        assert Pope(files[1:2]).read([path])["pope"].items() <= texts.items()
    else:  # the first split's questions are in its order; those of the others are not, as shared ones stand before
        assert Pope(files[:1]).read([path])["pope"].items() <= texts.items()
        with pytest.raises(DataError, match=r"row \d: answers .*, but question 2 of .*popular.json is"):
            Pope(files[1:2]).read([path])


def test_ambers_questions_of_vlmevalkit(data, tmp_path):
    rows = [
        {
            "index": 900 - number,
            "image_path": image,
            "question": f"Is it {number}?",
            "category": kind,
            "prediction": ANSWERED[str(number)],
        }
        for number, (kind, _, image) in enumerate(QUESTIONS, 4)
    ]
    amber = benchmark(data)
    assert amber.read([save(tmp_path / "AMBER.tsv", rows)]) == {"discriminative": ANSWERED}
    assert amber.picked([5]).read([tmp_path / "AMBER.tsv"]) == {"discriminative": {"5": ANSWERED["5"]}}
    with pytest.raises(DataError, match="id 11 is not answered: 1 of the 8 answers of discriminative are missing"):
        amber.read([save(tmp_path / "part.tsv", rows[:-1])])


def test_what_amber_asks_twice_is_answered_twice(data, tmp_path):
    queries = json.loads((data / "query" / "query_discriminative.json").read_text())
    queries[1]["query"] = queries[0]["query"]  # both about a.jpg
    write(data / "query" / "query_discriminative.json", queries)
    rows = [
        {"index": n, "image_path": row["image"], "question": row["query"], "prediction": f"answer {n}"}
        for n, row in enumerate(queries)
    ]
    texts = benchmark(data).read([save(tmp_path / "a.json", rows)])["discriminative"]
    assert texts == {str(row["id"]): f"answer {n}" for n, row in enumerate(queries)}


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


@pytest.mark.parametrize("name", ["a.xlsx", "a.tsv"])
def test_files_that_are_no_tables(chair, tmp_path, name):
    pytest.importorskip("openpyxl")
    (tmp_path / name).write_bytes(b"PK\x03\x04\xff\x00 nothing")
    with pytest.raises(DataError, match=name):
        chair.read([tmp_path / name])


def test_an_answer_that_vlmevalkit_did_not_get_is_none(files, tmp_path):
    rows = vlmevalkit_rows(files, True)
    rows[2]["prediction"] = "Failed to obtain answer via API."
    with pytest.raises(DataError, match=r"row 3: VLMEvalKit got no answer: 'Failed to obtain answer via API.'"):
        Pope(files).read([save(tmp_path / "a.json", rows)])
