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
TOKENS = 12
DEMO = ("-p", "demo", "--max-new-tokens", TOKENS)


@pytest.fixture(scope="module")
def demo() -> Lvlm:
    return load("demo", max_new_tokens=TOKENS)


@pytest.fixture
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


def test_one_answer_about_all_pictures(sira, folder, demo):
    code, out, _ = sira("ask", "photos/1.png", "photos/0.png", "--together", QUESTION, *DEMO)
    assert (code, out.strip()) == (0, demo.ask(["photos/1.png", "photos/0.png"], QUESTION).text)
    code, out, _ = sira("caption", "photos/[012].png", "--together", *DEMO, "--json")
    record = json.loads(out)
    assert record["images"] == [f"photos/{number}.png" for number in range(3)]
    assert record["file_name"] == "photos/0.png | photos/1.png | photos/2.png"
    alone = demo.caption(record["images"])
    assert (record["text"], record["key"], record["image_sha256"]) == (alone.text, alone.key, alone.image_sha256)


def test_one_bad_picture_fails_its_group_and_nothing_else(sira, folder, demo, monkeypatch):
    rows = [["0.png", "1.png"], ["2.png", "bad.txt"], ["3.png"], ["none.png", "0.png"], ["2.png", "3.png", "0.png"]]
    groups = write("photos/groups.jsonl", *({"images": row} for row in rows))
    command = ("caption", "--files-from", groups, *DEMO, "-o", "photos/out.jsonl", "-b", 2)
    code, _, err = sira(*command)
    assert code == 3
    assert "3 of 5 pictures done" in err
    records = read("photos/out.jsonl")
    assert [record["images"] for record in records] == rows
    assert [record["file_name"] for record in records] == [" | ".join(row) for row in rows]
    assert records[1]["error"].startswith("photos/bad.txt: is not a picture")
    assert records[3]["error"] == "photos/none.png: no such file"
    for number in (0, 2, 4):
        assert records[number]["text"] == demo.caption([f"photos/{name}" for name in rows[number]]).text
    before = Path("photos/out.jsonl").read_bytes()
    monkeypatch.setattr("sira_cli.run.lvlm.Lvlm.generate", None)
    assert sira(*command)[0] == 3  # nothing is decoded again
    assert Path("photos/out.jsonl").read_bytes() == before


def test_a_group_that_is_longer_than_the_context_fails_alone(sira, folder):
    groups = write("g.jsonl", {"images": ["photos/0.png"] * 20}, {"images": ["photos/0.png", "photos/1.png"]})
    code, _, _ = sira("caption", "--files-from", groups, *DEMO, "-o", "out.jsonl", "-b", 2)
    assert code == 3
    long, short = read("out.jsonl")
    assert (long["status"], short["status"]) == ("error", "ok")
    assert re.fullmatch(
        r"photos/0.png \| .* and 16 more: a prompt with 20 pictures has 1,\d{3} tokens, and the model's context holds "
        "1,024: give fewer pictures, or make them smaller",
        long["error"],
    )


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_questions_about_groups(sira, folder, demo, form):
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
    code, _, _ = sira("ask", "photos", "--questions", f"q.{form}", *DEMO, "-o", "a.jsonl", "-b", 3)
    assert code == 0
    for row, record in zip(rows, read("a.jsonl"), strict=True):
        names = [f"photos/{name}" for name in row["images"] or [row["image"]]]
        assert record.get("images") == (names if row["images"] else None)
        assert record["text"] == demo.ask(names, row["question"]).text


def test_rows_fill_prompts_and_are_dealt_out_by_their_names(folder):
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


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ('{"images": []}', r"line 1: images is \[\]: expected a list of names"),
        ('{"text": "a"}', "line 1: expected images or image or file_name, found text"),
    ],
)
def test_rows_that_name_no_group(sira, folder, row, error):
    Path("g.jsonl").write_text(row, encoding="utf-8")
    code, _, err = sira("caption", "--files-from", "g.jsonl", *DEMO)
    assert code == 2
    assert re.search(error, err)


def test_a_picture_that_is_named_twice_is_shown_twice(sira, folder, demo):
    code, out, _ = sira("ask", *("photos/0.png", "./photos/0.png") * 2, "--together", QUESTION, *DEMO, "--json")
    record = json.loads(out)
    assert (code, record["images"]) == (0, ["photos/0.png", "./photos/0.png"] * 2)
    assert record["image_tokens"] == 4 * demo.caption("photos/0.png").image_tokens
    assert sira("caption", "photos/0.png", "photos/0.png", *DEMO, "--json")[1].count("\n") == 1


def test_groups_are_not_put_together(sira, folder):
    names = [f"photos/{number}.png" for number in range(2)]
    parquet.write_table(pyarrow.table({"a": names, "b": names, "c": [names, names]}), "t.parquet")
    write_tar(folder / "s.tar", [(f"x.{name}.png", EXAMPLES[0].read_bytes()) for name in "ab"])
    for options in (("t.parquet", "a,b"), ("t.parquet", "c"), ("s.tar", "a.png,b.png")):
        code, _, err = sira("caption", options[0], "--image-column", options[1], "--together", *DEMO)
        assert code == 2
        assert "is several pictures that are shown together already: leave out --together" in err
    code, out, _ = sira("caption", "t.parquet", "--image-column", "a", "--together", *DEMO, "--json")
    assert json.loads(out)["images"] == ["t.parquet/0", "t.parquet/1"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("photos/0.png", "--files-from", "g.jsonl"), "--files-from g.jsonl says itself which pictures"),
        (("photos", "--together", "--limit", "1"), "--limit chooses among pictures, but --together shows all of them"),
        (("photos", "--together", "--sidecar"), "is written as a record, not as a text file"),
        (("photos/0.png", "photos/none.png", "--together"), "photos/none.png: no such file"),
    ],
)
def test_what_does_not_go_with_groups(sira, folder, options, error):
    write("g.jsonl", {"images": ["photos/0.png"]})
    code, _, err = sira("caption", *options, *DEMO)
    assert code in (2, 3)
    assert error in err


@pytest.mark.parametrize("tree", [(), ("--output-dir", "texts")])
def test_a_list_of_single_pictures_has_text_files(sira, folder, demo, tree):
    groups = write("photos/g.jsonl", {"image": "0.png"}, {"images": ["1.png"]})
    code, _, err = sira("caption", "--files-from", groups, "--sidecar", *tree, *DEMO)
    assert code == 0, err
    for number in range(2):
        text = Path("texts" if tree else "photos", f"{number}.txt").read_text(encoding="utf-8")
        assert text == demo.caption(f"photos/{number}.png").text + "\n"


def test_columns_of_a_table(sira, folder, demo):
    files = [Path(f"photos/{number}.png").read_bytes() for number in range(4)]
    parquet.write_table(pyarrow.table({"before": files[:3], "after": files[1:]}), "pairs.parquet")
    options = ("--image-column", "before,after", *DEMO, "--json", "-b", 3)
    code, out, _ = sira("caption", "pairs.parquet", *options)
    assert code == 0
    for number, row in enumerate(map(json.loads, out.splitlines())):
        assert row["text"] == demo.caption([f"photos/{number}.png", f"photos/{number + 1}.png"]).text


def test_captions_of_groups_are_checked(sira, folder, demo):
    """From records, and from anybody's file of captions."""
    write("photos/g.jsonl", {"images": ["0.png", "1.png"]}, {"images": ["2.png"]})
    sira("caption", "--files-from", "photos/g.jsonl", *DEMO, "-o", "photos/out.jsonl")
    texts = [record["text"] for record in read("photos/out.jsonl")]
    write(
        "photos/theirs.jsonl",
        {"images": ["0.png", "1.png"], "caption": texts[0]},
        {"images": ["2.png"], "caption": texts[1]},
    )
    found = []
    for name in ("out", "theirs"):
        code, _, err = sira("check", f"photos/{name}.jsonl", "-p", "demo", "-o", f"photos/{name}-checked.jsonl")
        assert code == 0, err
        found.append(read(f"photos/{name}-checked.jsonl"))
    for records in found:
        assert records[0]["images"] == ["0.png", "1.png"]
        expected = demo.check(["photos/0.png", "photos/1.png"], texts[0])
        assert [each["image"] for each in records[0]["objects"]] == [claim.image for claim in expected.objects]
        assert records[0]["support"] == pytest.approx(expected.support, abs=1e-6)


def test_a_model_that_takes_one_picture_is_refused_before_any_is_decoded(sira, folder, checkpoint_of, monkeypatch):
    """Also where other rows have one."""
    monkeypatch.setattr("sira_cli.run.lvlm.Lvlm.generate", None)
    model = checkpoint_of("JoyCaption (LLaVA)")
    groups = write("photos/g.jsonl", {"images": ["0.png"]}, {"images": ["0.png", "1.png"], "text": "A dog."})
    for options in (("--files-from", groups), ("photos", "--together")):
        code, _, err = sira("caption", *options, "-m", model, "-o", "out.jsonl")
        assert code == 2
        assert "this Llava model takes one picture with a text, not" in err
    code, _, err = sira("trace", "photos", "--together", "-m", model)
    assert code == 2


def test_a_check_asks_about_each_picture_by_itself(folder, demo):
    group = as_picture(["photos/0.png", "photos/1.png"])
    assert Check.under(demo.preset).about([group.known(caption="A dog.")]).together == 1


def test_groups_are_asked_about_on_a_server(sira, folder, demo):
    """Each picture in a request of its own, as in a local run."""
    write("photos/c.jsonl", {"images": ["0.png", "1.png"], "text": "There is a dog on a chair with an umbrella."})
    with served(Server(demo).app) as address:
        code, out, err = sira("check", "photos/c.jsonl", "--endpoint", f"{address}/v1", "--model", "demo", "--json")
    assert code == 0, err
    record = json.loads(out)
    expected = demo.check(["photos/0.png", "photos/1.png"], record["text"]).objects
    found = [(each["thing"], each["image"], round(each["support"], 4)) for each in record["objects"]]
    assert found == [(claim.thing, claim.image, round(claim.support, 4)) for claim in expected]
    assert record["images"] == ["photos/0.png", "photos/1.png"]


def test_a_trace_says_whose_tokens_are_whose(sira, folder):
    code, _, _ = sira("trace", "photos/0.png", "photos/1.png", "--together", *DEMO, "-o", "photos/t.jsonl")
    assert code == 0
    lines = read("photos/t.jsonl")
    validator = Draft202012Validator(json.loads(SCHEMA.read_text()))
    for line in lines:
        validator.validate(line)
    run = lines[0]
    (first, second), every = run["images"], run["image_positions"]
    assert [*first["image_positions"], *second["image_positions"]] == every
    sizes = [sum(end - start for start, end in each["image_positions"]) for each in (first, second)]
    assert sizes == [64, 64]
    assert run["image_tokens"] == 128
    for name, pictures in (("photos", 2), (".", 0)):  # from the page's folder, and after the pictures moved
        if not pictures:
            shutil.move("photos/1.png", "gone.png")
        sira("report", "photos/t.jsonl", "-o", f"{name}/t.html", "--overwrite")
        assert Path(f"{name}/t.html").read_text(encoding="utf-8").count('<img src="data:') == pictures
