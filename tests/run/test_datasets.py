"""Runs over data sets: shards and tables in, the same guarantees as for folders."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest

from sira_cli.models import presets
from sira_cli.pictures.find import find_pictures
from sira_cli.run.lvlm import load
from sira_cli.run.on_ray import Captioner, Work
from sira_cli.run.task import Caption
from tests.support.shards import EXAMPLES, drawn, write_tar

FAST = ("--preset", "demo", "--max-new-tokens", "6")


@pytest.fixture
def shards(tmp_path, monkeypatch) -> Path:
    """Two shards of three pictures, the second with one that is none in the middle."""
    folder = tmp_path / "shards"
    folder.mkdir()
    write_tar(folder / "cc-000.tar", drawn(3))
    broken = [(name, b"no picture" if name == "000004.png" else data) for name, data in drawn(3, 3)]
    write_tar(folder / "cc-001.tar", broken)
    monkeypatch.chdir(tmp_path)
    return folder


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_texts_are_those_of_the_pictures_alone(sira, shards):
    code, out, err = sira("caption", "shards/cc-{000..001}.tar", *FAST, "-o", "captions.jsonl", "-b", 4)
    assert (code, out) == (3, "")
    assert "sira: shards/cc-001.tar/000004.png: is not a picture that Pillow can read" in err
    records = read(Path("captions.jsonl"))
    assert [record["file_name"] for record in records] == [
        f"shards/cc-{number // 3:03}.tar/{number:06}.png" for number in range(6)
    ]
    lvlm = load("demo", max_new_tokens=6)
    for number, record in enumerate(records):
        text = "" if number == 4 else lvlm.caption(EXAMPLES[number % len(EXAMPLES)]).text
        assert record["text"] == text
    again = sira("caption", "shards", *FAST, "-o", "captions.jsonl")
    assert again[0] == 3
    assert "5 of 6 pictures were done before" in again[2]


def test_a_worker_of_ray_reads_the_shard_itself(shards):
    """What is sent to it are places in shards, no bytes of pictures."""
    preset = presets.resolve("demo").with_settings(max_new_tokens=4)
    task = Caption(preset, preset.method("sira"), "Number {number}", fills=True)
    work = Work(task, {"device": "cpu"}, 2, os.getcwd())  # noqa: PTH109
    found = find_pictures(["shards"])
    rows = [
        {"number": n, "picture": pickle.dumps(each), "name": each.name_in(None), "id": each.name_in(None)}
        for n, each in enumerate(found)
    ]
    assert max(len(row["picture"]) for row in rows) < 1000
    block = {name: [row[name] for row in rows] for name in rows[0]} | {"done": [""] * 6, "error": [""] * 6}
    back = Captioner(work)(block)
    records = [json.loads(record) for record in back["record"]]
    assert list(back["number"]) == list(range(6))
    assert [record["prompt"] for record in records] == [f"Number {n}" for n in range(6)]
    assert [record["status"] for record in records] == ["error" if n == 4 else "ok" for n in range(6)]
