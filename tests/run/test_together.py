"""Groups of pictures through the commands: records, resumed runs, lists, tables, batches, second looks, traces."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import pyarrow
import pytest
from jsonschema import Draft202012Validator
from pyarrow import parquet

from sira_cli import load
from sira_cli.pictures.find import Shard
from sira_cli.pictures.selection import listed_pictures
from sira_cli.pictures.sources import as_picture
from sira_cli.run.check import Check
from sira_cli.run.lvlm import Lvlm
from sira_cli.serve.app import Server
from tests.support.asgi import served
from tests.support.shards import EXAMPLES, write_tar
from tests.support.traces import SCHEMA

QUESTION = "Is there a dog in the image?"
DEMO = ("-p", "demo", "--max-new-tokens", 8)
PAIR = ["photos/0.png", "photos/1.png"]


@pytest.fixture(scope="module")
def demo() -> Lvlm:
    return load("demo", max_new_tokens=8)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for number in range(4):
        shutil.copy(EXAMPLES[number], tmp_path / f"photos/{number}.png")
    (tmp_path / "photos/bad.txt").write_text("no picture")
    return tmp_path


def write(name: str, *rows: dict) -> str:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return name


def read(name: str) -> list[dict]:
    return [json.loads(line) for line in Path(name).read_text(encoding="utf-8").splitlines()]


def test_one_answer_about_all_pictures(sira, demo):
    code, out, _ = sira("ask", *PAIR[::-1], "--together", QUESTION, *DEMO)
    assert (code, out.strip()) == (0, demo.ask(PAIR[::-1], QUESTION).text)
    record = json.loads(sira("caption", "photos/[012].png", "--together", *DEMO, "--json")[1])
    assert record["images"] == [f"photos/{number}.png" for number in range(3)]
    assert record["file_name"] == " | ".join(record["images"])
    alone = demo.caption(record["images"])
    assert (record["text"], record["key"], record["image_sha256"]) == (alone.text, alone.key, alone.image_sha256)
    named = (PAIR[0], f"./{PAIR[0]}") * 2  # one that is named twice is shown twice
    record = json.loads(sira("ask", *named, "--together", QUESTION, *DEMO, "--json")[1])
    assert record["images"] == [*named]
    assert record["image_tokens"] == 4 * demo.caption(PAIR[0]).image_tokens
    assert sira("caption", PAIR[0], PAIR[0], *DEMO, "--json")[1].count("\n") == 1


def test_one_bad_picture_fails_its_group_and_nothing_else(sira, demo, monkeypatch):
    rows = [["0.png", "1.png"], ["2.png", "bad.txt"], ["3.png"], ["none.png", "0.png"], ["2.png", "3.png", "0.png"]]
    rows.append(["0.png"] * 20)
    groups = write("photos/groups.jsonl", *({"images": row} for row in rows))
    command = ("caption", "--files-from", groups, *DEMO, "-o", "photos/out.jsonl", "-b", 2)
    code, _, err = sira(*command)
    assert (code, "3 of 6 pictures done" in err) == (3, True), err
    records = read("photos/out.jsonl")
    assert [record["images"] for record in records] == rows
    assert [record["file_name"] for record in records] == [" | ".join(row) for row in rows]
    assert records[1]["error"].startswith("photos/bad.txt: is not a picture")
    assert records[3]["error"] == "photos/none.png: no such file"
    assert re.fullmatch(
        r"photos/0.png \| .* and 16 more: a prompt with 20 pictures has 1,\d{3} tokens, and the model's context holds "
        "1,024: shorten it, or give fewer or smaller pictures",
        records[5]["error"],
    )
    for number in (0, 2, 4):
        assert records[number]["text"] == demo.caption([f"photos/{name}" for name in rows[number]]).text
    before = Path("photos/out.jsonl").read_bytes()
    monkeypatch.setattr("sira_cli.run.lvlm.Lvlm.generate", None)
    assert sira(*command)[0] == 3  # nothing is decoded again
    assert Path("photos/out.jsonl").read_bytes() == before


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_questions_about_groups(sira, demo, form):
    rows = [
        {"question_id": "a", "images": ["0.png", "1.png"], "image": None, "question": QUESTION},
        {"question_id": "b", "images": None, "image": "2.png", "question": QUESTION},
        {"question_id": "c", "images": ["1.png", "0.png"], "image": None, "question": "Describe them."},
    ]
    if form == "jsonl":
        write("q.jsonl", *({name: value for name, value in row.items() if value is not None} for row in rows))
    else:
        with Path("q.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(row | {"images": row["images"] and json.dumps(row["images"])} for row in rows)
    assert sira("ask", "photos", "--questions", f"q.{form}", *DEMO, "-o", "a.jsonl", "-b", 3)[0] == 0
    for row, record in zip(rows, read("a.jsonl"), strict=True):
        names = [f"photos/{name}" for name in row["images"] or [row["image"]]]
        assert record.get("images") == (names if row["images"] else None)
        assert record["text"] == demo.ask(names, row["question"]).text


def test_rows_fill_prompts_and_are_dealt_out_by_their_names():
    rows = [
        {"images": [f"{first}.png", f"{second}.png"], "who": f"P{first}"} for first in range(4) for second in range(4)
    ]
    path = Path(write("photos/groups.jsonl", *rows, rows[0]))
    groups = listed_pictures(path)
    assert len(groups) == 16  # each once
    assert groups[5].columns()["who"] == "P1"
    parts = [listed_pictures(path, shard=Shard(number, 3)) for number in (1, 2, 3)]
    assert sorted(group.identity for part in parts for group in part) == sorted(group.identity for group in groups)
    assert listed_pictures(path, limit=2) == groups[:2]


def test_groups_are_not_put_together(sira, folder):
    parquet.write_table(pyarrow.table({"a": PAIR, "b": PAIR, "c": [PAIR, PAIR]}), "t.parquet")
    write_tar(folder / "s.tar", [(f"x.{name}.png", EXAMPLES[0].read_bytes()) for name in "ab"])
    for options in (("t.parquet", "a,b"), ("t.parquet", "c"), ("s.tar", "a.png,b.png")):
        code, _, err = sira("caption", options[0], "--image-column", options[1], "--together", *DEMO)
        message = "is several pictures that are shown together already: leave out --together"
        assert (code, message in err) == (2, True)
    code, out, _ = sira("caption", "t.parquet", "--image-column", "a", "--together", *DEMO, "--json")
    assert json.loads(out)["images"] == ["t.parquet/0", "t.parquet/1"]


@pytest.mark.parametrize(
    ("row", "options", "error"),
    [
        ('{"images": []}', ("--files-from", "g.jsonl"), r"line 1: images is \[\]: expected a list of names"),
        ('{"text": "a"}', ("--files-from", "g.jsonl"), "line 1: expected images or image or file_name, found text"),
        ("", ("photos/0.png", "--files-from", "g.jsonl"), "--files-from g.jsonl says itself which pictures"),
        ("", ("photos", "--together", "--limit", "1"), "--limit chooses among pictures, but --together shows all"),
        ("", ("photos", "--together", "--sidecar"), "is written as a record, not as a text file"),
        ("", ("photos/0.png", "photos/none.png", "--together"), "photos/none.png: no such file"),
    ],
)
def test_what_does_not_go_with_groups(sira, row, options, error):
    Path("g.jsonl").write_text(row or '{"images": ["photos/0.png"]}', encoding="utf-8")
    code, _, err = sira("caption", *options, *DEMO)
    assert code == (3 if "no such file" in error else 2)
    assert re.search(error, err)


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


def test_a_model_that_takes_one_picture_is_refused_before_any_is_decoded(sira, checkpoint_of, monkeypatch):
    """Also where other rows have one."""
    monkeypatch.setattr("sira_cli.run.lvlm.Lvlm.generate", None)
    model = checkpoint_of("JoyCaption (LLaVA)")
    groups = write("photos/g.jsonl", {"images": ["0.png"]}, {"images": ["0.png", "1.png"], "text": "A dog."})
    for options in (("--files-from", groups), ("photos", "--together")):
        code, _, err = sira("caption", *options, "-m", model, "-o", "out.jsonl")
        assert (code, "this Llava model does not take the turns user with" in err) == (2, True)
    assert sira("trace", "photos", "--together", "-m", model)[0] == 2


def test_a_trace_is_of_all_pictures(sira):
    assert sira("trace", *PAIR, "--together", *DEMO, "-o", "photos/t.jsonl")[0] == 0
    lines, validator = read("photos/t.jsonl"), Draft202012Validator(json.loads(SCHEMA.read_text()))
    for line in lines:
        validator.validate(line)
    run = lines[0]
    assert run["image_tokens"] == 128 == sum(end - start for start, end in run["image_positions"])
    for name, pictures in (("photos", 2), (".", 0)):  # from the page's folder, and after the pictures moved
        if not pictures:
            shutil.move("photos/1.png", "gone.png")
        sira("report", "photos/t.jsonl", "-o", f"{name}/t.html", "--overwrite")
        assert Path(f"{name}/t.html").read_text(encoding="utf-8").count('<img src="data:') == pictures
