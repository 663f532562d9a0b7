"""`sira caption --verify flag`: records say what texts name and how far the picture supports it."""

from __future__ import annotations

import json
import re

import pytest

from sira_cli import load
from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import VALIDATION_SEEDS, render
from sira_cli.look.claims import Verify
from sira_cli.run.run import run_pictures

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
    command += ["--min-support", "0.5"]
    code, _, err = sira(*command, "-b", "3")
    lvlm, found = load("demo", method="greedy"), records(tmp_path / "a.jsonl")
    assert (code, len(found)) == (3, 5)
    look = {"mode": "flag", "words": "chair+amber/1", "question": "Is there {thing} in the image?", "min_support": 0.5}
    for record in found:
        assert record["verify"] == look
        if record["status"] == "error":
            assert record["objects"] == []
            continue
        check = lvlm.check(scenes / record["file_name"], record["text"])
        for claim, same in zip(record["objects"], check.objects, strict=True):
            assert (claim["thing"], claim["spans"]) == (same.thing, [list(span) for span in same.spans])
            assert claim["support"] == pytest.approx(same.support, abs=1e-4)
            named = [record["text"][start:end].lower() for start, end in claim["spans"]]
            assert all(text.startswith(claim["thing"][:3]) for text in named)
    doubted = sum(any(claim["support"] < 0.5 for claim in record["objects"]) for record in found)
    assert 0 < doubted < 4
    assert f"{doubted} with objects that the picture does not support" in err
    assert "4 of 5 pictures were done before" in sira(*command)[2]  # nothing is left


def test_the_texts_and_keys_are_those_without_it(scenes):
    lvlm = load("demo", method="greedy", max_new_tokens=24)
    plain, looked = (
        {event.name: event.record for event in run_pictures(lvlm, scenes, verify=verify) if hasattr(event, "record")}
        for verify in (None, Verify())
    )
    assert len(plain) == 5
    for name, record in plain.items():
        assert (looked[name].text, looked[name].key, looked[name].status) == (record.text, record.key, record.status)
        assert not {"objects", "verify"} & {*record.to_record()}


@pytest.mark.parametrize("more", [["--min-support", "0.9"], []])
def test_a_file_holds_texts_looked_at_in_one_way(sira, scenes, tmp_path, more):
    path = scenes / f"{FIRST}.png"
    first = ["caption", path, "-p", "demo", "--max-new-tokens", "8", "-o", tmp_path / "a.jsonl"]
    assert sira(*first, "--verify", "flag")[0] == 0
    code, _, err = sira(*first, *(["--verify", "flag", *more] if more else []))
    assert code == 2
    assert "holds records of another configuration: verify." in err


def test_what_is_not_supported_is_said_and_marked(sira, shown_on_terminal, scenes):
    command = ["caption", scenes / f"{FIRST}.png", "-p", "demo", "--method", "greedy", "--verify", "flag"]
    command += ["--min-support", "0.5"]
    code, out, err = sira(*command)
    assert code == 0
    assert "[" not in out
    assert re.search(r"not supported: cup \(0\.\d\d\)$", err.strip())
    shown = shown_on_terminal(*command, NO_COLOR="1", COLUMNS=300)
    assert re.search(r"a \[cup\] on the left", shown)
    assert shown.count("[cup]") == shown.count("[") - shown.count("\x1b[")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--min-support", "0.3"], "also give --verify"),
        (["--verify", "flag", "--objects", "none.txt"], r"none\.txt: cannot be read"),
        (["--verify", "flag", "--min-support", "2"], "--min-support 2: expected a number from 0 to 1"),
        (["--verify", "guide", "--tags"], "--verify guide writes sentences, and --tags asks for values"),
        (["--verify", "guide", "--objects", "ask"], "give --objects a list"),
    ],
)
def test_refused_before_the_model_is_loaded(sira, scenes, options, message):
    code, _, err = sira("caption", scenes / f"{FIRST}.png", "-p", "demo", *options)
    assert code == 2
    assert re.search(message, err)


def test_a_text_that_was_guided_is_said(sira, scenes, tmp_path):
    _, _, err = sira("caption", scenes / f"{FIRST}.png", "-p", "demo", "--verify", "guide")
    assert re.search(r"looked first at \d+ objects; not supported: ", err)
    _, _, err = sira("caption", scenes, "-p", "demo", "--verify", "guide", "-o", tmp_path / "a.jsonl")
    changed = sum("draft" in record for record in records(tmp_path / "a.jsonl"))
    assert changed
    assert f"{changed} changed by the second look" in err


@pytest.mark.parametrize("mode", ["flag", "guide"])
def test_the_prefix_and_the_suffix_claim_nothing(scenes, mode):
    """The user wrote them, such as the trigger word of a training set."""
    path = scenes / f"{FIRST + 1}.png"
    plain = load("demo", max_new_tokens=12).caption(path, verify=mode)
    around = load("demo", max_new_tokens=12, prefix="ohwx dog, ", suffix=" A zebra.").caption(path, verify=mode)
    assert around.text == f"ohwx dog, {plain.text} A zebra."
    assert plain.objects
    assert around.objects == [
        {**claim, "spans": [[start + 10, end + 10] for start, end in claim["spans"]]} for claim in plain.objects
    ]
