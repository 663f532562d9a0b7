"""Groups of pictures through the commands: records, resumed runs, lists, tables, batches, second looks, traces."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from sira_cli import load
from sira_cli.pictures.sources import as_picture
from sira_cli.run.check import Check
from sira_cli.run.lvlm import Lvlm
from sira_cli.serve.app import Server
from tests.run.helpers import EXAMPLES, read
from tests.support.asgi import served
from tests.support.traces import SCHEMA

QUESTION = "Is there a dog in the image?"
DEMO = ("-p", "demo", "--max-new-tokens", 8)
PAIR = ["photos/0.png", "photos/1.png"]


@pytest.fixture(scope="module")
def demo() -> Lvlm:
    return load("demo", max_new_tokens=8)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    for number in range(4):
        shutil.copy(EXAMPLES[number], f"photos/{number}.png")
    Path("photos/bad.txt").write_text("no picture", encoding="utf-8")


def write(name: str, *rows: dict) -> str:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return name


def test_one_answer_about_all_pictures(sira, demo):
    code, out, _ = sira("ask", *PAIR[::-1], "--together", QUESTION, *DEMO)
    assert (code, out.strip()) == (0, demo.ask(PAIR[::-1], QUESTION).text)
    record = json.loads(sira("caption", "photos/[012].png", "--together", *DEMO, "--json")[1])
    assert record["images"] == [f"photos/{number}.png" for number in range(3)]
    assert record["file_name"] == " | ".join(record["images"])
    alone = demo.caption(record["images"])
    assert record["text"] == alone.text
    assert record["key"] == alone.key
    assert record["image_sha256"] == alone.image_sha256
    named = (PAIR[0], f"./{PAIR[0]}") * 2  # one that is named twice is shown twice
    record = json.loads(sira("ask", *named, "--together", QUESTION, *DEMO, "--json")[1])
    assert (record["images"], record["image_tokens"]) == ([*named], 4 * demo.caption(PAIR[0]).image_tokens)


def test_one_bad_picture_fails_its_group_and_nothing_else(sira, demo, monkeypatch):
    rows = [["0.png", "1.png"], ["2.png", "bad.txt"], ["3.png"], ["none.png", "0.png"], ["2.png", "3.png", "0.png"]]
    rows.append(["0.png"] * 20)
    groups = write("photos/groups.jsonl", *({"images": row} for row in rows))
    command = ("caption", "--files-from", groups, *DEMO, "-o", "photos/out.jsonl", "-b", 2)
    code, _, err = sira(*command)
    assert code == 3, err
    assert "3 of 6 pictures done" in err, err
    records = read("photos/out.jsonl")
    assert [(record["images"], record["file_name"]) for record in records] == [(row, " | ".join(row)) for row in rows]
    too_many = r"photos/0.png \| .* and 16 more: a prompt with 20 pictures has 1,\d{3} tokens, and the model's context"
    errors = "", "photos/bad.txt: is not a picture", "", "photos/none.png: no such file", "", too_many
    for row, record, error in zip(rows, records, errors, strict=True):
        text = "" if error else demo.caption([f"photos/{name}" for name in row]).text
        assert record["text"] == text
        assert bool(re.match(error, record["error"]))
    before = Path("photos/out.jsonl").read_bytes()
    monkeypatch.setattr("sira_cli.run.lvlm.Lvlm.generate", None)
    assert sira(*command)[0] == 3  # nothing is decoded again
    assert Path("photos/out.jsonl").read_bytes() == before


def test_questions_about_groups(sira, demo):
    rows = [
        {"question_id": "a", "images": ["0.png", "1.png"], "question": QUESTION},
        {"question_id": "b", "image": "2.png", "question": QUESTION},
        {"question_id": "c", "images": ["1.png", "0.png"], "question": "Describe them."},
    ]
    assert sira("ask", "photos", "--questions", write("q.jsonl", *rows), *DEMO, "-o", "a.jsonl", "-b", 3)[0] == 0
    for row, record in zip(rows, read("a.jsonl"), strict=True):
        names = [f"photos/{name}" for name in row.get("images", [row.get("image")])]
        assert record.get("images") == (names if "images" in row else None)
        assert record["text"] == demo.ask(names, row["question"]).text


def test_captions_of_groups_are_checked(sira, demo):
    """From records, and from anybody's file of captions; each picture by itself, also on a server."""
    assert Check.under(demo.preset).about([as_picture(PAIR).known(caption="A dog.")]).together == 1
    text = "There is a dog on a chair with an umbrella."
    rows = [{"images": ["0.png", "1.png"], "text": text}, {"images": ["2.png"], "text": "A dog."}]
    sira("caption", "--files-from", write("photos/g.jsonl", *rows), *DEMO, "-o", "photos/out.jsonl")
    made = zip(read("photos/out.jsonl"), rows, strict=True)
    write("photos/out.jsonl", *(record | {"text": row["text"]} for record, row in made))
    write("photos/theirs.jsonl", *({"images": row["images"], "caption": row["text"]} for row in rows))
    expected = demo.check(PAIR, text)
    with served(Server(demo).app) as address:
        for name, *server in (("out",), ("theirs",), ("theirs", "--endpoint", f"{address}/v1", "--model", "demo")):
            code, out, err = sira("check", f"photos/{name}.jsonl", "-p", "demo", "--json", *server)
            assert code == 0, err
            record = json.loads(out.splitlines()[0])
            assert record["images"] == PAIR
            found = [(each["thing"], each["image"], round(each["support"], 4)) for each in record["objects"]]
            assert found == [(each.thing, each.image, round(each.support, 4)) for each in expected.objects]


def test_a_trace_is_of_all_pictures(sira):
    assert sira("trace", *PAIR, "--together", *DEMO, "-o", "photos/t.jsonl")[0] == 0
    run, *_ = lines = read("photos/t.jsonl")
    for line in lines:
        Draft202012Validator(json.loads(SCHEMA.read_text())).validate(line)
    assert run["image_tokens"] == 128 == sum(end - start for start, end in run["image_positions"])
    sira("report", "photos/t.jsonl", "-o", "photos/t.html")
    assert Path("photos/t.html").read_text(encoding="utf-8").count('<img src="data:') == 2
