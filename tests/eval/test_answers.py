"""Answers from files: which are which method's, sira's records, lmms-eval's samples; a label is never scored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sira_cli.errors import DataError, SettingsError
from sira_cli.eval.answers import SAME, FailedAnswer, find_files, holds_splits, named_after, read_answers
from sira_cli.eval.benchmark import AnswerFiles
from sira_cli.eval.pope import Pope
from tests.support.eval.benchmarks import CAPTIONS, SAID, Made
from tests.support.eval.writing import lines, read, save

OWN = {"schema": "sira.ask/1", "method": "vcd", "id": "a/0", "part": "only", "text": "1", "status": "ok"}
QUESTIONS = [Path("pope/coco_pope_random.json"), Path("pope/coco_pope_popular.json")]
GONE = {"status": "error", "text": "", "error": "gone"}


# Files by method.


def files_of(*names: str, questions=()) -> list[tuple[str, list[str], bool]]:
    """Files as `find_files` sorts them by label."""
    found = find_files([*names], questions)
    return [(source.label, [path.name for path in source.paths], source.own) for source in found]


def test_files_are_named_by_label_method_or_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"llava": {"answer": "a", "verify": "yes"}, "alpha=1": {"answer": ""}, "z": OWN | {"method": "greedy"}}
    given["trace"] = {"schema": "sira.trace/1", "method": "vcd"}  # which nothing answers
    for name, row in ({"shard_1": OWN, "shard_2": OWN} | given).items():
        lines(Path(f"{name}.jsonl"), [row])
    own = ("vcd", ["shard_1.jsonl", "shard_2.jsonl"], True)
    others = [(label, ["llava.jsonl"], False) for label in ("mine", "llava")]
    assert files_of("mine=llava.jsonl", "llava.jsonl", "shard_1.jsonl", "shard_2.jsonl") == [own, *others]
    # Of a folder, only what sira wrote; greedy is what others are compared with.
    assert files_of(".") == [("greedy", ["z.jsonl"], True), own]
    assert files_of("alpha=1.jsonl") == [("alpha=1", ["alpha=1.jsonl"], False)]
    assert files_of("mine=sha*.jsonl") == [("mine", own[1], True)]  # a shell expands no pattern behind a label


def test_files_of_one_method_go_with_several_question_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [str(lines(Path(f"{name}.jsonl"), [{}])) for name in ("base_1", "base_2", "new_1", "new_2", "base_3")]
    assert files_of(*names[:4], questions=QUESTIONS) == [("base", names[:2], False), ("new", names[2:4], False)]
    with pytest.raises(SettingsError, match="3 files of answers to 2 files of questions"):
        files_of(*names[:3], questions=QUESTIONS)
    with pytest.raises(SettingsError, match="'base' names two methods: use LABEL=FILE"):
        files_of(*names[:2], names[4], names[0], questions=QUESTIONS)
    assert named_after(Path("answers", "POPULAR.json"), QUESTIONS) == QUESTIONS[1]
    assert named_after(Path("random-popular.json"), QUESTIONS) is None


# Records of sira.


def write_own(path: Path, **changes) -> AnswerFiles:
    """Records of all four asks; `changes` by id, with / as _."""
    asks = ("a/0", "a/1", "b/0", "b/1")
    lines(path, [{**OWN, "id": ask, **changes.get(ask.replace("/", "_"), {})} for ask in asks])
    return find_files([str(path)])[0]


def test_a_record_takes_the_place_of_an_earlier_one(tmp_path):
    path = tmp_path / "vcd.jsonl"
    files = write_own(path, a_1=GONE)
    records = path.read_text()
    path.write_text(records + json.dumps({**OWN, "id": "a/1", "text": "0"}))
    answers = read_answers(Made(2), files)
    assert (answers.texts["only"]["a/1"], answers.failures) == ("0", [])
    path.write_text(records + json.dumps({**OWN, "id": "a/0", **GONE}))
    answers = read_answers(Made(2), files)
    assert sorted(answers.texts["only"]) == ["b/0", "b/1"]
    assert answers.failures == [FailedAnswer("vcd", "only", f"{number}.jpg", "gone") for number in (0, 1)]
    path.write_text("".join(records.splitlines(keepends=True)[:3]) + json.dumps({**OWN, "id": "of another file"}))
    with pytest.raises(DataError, match=r"no answer to 'b/1' and 0 more of 4: is it finished"):
        read_answers(Made(2), files)
    path.write_text(json.dumps({**OWN, "id": "another"}))
    with pytest.raises(DataError, match=r"vcd.jsonl: no record answers a question of made"):
        read_answers(Made(2), files)


@pytest.mark.parametrize("setting", [name for name in SAME if name != "method"])
def test_records_of_one_method_have_the_same_settings(tmp_path, setting):
    files = write_own(tmp_path / "vcd.jsonl", b_1={setting: "another"})
    with pytest.raises(DataError, match=f"line 4: {setting} is 'another' here and None before: .* LABEL=FILE"):
        read_answers(Made(2), files)


def test_two_files_must_not_answer_the_same_differently(tmp_path):
    """An answer stands before a failure, whatever the order of the files."""
    for order in (("one", "two"), ("two", "one")):
        write_own(tmp_path / "one.jsonl")
        write_own(tmp_path / "two.jsonl", b_1=GONE)
        (files,) = find_files([str(tmp_path / f"{name}.jsonl") for name in order])
        answers = read_answers(Made(2), files)
        assert (answers.texts["only"]["b/1"], answers.failures) == ("1", [])
    write_own(tmp_path / "two.jsonl", b_1={"text": "0"})
    with pytest.raises(DataError, match=r"two.jsonl: line 4: 'b/1' has another answer in .*one.jsonl: line 4"):
        read_answers(Made(2), find_files([str(tmp_path)])[0])


def test_records_without_id_are_told_by_picture_and_prompt(tmp_path):
    """As `sira ask` writes them."""
    rows = [{"image": "0.jpg", "text": text, "label": "yes"} for text in ("A dog?", "A dog? Or two?")]
    prompts = {"USER: A dog? Or two? ASSISTANT:": "No", "A dog? Please answer this question with one word.": "Yes"}
    record = {"schema": "sira.ask/1", "method": "sira", "file_name": "../pictures/0.jpg", "status": "ok"}
    records = [{**record, "prompt": prompt, "text": text} for prompt, text in prompts.items()]
    records.append({**record, "file_name": "1.jpg", "prompt": "A dog?", "text": "No"})
    (files,) = find_files([str(lines(tmp_path / "own.jsonl", records))])
    answers = read_answers(Pope([save(tmp_path / "made.json", rows)]), files)
    assert answers.texts == {"pope": {"made/1": "Yes", "made/2": "No"}}


# Samples of lmms-eval.

SPLITS = ("adversarial", "popular", "random")


@pytest.fixture
def files(tmp_path) -> list[Path]:
    """As in POPE: yes-questions are in all splits under the same ids, no-questions differ."""
    questions = {
        split: [
            {"question_id": n, "image": f"COCO_val2014_{n // 4:012d}.jpg", "label": "yes" if n % 2 else "no"}
            | {"text": f"Is there a {'dog' if n % 2 else split} {n} in the image?"}
            for n in range(1, 9)
        ]
        for split in SPLITS
    }
    return [lines(tmp_path / f"coco_pope_{split}.json", rows) for split, rows in questions.items()]


def samples(files: list[Path], **doc: Any) -> list[dict]:
    """Rows as lmms-eval's evaluation tracker writes them of its task pope; every answer is another one."""
    rows = []
    for split, path in zip(SPLITS, files, strict=True):
        for question in read(path):
            number, text = str(question["question_id"]), question["text"]
            metric = {"question_id": number, "score": 1.0, "prediction": "yes"}
            row = {"doc_id": len(rows), "target": question["label"], "filtered_resps": [f"Yes, {split} {number}"]}
            row |= {"pope_accuracy": metric, "pope_f1_score": metric, "input": f"{text}\nAnswer the question"}
            rows.append(row | ({"doc": {"category": split, "question": text, **doc}} if doc else {}))
    return rows


@pytest.mark.parametrize("doc", [{}, {"id": "7"}])
def test_all_splits_of_pope_of_lmms_eval(files, tmp_path, doc):
    """By category, or by ids that begin again; files of questions in any order, or not all of them."""
    rows = samples(files, **doc)
    path = lines(tmp_path / "20260101_samples_pope.jsonl", rows)
    assert holds_splits(path)
    for chosen in (files, files[::-1], files[1:], files[2:]):
        splits = [path.stem.removeprefix("coco_pope_") for path in chosen]
        expected = {f"coco {split}/{n}": f"Yes, {split} {n}" for split in splits for n in range(1, 9)}
        assert Pope(chosen).read([path]) == {"pope": expected}
    rows[3]["filtered_resps"] = [["Yes", "No"]]
    with pytest.raises(DataError, match=r"line 4: filtered_resps: expected one answer, got 2: \['Yes', 'No'\]"):
        Pope(files).read([lines(path, rows)])
    wrong = r"adv.jsonl: line 2: answers 'Is there a adversarial 2 .* but question 2 "
    with pytest.raises(DataError, match=wrong):
        Pope(files[2:]).read([lines(tmp_path / "adv.jsonl", samples(files)[:8])])


def test_captions_of_lmms_eval(chair, tmp_path):
    """Tasks of captions name the image in every metric."""
    rows = [
        {"target": "[]", "filtered_resps": [text], "coco_CIDEr": {"pred": text, "image_id": int(image)}, "input": "?"}
        for image, text in CAPTIONS.items()
    ]
    assert chair.read([lines(tmp_path / "samples_coco2014_cap_val.jsonl", rows)]) == {"captions": CAPTIONS}


# Answers that do not fit the questions; and rows that may hold the label, while what the model said stands elsewhere.

LABEL = r"line 1: expected an answer with .*, found .{,200}$"
AMBERS = [{"id": int(id_), "response": text} for id_, text in SAID.items()]
QUESTION = {"question_id": 1, "image": "COCO_val2014_000000000000.jpg", "text": "Is there a dog 1 in the image?"}


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("pope", [{"answer": "Yes"}], r"line 1: the file ends after 1 of 8 answers: question 2 of \S+ has none"),
        ("pope", [{"answer": "Yes"}] * 9, r"line 9: too many answers: \S+ has 8 questions"),
        ("pope", [{"question": "Is it?", "answer": "Yes"}], r"line 1: answers 'Is it\?' about \S+, but question 1 "),
        ("pope", [{"question_id": 1, "text": "a"}] * 2, "line 2: question 1 is answered twice"),
        ("pope", [{"question_id": 9, "text": "a"}], "line 1: question_id 9 is not in"),
        ("pope", [{"question_id": 1, "note": "a"}], LABEL),
        ("pope", [{"question_id": 1, "answer": "yes", "score": 0.9}], LABEL),
        ("pope", [{"question": "Is there a dog?", "answer": "yes", "prediction": "no"}], LABEL),
        ("pope", [{"question_id": 1, "label": "yes", "text": "No"}], LABEL),
        ("pope", [{"question_id": 1, "question": "Is it?", "answer": "yes", "category": "random"}], LABEL),
        ("pope", [QUESTION | {"label": "yes"}], LABEL),
        ("pope", [QUESTION], "line 1: is a question, expected an answer"),
        ("chair", [], "a.jsonl: holds no captions"),
        ("chair", [{"image_id": "7" * 5000, "caption": "x"}], "line 1: image_id is not an image of COCO: '7"),
        ("chair", [{"image_id": 7, "caption": "x"}], r"no caption of image 8 \(2 of 3 are missing\)"),
        ("chair", [{"image_id": 7, "caption": "x"}] * 2, "line 2: image 7 has a caption already: .*line 1: keep one"),
        ("chair", [{"image_id": 7, "caption": "A dog.", "score": 0.9}], LABEL),
        ("chair", [{"image_id": 7, "caption": "A dog.", "model_caption": "A cat."}], LABEL),
        ("chair", [{f"COCO_val2014_{number:012d}.jpg": "A dog." for number in range(500)}], LABEL),
        ("amber", [{"id": 99, "response": ""}], "line 1: id 99 is not AMBER's: expected 1 to 11"),
        ("amber", [*AMBERS, {"id": 2, "response": ""}], "line 4: id 2 is answered already: .*line 2: keep one"),
        ("amber", AMBERS[::2], "a.jsonl: id 2 is not answered: 1 of the 3 answers of generative are missing"),
        ("amber", [], "a.jsonl: no answers of generative or discriminative: expected rows with id"),
        ("amber", [{"filtered_resps": "A dog.", "amber_chair": {}}], "line 1: expected id, found text"),  # of lmms-eval
        ("amber", [{"id": 1, "response": "\ud83d"}], "line 1: response holds half a character"),
        ("amber", [{"id": 4, "answer": "yes", "score": 0.9}], LABEL),
        ("amber", [{"id": 4, "truth": "yes", "response": "No"}], LABEL),
    ],
)
def test_wrong_answers_are_named(request, files, tmp_path, name, rows, message):
    benchmark = Pope(files[:1]) if name == "pope" else request.getfixturevalue(name)
    with pytest.raises(DataError, match=message):
        benchmark.read([lines(tmp_path / "a.jsonl", rows)])


def test_rows_of_amber_may_have_more_than_its_script_reads(amber, tmp_path):
    more = {"image": "AMBER_1.jpg", "query": "Describe this image.", "length": 3, "model": "m"}
    plain, wide = lines(tmp_path / "a.jsonl", AMBERS), lines(tmp_path / "b.jsonl", [row | more for row in AMBERS])
    assert amber.read([wide]) == amber.read([plain])


def test_all_splits_of_lmms_eval_go_with_questions_of_another_edition(files, tmp_path):
    rows = samples(files)
    path = lines(tmp_path / "samples.jsonl", rows)
    expected = Pope(files[::-1]).read([path])
    for file in files:
        save(file, file.read_text().replace("in the image?", "in the imange?"))
    assert Pope(files[::-1]).read([path]) == expected
