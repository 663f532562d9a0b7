"""Prompts of pictures: filled from columns, members and text files, and from files of questions about each picture."""

from __future__ import annotations

import csv
import json
import pickle
import shutil
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from sira_cli import DataError, SettingsError, load, run_pictures
from sira_cli.pictures import picture
from sira_cli.pictures.find import find_pictures
from sira_cli.pictures.selection import listed_pictures, needs_columns
from sira_cli.pictures.sources import FileSource
from sira_cli.run.events import Finished
from tests.support.shards import EXAMPLES, drawn, write_tar

QUESTIONS = [
    {"question_id": number * 3 + index, "image": f"{number}.png", "text": f"Is there a {thing}?", "category": "conv"}
    for number in range(3)
    for index, thing in enumerate(("dog", "tree", "car"))
]


@pytest.fixture(scope="module")
def lvlm():
    return load("demo", max_new_tokens=4)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The current folder, with two pictures and what is none in photos/, q.jsonl about them, and a.tar."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for number in range(2):
        shutil.copy(EXAMPLES[number], tmp_path / f"photos/{number}.png")
    (tmp_path / "photos/2.png").write_text("no picture")
    write("q.jsonl", QUESTIONS)
    write_tar(tmp_path / "a.tar", drawn(3))
    return tmp_path


def write(name: str, rows: list[dict]) -> None:
    Path(name).write_text("\n".join(json.dumps(row) for row in rows) + "\n\n", encoding="utf-8")


def read(name: str) -> list[dict]:
    return [json.loads(line) for line in Path(name).read_text(encoding="utf-8").splitlines()]


def run(lvlm, paths: str | list[str], prompt: str, output: str = "captions.jsonl", **options) -> list[dict]:
    list(run_pictures(lvlm, paths, prompt=prompt, output=output, **options))
    return read(output)


# --- files of questions


def test_answers_are_those_of_single_questions(sira, folder, monkeypatch):
    reads, once = [], FileSource.read
    monkeypatch.setattr(FileSource, "read", lambda picture: reads.append(picture.location) or once(picture))
    monkeypatch.setattr("sira_cli.cli.loading.note_bundled", lambda *rest: None)  # it reads them, too
    command = ("ask", "photos", "--questions", "q.jsonl", "-p", "demo", "-o", "answers.jsonl", "-b", 4)
    code, _, err = sira(*command)
    assert (code, "6 of 9 pictures done" in err) == (3, True)
    records = read("answers.jsonl")
    assert [(record["id"], record["file_name"], record["prompt"]) for record in records] == [
        (str(row["question_id"]), f"photos/{row['image']}", row["text"]) for row in QUESTIONS
    ]
    assert sorted(reads) == [f"photos/{number}.png" for number in range(3)]  # each once
    lvlm = load("demo")
    for record in records[:6]:
        assert record["text"] == lvlm.ask(record["file_name"], record["prompt"]).text
    assert all(record["error"].startswith("photos/2.png: is not a picture") for record in records[6:])
    before = Path("answers.jsonl").read_bytes()
    monkeypatch.setattr("sira_cli.run.lvlm.Lvlm.generate", None)
    assert sira(*command)[0] == 3  # nothing is decoded again
    assert Path("answers.jsonl").read_bytes() == before


@pytest.mark.parametrize(("method", "batch_size", "passes"), [("sira", 4, 1), ("vcd", 1, 2)])
def test_pictures_are_decoded_and_encoded_once(folder, monkeypatch, method, batch_size, passes):
    write("q.jsonl", [row | {"text": f"Describe the {row['text'][11:-1]}."} for row in QUESTIONS])
    samples, decode = [], picture.decode_picture
    monkeypatch.setattr(picture, "decode_picture", lambda name, data: samples.append(name) or decode(name, data))
    lvlm = load("demo", method=method, max_new_tokens=6)
    encoder, pictures = lvlm.model.get_encoder(modality="image"), []
    handle = encoder.register_forward_hook(lambda module, args, output: pictures.append(len(output[0])))
    events = list(run_pictures(lvlm, "photos", questions="q.jsonl", output="a.jsonl", batch_size=batch_size))
    handle.remove()
    assert sorted(samples) == ["photos/0.png", "photos/1.png"]
    assert pictures == [1] * (2 * passes)  # vcd's second pass looks at a picture with noise
    done = [event for event in events if isinstance(event, Finished)]
    texts = [event.record.text for event in done]
    assert texts == [lvlm.ask(f"photos/{event.picture.relative}", event.record.prompt).text for event in done]
    assert len(set(texts)) > 1


def test_a_changed_question_alone_is_asked_again(folder, lvlm):
    list(run_pictures(lvlm, "photos", questions="q.jsonl", output="answers.jsonl"))
    write("q.jsonl", [row | ({"text": "What is there?"} if row["question_id"] == 4 else {}) for row in QUESTIONS])
    events = list(run_pictures(lvlm, "photos", questions="q.jsonl", output="answers.jsonl"))
    assert [event.id for event in events[1:] if type(event).__name__ != "Skipped"] == ["4"]
    assert [record["id"] for record in read("answers.jsonl")] == [str(number) for number in range(9)]


def test_plain_questions_of_every_kind_of_file(sira, folder):
    plain = [{"image": row["image"], "question": row["text"]} for row in QUESTIONS]
    write("p.jsonl", plain)
    for name, delimiter in (("p.csv", ","), ("p.tsv", "\t")):
        with Path(name).open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["image", "question"], delimiter=delimiter)
            writer.writeheader()
            writer.writerows(plain)
    Path("p.json").write_text(json.dumps(plain, indent=1), encoding="utf-8")
    parquet.write_table(pyarrow.Table.from_pylist(plain), "p.parquet")
    files = ("p.jsonl", "p.csv", "p.tsv", "p.json", "p.parquet")
    first, *others = [listed_pictures(Path(name), str, folder="photos") for name in files]
    assert all(each == first for each in others)
    assert [(each.asked(""), each.location) for each in first] == [
        (row["text"], f"photos/{row['image']}") for row in QUESTIONS
    ]
    assert first[0].id == "0.png: Is there a dog?"
    assert pickle.loads(pickle.dumps(first[0])) == first[0]
    sira("ask", "photos", "--questions", "p.csv", "-p", "demo", "--limit", 2, "-o", "some.jsonl")
    assert [row["id"] for row in read("some.jsonl")] == [each.id for each in first[:2]]
    ids = pyarrow.array([7.0, None, float("nan")])  # as pandas writes those of a table with empty cells
    parquet.write_table(pyarrow.table({"id": ids, "image": ["a"] * 3, "question": ["?", "!", "."]}), "ids.parquet")
    assert [each.id for each in listed_pictures(Path("ids.parquet"), str)] == ["7", "a: !", "a: ."]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("bad.jsonl", '{"image": "0.png"}', "line 1: expected text or question, found image"),
        ("bad.jsonl", "{?", "line 1 is not JSON"),
        ("bad.jsonl", "", "holds no questions"),
        ("bad.jsonl", '{"id": [1], "image": "a", "text": "?"}', "line 1: id is [1]: expected a text or a whole number"),
        ("bad.jsonl", '{"id": 1, "image": "a", "text": "?"}\n' * 2, "line 2: the question '1' stands twice: give each"),
        ("bad.csv", "image,question\n0.png,A dog, or a cat?\n", "row 2 has 3 cells, expected 2 (image, question): a"),
        ("bad.csv", 'image,question\n0.png,"A dog?\n1.png,A cat?\n', "line 2: is not a table: unexpected end of data"),
    ],
)
def test_what_is_wrong_with_a_file(folder, name, content, expected):
    Path(name).write_text(content, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        listed_pictures(Path(name), str)
    assert str(caught.value).startswith(f"{name}: ")
    assert expected in str(caught.value)
    with Path(name).open("wb") as sparse:  # as a device without an end: the file claims to hold a terabyte
        sparse.truncate(2**40)
    with pytest.raises(DataError, match="is not a text file: it has NUL bytes"):
        listed_pictures(Path(name), str)


# --- prompts with `{names}`


def test_members_of_a_shard(lvlm, folder):
    records = run(lvlm, "a.tar", "Number {number}, {txt}: {tags}?", batch_size=2)
    assert [record["prompt"] for record in records] == [
        f"Number {number}, scene {number}: dog, tree?" for number in range(3)
    ]
    for number, record in enumerate(records):
        alone = lvlm.caption(EXAMPLES[number], prompt=record["prompt"])
        assert (record["text"], record["prompt_tokens"]) == (alone.text, alone.prompt_tokens)
    again = list(run_pictures(lvlm, "a.tar", prompt="Number {number}, {txt}: {tags}?", output="captions.jsonl"))
    assert [type(event).__name__ for event in again] == ["Started", *["Skipped"] * 3]
    with pytest.raises(SettingsError, match="prompt"):
        run(lvlm, "a.tar", "Number {number}")


def test_a_column_that_is_missing(lvlm, folder):
    """For all pictures it is said before anything is decoded; for one, it is its error."""
    with pytest.raises(SettingsError) as caught:
        run(lvlm, "a.tar", "Tags: {tag}")
    assert str(caught.value) == "the prompt holds {tag}, but a.tar/000000.png has only the columns tags, number, txt"
    assert not Path("captions.jsonl").exists()
    members = [member for member in drawn(3) if member[0] != "000001.json"]
    write_tar(folder / "b.tar", [(name, b"[1]" if name == "000002.json" else data) for name, data in members])
    assert [record["error"] for record in run(lvlm, "b.tar", "Tags: {tags}")] == [
        "",
        "b.tar/000001.png: the prompt holds {tags}, but its columns are txt",
        "b.tar/000002.png: its .json is not a JSON object: 'list' object is not a mapping",
    ]
    placeholder = lvlm.processor.image_token
    write_tar(folder / "c.tar", [("0.png", EXAMPLES[0].read_bytes()), ("0.txt", placeholder.encode())])
    (record,) = run(lvlm, "c.tar", "Not {txt}", "placeholders.jsonl")
    assert record["error"] == f"c.tar/0.png: the prompt holds {placeholder}, this model's placeholder; leave it out"


def test_files_beside_a_picture(lvlm, folder):
    Path("photos/2.png").unlink()
    prompt, names = 'Known: {txt}. Answer as {"a": 1} or {}.', "Describe {this}."
    assert {record["prompt"] for record in run(lvlm, "photos", prompt)} == {prompt}  # nothing is: braces are braces
    before = run(lvlm, "photos", names, "before.jsonl")
    for number in range(2):
        Path(f"photos/{number}.txt").write_text(f"tags {number}\n", encoding="utf-8")
    assert not needs_columns("Answer as {answer}.", find_pictures(["photos"]))
    records = run(lvlm, "photos", prompt, "texts.jsonl")
    assert [record["prompt"] for record in records] == [
        f'Known: tags {number}. Answer as {{"a": 1}} or {{}}.' for number in (0, 1)
    ]
    Path("photos/1.txt").unlink()
    records = run(lvlm, "photos", prompt, "less.jsonl")
    error = "photos/1.png: the prompt holds {txt}, but its columns are none"
    assert [record["error"] for record in records] == ["", error]
    Path("photos/0.json").write_text("no JSON", encoding="utf-8")
    after = run(lvlm, "photos", names, "after.jsonl")  # texts and keys are as before
    assert [record | {"duration_ms": 0} for record in before] == [record | {"duration_ms": 0} for record in after]
