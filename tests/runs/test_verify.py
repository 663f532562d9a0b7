"""`sira caption --verify flag`: records say what texts name and how far the picture supports it."""

from __future__ import annotations

import json
import re

import pytest

from sira_cli import load
from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import VALIDATION_SEEDS, render
from sira_cli.models.second_look import Verify
from sira_cli.runs.run import run_pictures
from tests.support.helpers import on_terminal

FIRST = VALIDATION_SEEDS[500_000]  # greedy names a cup there that is not in the scene


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    for seed in range(FIRST, FIRST + 4):
        render(held_out(seed))[0].save(folder / f"{seed}.png")
    (folder / "broken.png").write_bytes(b"no picture")
    return folder


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_records_hold_what_the_library_says_of_the_text(sira, scenes, tmp_path):
    command = ["caption", scenes, "-p", "demo", "--method", "greedy", "--verify", "flag", "-o", tmp_path / "a.jsonl"]
    code, _, err = sira(*command, "-b", "3")
    assert code == 3
    lvlm = load("demo", method="greedy")
    found = records(tmp_path / "a.jsonl")
    assert len(found) == 5
    for record in found:
        assert record["verify"] == {
            "mode": "flag",
            "words": "chair+amber/1",
            "question": "Is there {thing} in the image?",
            "min_support": 0.5,
        }
        if record["status"] == "error":
            assert record["objects"] == []
            continue
        check = lvlm.check(scenes / record["file_name"], record["text"])
        assert [(claim["thing"], claim["spans"]) for claim in record["objects"]] == [
            (claim.thing, [list(span) for span in claim.spans]) for claim in check.objects
        ]
        for claim, same in zip(record["objects"], check.objects, strict=True):
            assert claim["support"] == pytest.approx(same.support, abs=1e-4)
            assert all(
                record["text"][start:end].lower().startswith(claim["thing"][:3]) for start, end in claim["spans"]
            )
    doubted = sum(any(claim["support"] < 0.5 for claim in record["objects"]) for record in found)
    assert 0 < doubted < 4
    assert f"{doubted} with things that the picture does not support" in err
    _, _, err = sira(*command)  # nothing is left
    assert "4 of 5 pictures were done before" in err


def test_the_texts_and_keys_are_those_without_it(scenes):
    lvlm = load("demo", method="greedy", max_new_tokens=24)
    plain, looked = (
        {
            event.record.file_name: event.record
            for event in run_pictures(lvlm, scenes, verify=verify)
            if hasattr(event, "record")
        }
        for verify in (None, Verify())
    )
    assert len(plain) == 5
    for name, record in plain.items():
        assert (looked[name].text, looked[name].key, looked[name].status) == (record.text, record.key, record.status)
        assert "objects" not in record.to_record()
        assert "verify" not in record.to_record()


@pytest.mark.parametrize("more", [["--min-support", "0.9"], ["--objects", "words.txt"], []])
def test_a_file_holds_texts_looked_at_in_one_way(sira, scenes, tmp_path, more):
    (tmp_path / "words.txt").write_text("bottle\n")
    path = scenes / f"{FIRST}.png"
    first = ["caption", path, "-p", "demo", "--max-new-tokens", "8", "-o", tmp_path / "a.jsonl"]
    assert sira(*first, "--verify", "flag")[0] == 0
    more = [tmp_path / word if word == "words.txt" else word for word in more]
    code, _, err = sira(*first, *(["--verify", "flag", *more] if more else []))
    assert code == 2
    assert "holds records of another configuration: verify." in err


def test_what_is_not_supported_is_said_and_marked(sira, scenes):
    command = ["caption", scenes / f"{FIRST}.png", "-p", "demo", "--method", "greedy", "--verify", "flag"]
    code, out, err = sira(*command)
    assert code == 0
    assert "[" not in out
    assert re.search(r"not supported: cup \(0\.\d\d\)$", err.strip())
    shown = b"".join(on_terminal(*command, NO_COLOR="1", COLUMNS=300)).decode()
    assert re.search(r"a \[cup\] on the left", shown)
    assert shown.count("[cup]") == shown.count("[") - shown.count("\x1b[")


def test_ones_own_words_and_line(sira, scenes, tmp_path):
    (tmp_path / "words.txt").write_text("bicycle, bike\nbowl\n")
    more = ["--objects", tmp_path / "words.txt", "--min-support", "1", "--json"]
    _, out, _ = sira("caption", scenes / f"{FIRST}.png", "-p", "demo", "--method", "greedy", "--verify", "flag", *more)
    record = json.loads(out)
    assert [claim["thing"] for claim in record["objects"]] == ["bicycle", "bowl"]
    assert record["verify"]["words"].startswith("words.txt ")
    assert record["verify"]["min_support"] == 1


def test_nothing_recognised_is_said(sira, scenes, tmp_path):
    (tmp_path / "words.txt").write_text("kitsune\n")
    more = ["--objects", tmp_path / "words.txt", "--max-new-tokens", "8"]
    _, _, err = sira("caption", scenes / f"{FIRST}.png", "-p", "demo", "--verify", "flag", *more)
    assert "nothing was recognised" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--min-support", "0.3"], "give --verify flag, too"),
        (["--verify", "flag", "--objects", "none.txt"], r"none\.txt: cannot be read"),
        (["--verify", "flag", "--min-support", "2"], "less than or equal to 1"),
    ],
)
def test_refused_before_the_model_is_loaded(sira, scenes, options, message):
    code, _, err = sira("caption", scenes / f"{FIRST}.png", "-p", "demo", *options)
    assert code == 2
    assert re.search(message, err)
