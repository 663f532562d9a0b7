"""Files of questions: many about each picture, answers as records or as LLaVA's scripts read them."""

from __future__ import annotations

import csv
import json
import pickle
import shutil
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from sira_cli import DataError, load, run_pictures
from sira_cli.pictures import picture
from sira_cli.pictures.find import Shard
from sira_cli.pictures.selection import listed_pictures
from sira_cli.pictures.sources import FileSource
from sira_cli.run.events import Finished
from tests.support.shards import EXAMPLES

THINGS = ("dog", "tree", "car")
QUESTIONS = [
    {"question_id": number * 3 + index, "image": f"{number}.png", "text": f"Is there a {thing}?", "category": "conv"}
    for number in range(3)
    for index, thing in enumerate(THINGS)
]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for number in range(2):
        shutil.copy(EXAMPLES[number], tmp_path / f"photos/{number}.png")
    (tmp_path / "photos/2.png").write_text("no picture")
    write("q.jsonl", QUESTIONS)
    return tmp_path


def write(name: str, rows: list[dict]) -> None:
    Path(name).write_text("\n".join(json.dumps(row) for row in rows) + "\n\n", encoding="utf-8")


def read(name: str) -> list[dict]:
    return [json.loads(line) for line in Path(name).read_text(encoding="utf-8").splitlines()]


def test_answers_are_those_of_single_questions(sira, folder, monkeypatch):
    reads = []
    once = FileSource.read
    monkeypatch.setattr(FileSource, "read", lambda picture: reads.append(picture.location) or once(picture))
    command = ("ask", "photos", "--questions", "q.jsonl", "-p", "demo", "-o", "answers.jsonl", "-b", 4)
    code, _, err = sira(*command)
    assert code == 3
    assert "6 of 9 pictures done" in err
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


@pytest.mark.parametrize(
    ("method", "batch_size", "passes"),
    [
        ("sira", 4, 1),
        ("vcd", 1, 2),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("sira", 1, 1), ("vcd", 4, 2))),
    ],
)
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


def test_a_changed_question_alone_is_asked_again(folder):
    lvlm = load("demo", max_new_tokens=4)
    list(run_pictures(lvlm, "photos", questions="q.jsonl", output="answers.jsonl"))
    write("q.jsonl", [row | ({"text": "What is there?"} if row["question_id"] == 4 else {}) for row in QUESTIONS])
    events = list(run_pictures(lvlm, "photos", questions="q.jsonl", output="answers.jsonl"))
    assert [event.id for event in events[1:] if type(event).__name__ != "Skipped"] == ["4"]
    assert [record["id"] for record in read("answers.jsonl")] == [str(number) for number in range(9)]


def test_plain_questions_of_every_kind_of_file(sira, folder):
    plain = [{"image": row["image"], "question": row["text"]} for row in QUESTIONS]
    write("p.jsonl", plain)
    with Path("p.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["image", "question"])
        writer.writeheader()
        writer.writerows(plain)
    Path("p.tsv").write_text(
        "image\tquestion\n" + "".join(f"{row['image']}\t{row['question']}\n" for row in plain), encoding="utf-8"
    )
    Path("p.json").write_text(json.dumps(plain, indent=1), encoding="utf-8")
    parquet.write_table(pyarrow.Table.from_pylist(plain), "p.parquet")
    files = ("p.jsonl", "p.csv", "p.tsv", "p.json", "p.parquet")
    found = [listed_pictures(Path(name), str, folder="photos") for name in files]
    assert all(each == found[0] for each in found)
    assert [(each.asked(""), each.location) for each in found[0]] == [
        (row["text"], f"photos/{row['image']}") for row in QUESTIONS
    ]
    assert found[0][0].id == "0.png: Is there a dog?"
    assert pickle.loads(pickle.dumps(found[0])) == found[0]
    sira("ask", "photos", "--questions", "p.csv", "-p", "demo", "--limit", 2, "-o", "some.jsonl")
    assert [row["id"] for row in read("some.jsonl")] == [each.id for each in found[0][:2]]


def test_ids_from_a_table_with_empty_cells(folder):
    """As pandas writes them: numbers have become floats."""
    ids = pyarrow.array([7.0, None, float("nan")])
    parquet.write_table(pyarrow.table({"id": ids, "image": ["a"] * 3, "question": ["?", "!", "."]}), "ids.parquet")
    assert [each.id for each in listed_pictures(Path("ids.parquet"), str)] == ["7", "a: !", "a: ."]


def test_parts_keep_the_questions_about_a_picture_together(folder):
    parts = [
        [each.location for each in listed_pictures(Path("q.jsonl"), str, folder="photos", shard=Shard(part, 2))]
        for part in (1, 2)
    ]
    assert not set(parts[0]) & set(parts[1])
    assert len(parts[0] + parts[1]) == 9


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("bad.jsonl", '{"image": "0.png"}', "line 1: expected text or question, found image"),
        ("bad.jsonl", "{?", "line 1 is not JSON"),
        ("bad.jsonl", "", "holds no questions"),
        ("bad.jsonl", '{"id": [1], "image": "a", "text": "?"}', "line 1: id is [1]: expected a text or a whole number"),
        ("bad.jsonl", '{"id": 1, "image": "a", "text": "?"}\n' * 2, "line 2: the question '1' stands twice: give each"),
        (
            "bad.csv",
            "image,question\n0.png,A dog, or a cat?\n",
            "row 2 has 3 cells, expected 2 (image, question): a text",
        ),
        (
            "bad.csv",
            'image,question\n0.png,"A dog?\n1.png,A cat?\n',
            "line 2: is not a table: unexpected end of data: ",
        ),
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


def test_a_command_without_a_question(sira, folder):
    code, _, err = sira("ask", "-p", "demo")
    assert (code, err) == (2, "sira: Missing argument 'QUESTION': the question to ask, or --questions FILE\n")
    code, _, err = sira("ask", "photos", "photos", "--questions", "q.jsonl", "-p", "demo")
    assert "--questions names the pictures: give only their folder, or nothing" in err
