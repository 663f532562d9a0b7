"""Which files are which method's, and what their records say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sira_cli.errors import DataError, SettingsError
from sira_cli.eval.answers import SAME, FailedAnswer, find_files, named_after, read_answers
from sira_cli.eval.benchmark import AnswerFiles
from sira_cli.eval.pope import Pope
from tests.support.eval.made import Made


@pytest.fixture
def files(tmp_path: Path):
    def write(**contents: dict) -> list[Path]:
        paths = [tmp_path / f"{name}.jsonl" for name in contents]
        for path, content in zip(paths, contents.values(), strict=True):
            path.write_text(json.dumps(content) + "\n")
        return paths

    return write


OWN = {"schema": "sira.ask/1", "method": "vcd", "id": "a/0", "part": "only", "text": "1", "status": "ok"}


def test_files_are_named_by_label_method_or_name(files, tmp_path):
    paths = files(llava={"answer": "a", "verify": "yes"}, shard_1=OWN, shard_2=OWN)
    sources = find_files([f"mine={paths[0]}", str(paths[0]), *map(str, paths[1:])])
    assert [(source.label, len(source.paths), source.own) for source in sources] == [
        ("vcd", 2, True),
        ("mine", 1, False),
        ("llava", 1, False),
    ]
    (source,) = find_files([str(tmp_path)])  # of a folder, only what sira wrote
    assert (source.label, source.paths) == ("vcd", tuple(paths[1:]))


QUESTIONS = [Path("pope/coco_pope_random.json"), Path("pope/coco_pope_popular.json")]


def methods(sources: list[AnswerFiles]) -> dict[str, list[str]]:
    return {source.label: [path.stem for path in source.paths] for source in sources}


def test_files_of_one_method_go_with_several_question_files(files):
    paths = [str(path) for path in files(base_1={}, base_2={}, new_1={}, new_2={})]
    assert methods(find_files(paths, QUESTIONS)) == {"base": ["base_1", "base_2"], "new": ["new_1", "new_2"]}
    with pytest.raises(SettingsError, match="3 files of answers to 2 files of questions"):
        find_files(paths[:3], QUESTIONS)
    with pytest.raises(SettingsError, match="'base' names two methods: use LABEL=FILE"):
        find_files([paths[0], paths[1], *map(str, files(base_3={}, base_4={}))], QUESTIONS)


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("vcd_coco_pope_random.jsonl", 0),
        ("POPULAR.json", 1),
        ("random-popular.json", None),
        ("randomly.json", None),
        ("coco_pope.json", None),
    ],
)
def test_a_file_is_named_after_its_questions(name, named):
    assert named_after(Path("answers", name), QUESTIONS) == (None if named is None else QUESTIONS[named])
    assert named_after(Path(name), QUESTIONS[:1]) is None
    assert named_after(Path(name), []) is None


def test_greedy_is_what_others_are_compared_with(files):
    paths = files(dola={**OWN, "method": "dola"}, greedy={**OWN, "method": "greedy"})
    assert [source.label for source in find_files(list(map(str, paths)))] == ["greedy", "dola"]


def test_a_file_may_have_an_equals_sign_in_its_name(files):
    (path,) = files(**{"alpha=1": {"answer": ""}})
    assert find_files([str(path)])[0].label == "alpha=1"


FOUR = ("a/0", "a/1", "b/0", "b/1")


def write_own(path: Path, **changes) -> AnswerFiles:
    """Records of all four asks; `changes` by id, with / as _."""
    records = [{**OWN, "id": ask, **changes.get(ask.replace("/", "_"), {})} for ask in FOUR]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return find_files([str(path)])[0]


def test_a_record_takes_the_place_of_an_earlier_one(tmp_path):
    error = {"status": "error", "error": "gone"}
    path = tmp_path / "vcd.jsonl"
    write_own(path, a_1=error)
    lines = path.read_text()
    path.write_text(lines + json.dumps({**OWN, "id": "a/1", "text": "0"}) + "\n")
    answers = read_answers(Made(2), find_files([str(path)])[0])
    assert (answers.texts["only"]["a/1"], answers.failures) == ("0", [])
    path.write_text(lines + json.dumps({**OWN, "id": "a/0", **error}) + "\n")
    answers = read_answers(Made(2), find_files([str(path)])[0])
    assert sorted(answers.texts["only"]) == ["b/0", "b/1"]
    assert answers.failures == [FailedAnswer("vcd", "only", f"{number}.jpg", "gone") for number in (0, 1)]
    path.write_text("".join(lines.splitlines(keepends=True)[:3]) + json.dumps({**OWN, "id": "of another file"}) + "\n")
    with pytest.raises(DataError, match=r"no answer to 'b/1' and 0 more of 4: is it finished"):
        read_answers(Made(2), find_files([str(path)])[0])


def test_only_what_sira_answered_is_reduced(tmp_path):
    own = write_own(tmp_path / "vcd.jsonl", a_0={"text": "1."})
    assert read_answers(Made(2), own).texts["only"]["a/0"] == "1"
    (tmp_path / "other.json").write_text(json.dumps(dict.fromkeys(FOUR, "1.")))
    (other,) = find_files([str(tmp_path / "other.json")])
    assert read_answers(Made(2), other).texts["only"]["a/0"] == "1."


@pytest.mark.parametrize("setting", [name for name in SAME if name != "method"])
def test_records_of_one_method_have_the_same_settings(tmp_path, setting):
    files = write_own(tmp_path / "vcd.jsonl", b_1={setting: "another"})
    with pytest.raises(DataError, match=f"line 4: {setting} is 'another' here and None before: .* LABEL=FILE"):
        read_answers(Made(2), files)


def test_two_files_must_not_answer_the_same_differently(tmp_path):
    write_own(tmp_path / "one.jsonl")
    write_own(tmp_path / "two.jsonl")
    assert read_answers(Made(2), find_files([str(tmp_path)])[0]).texts["only"]["b/1"] == "1"
    write_own(tmp_path / "two.jsonl", b_1={"text": "0"})
    with pytest.raises(DataError, match=r"two.jsonl: line 4: 'b/1' has another answer in .*one.jsonl: line 4"):
        read_answers(Made(2), find_files([str(tmp_path)])[0])


@pytest.mark.parametrize("order", [("one", "two"), ("two", "one")])
def test_an_answer_stands_whatever_the_order_of_files(tmp_path, order):
    write_own(tmp_path / "one.jsonl")
    write_own(tmp_path / "two.jsonl", b_1={"status": "error", "text": "", "error": "gone"})
    (files,) = find_files([str(tmp_path / f"{name}.jsonl") for name in order])
    answers = read_answers(Made(2), files)
    assert (answers.texts["only"]["b/1"], answers.failures) == ("1", [])


def test_records_of_another_benchmark_are_no_answers(tmp_path):
    path = tmp_path / "vcd.jsonl"
    path.write_text(json.dumps({**OWN, "id": "another"}) + "\n")
    with pytest.raises(DataError, match=r"vcd.jsonl: no record answers a question of made"):
        read_answers(Made(2), find_files([str(path)])[0])


def test_records_without_id_are_told_by_picture_and_prompt(tmp_path):
    """As `sira ask` writes them."""
    rows = [{"image": "0.jpg", "text": text, "label": "yes"} for text in ("A dog?", "A dog? Or two?")]
    (tmp_path / "made.json").write_text(json.dumps(rows))
    prompts = {"USER: A dog? Or two? ASSISTANT:": "No", "A dog? Please answer this question with one word.": "Yes"}
    record = {"schema": "sira.ask/1", "method": "sira", "file_name": "../pictures/0.jpg", "status": "ok"}
    records = [{**record, "prompt": prompt, "text": text} for prompt, text in prompts.items()]
    records.append({**record, "file_name": "1.jpg", "prompt": "A dog?", "text": "No"})
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in records))
    (files,) = find_files([str(tmp_path / "own.jsonl")])
    answers = read_answers(Pope([tmp_path / "made.json"]), files)
    assert answers.texts == {"pope": {"made/1": "Yes", "made/2": "No"}}
