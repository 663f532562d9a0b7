"""Prompts that are filled from columns, members and text files, and prompts whose braces mean nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sira_cli import SettingsError, load, run_pictures
from sira_cli.pictures.find import find_pictures
from sira_cli.pictures.selection import needs_columns
from tests.support.shards import EXAMPLES, drawn, write_tar


@pytest.fixture(scope="module")
def lvlm():
    return load("demo", max_new_tokens=4)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_tar(tmp_path / "a.tar", drawn(3))
    (tmp_path / "photos").mkdir()
    for number in range(2):
        shutil.copy(EXAMPLES[number], tmp_path / f"photos/{number}.png")
    return tmp_path


def run(lvlm, paths: str, prompt: str, output: str = "captions.jsonl", **options) -> list[dict]:
    list(run_pictures(lvlm, paths, prompt=prompt, output=output, **options))
    return [json.loads(line) for line in Path(output).read_text(encoding="utf-8").splitlines()]


def prompts(*args, **options) -> list[str]:
    return [record["prompt"] for record in run(*args, **options)]


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


def test_a_missing_column_is_said_before_anything_is_decoded(lvlm, folder):
    with pytest.raises(SettingsError) as caught:
        run(lvlm, "a.tar", "Tags: {tag}")
    assert str(caught.value) == ("the prompt holds {tag}, but a.tar/000000.png has only the columns tags, number, txt")
    assert not Path("captions.jsonl").exists()


def test_a_column_that_one_picture_lacks_is_its_error(lvlm, folder):
    members = [member for member in drawn(3) if member[0] != "000001.json"]
    members = [(name, b"[1]" if name == "000002.json" else data) for name, data in members]
    write_tar(folder / "b.tar", members)
    records = run(lvlm, "b.tar", "Tags: {tags}")
    assert [record["error"] for record in records] == [
        "",
        "b.tar/000001.png: the prompt holds {tags}, but its columns are txt",
        "b.tar/000002.png: its .json is not a JSON object: 'list' object is not a mapping",
    ]


def test_a_column_with_the_models_placeholder_is_its_pictures_error(lvlm, folder):
    placeholder = lvlm.processor.image_token
    write_tar(folder / "c.tar", [("0.png", EXAMPLES[0].read_bytes()), ("0.txt", placeholder.encode())])
    (record,) = run(lvlm, "c.tar", "Not {txt}")
    assert record["error"] == f"c.tar/0.png: the prompt holds {placeholder}, this model's placeholder; leave it out"


def test_files_beside_a_picture(lvlm, folder):
    prompt = 'Known: {txt}. Answer as {"a": 1} or {}.'
    before = run(lvlm, "photos", prompt, output="before.jsonl")
    assert {record["prompt"] for record in before} == {prompt}  # nothing beside them: braces are braces
    for number in range(2):
        Path(f"photos/{number}.txt").write_text(f"tags {number}\n", encoding="utf-8")
    assert not needs_columns("Answer as {answer}.", find_pictures(["photos"]))
    assert prompts(lvlm, "photos", prompt) == [
        f'Known: tags {number}. Answer as {{"a": 1}} or {{}}.' for number in (0, 1)
    ]
    Path("photos/1.txt").unlink()
    records = run(lvlm, "photos", prompt, output="less.jsonl")
    assert [record["error"] for record in records] == [
        "",
        "photos/1.png: the prompt holds {txt}, but its columns are none",
    ]


def test_records_without_names_in_the_prompt_are_as_before(lvlm, folder):
    """Texts and keys, whatever lies beside the pictures."""
    before = run(lvlm, "photos", "Describe {this}.", output="before.jsonl")
    Path("photos/0.txt").write_text("a text", encoding="utf-8")
    Path("photos/0.json").write_text("no JSON", encoding="utf-8")
    after = run(lvlm, "photos", "Describe {this}.", output="after.jsonl")
    assert [record | {"duration_ms": 0} for record in before] == [record | {"duration_ms": 0} for record in after]
