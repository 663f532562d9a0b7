"""Colours and other languages on the command line: records, marks, sums, and captions without wrong colours."""

from __future__ import annotations

import json

import pytest

from sira_cli import load
from sira_cli.cli.options.verifying import verdict
from sira_cli.data.records.record import Answer
from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import VALIDATION_SEEDS, render
from sira_cli.models.look.second_look import SecondLook, Verify

FIRST = VALIDATION_SEEDS[500_000]  # a blue bicycle, a brown table, a white bowl, a black clock
TEXTS = ["A purple bicycle stands there. The bowl is white.", "A house."]
PRESET = """
model: bundled
load: {dtype: float32}
verify:
  min_support: 0.5
  language: xx
  languages:
    xx:
      {yes_words: "Yes, yes", no_words: "No, no", denials: neniu, list: Listu, kinds: {
        objects: {question: "Can you see a {thing}?"},
        colors: {question: "Which color does the {thing} have?", answers: {red: Red ruda, blue: Blue blua},
                 before: ""}}}
"""


@pytest.fixture(scope="module")
def demo():
    return load("demo")


@pytest.fixture
def scenes(tmp_path):
    folder = tmp_path / "scenes"
    folder.mkdir()
    for number, text in enumerate(TEXTS):
        render(held_out(FIRST + number))[0].save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text(text)
    return folder


def records(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_colours_of_captions_are_checked(sira, demo, scenes, tmp_path):
    command = ["check", scenes, "-p", "demo", "--claims", "objects,colors", "-o", tmp_path / "a.jsonl"]
    code, out, _ = sira(*command, "--fix", "drop-sentences", "--fixed", tmp_path / "fixed")
    assert code == 0
    wrong, plain = records(tmp_path / "a.jsonl")
    check = SecondLook(demo, Verify(claims="objects,colors")).check(render(held_out(FIRST))[0], TEXTS[0])
    assert [(each["kind"], each["thing"], each["value"], each["spans"]) for each in wrong["claims"]] == [
        ("colors", "bicycle", "purple", [[2, 8]]),
        ("colors", "bowl", "white", [[43, 48]]),
    ]
    for each, claim in zip(wrong["claims"], check.claims, strict=True):
        assert each["support"] == pytest.approx(claim.support, abs=1e-4)
    keys = ["kind", "thing", "value", "spans", "support", "neither", "answer"]
    assert [list(each) for each in wrong["claims"]] == [keys] * 2
    assert list(wrong).index("claims") == list(wrong).index("objects") + 1
    assert wrong["support"] == pytest.approx(check.support, abs=1e-4)
    (bicycle,) = held_out(FIRST).objects["bicycle"]
    fixed = f"A {bicycle.color} bicycle stands there. The bowl is white."
    assert (wrong["dropped"], wrong["fixed"]) == ([], fixed)
    assert (tmp_path / "fixed" / "0.txt").read_text().strip() == fixed
    assert plain["claims"] == []
    line = demo.preset.verify.thresholds["colors"]
    assert wrong["verify"]["claims"]["colors"] == {"question": "What color is the {thing}?", "min_support": line}
    assert "bicycle: purple 0.00" in out
    assert f"2 captions, 2 colors: 1 of them, in 1 caption, below {line:g}\n" in out
    assert sira(*command, "--fix", "drop-sentences", "--fixed", tmp_path / "fixed")[1] == out  # resumed
    code, _, err = sira(*command[:4], "-o", tmp_path / "a.jsonl")
    assert (code, "another configuration: verify.claims" in err) == (2, True)


def test_a_wrong_colour_of_a_caption_is_rewritten(sira, scenes, tmp_path):
    more = ["--claims", "objects,colors", "--fix", "rewrite", "--fixed", tmp_path / "fixed", "-o", tmp_path / "a.jsonl"]
    assert sira("check", scenes / "0.png", "-p", "demo", *more)[0] == 0
    (record,) = records(tmp_path / "a.jsonl")
    assert record["removed"][0] | {"support": 0} == {
        "kind": "colors",
        "thing": "bicycle",
        "value": "purple",
        "support": 0,
    }
    assert record["fixed"].startswith("A ")
    assert "purple bicycle" not in record["fixed"]


def test_a_failed_picture_has_the_same_keys(sira, scenes, tmp_path):
    (scenes / "1.png").write_bytes(b"no picture")
    for command in ("check", "caption"):
        more = [] if command == "check" else ["--verify", "flag", "--max-new-tokens", "8"]
        path = tmp_path / f"{command}.jsonl"
        sira(command, scenes, "-p", "demo", "--claims", "objects,colors", "-o", path, *more)
        good, failed = records(path)
        assert (failed["status"], failed["claims"]) == ("error", [])
        assert {*good} - {*failed} <= {"warnings"}


def test_wrong_colours_are_marked_wherever_a_text_is_shown(sira, shown_on_terminal, scenes, tmp_path):
    force = ["trace", scenes / "0.png", "-p", "demo", "--force", TEXTS[0], "--verify", "flag"]
    assert sira(*force, "--claims", "objects,colors", "-o", tmp_path / "trace.jsonl")[0] == 0
    end = records(tmp_path / "trace.jsonl")[-1]
    assert [each["value"] for each in end["claims"]] == ["purple", "white"]
    assert sira("report", tmp_path / "trace.jsonl", "-o", tmp_path / "report.html")[0] == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "bicycle: purple" in page
    assert "Claims not supported: 1 of 4" in page
    answer = Answer(end["text"], objects=end["objects"], claims=end["claims"], verify=end["verify"])
    assert verdict(answer) == "not supported: bicycle: purple (0.00)"


def test_a_language_of_the_preset(sira, scenes, tmp_path):
    """With a list of the user's; what it lacks is not asked about."""
    (tmp_path / "mine.yaml").write_text(PRESET)
    (tmp_path / "words.txt").write_text("biciklo, bicikloj\nhundo\n")
    (scenes / "0.txt").write_text("Ruda biciklo. Neniu hundo.")
    (scenes / "1.txt").write_text("Kitsune.")
    command = ["check", scenes, "-p", tmp_path / "mine.yaml", "--objects", tmp_path / "words.txt"]
    code, out, _ = sira(*command, "--claims", "objects,colors", "-o", tmp_path / "a.jsonl")
    assert code == 0
    first, second = records(tmp_path / "a.jsonl")
    assert [claim["thing"] for claim in first["objects"]] == ["biciklo"]
    assert [(claim["thing"], claim["value"]) for claim in first["claims"]] == [("biciklo", "Red")]
    assert (first["verify"]["language"], first["verify"]["yes"]) == ("xx", "Yes, yes")
    assert second["warnings"] == ["names nothing that the list of words has"]
    assert "1 caption with nothing recognised (--objects FILE: your own words; --language" in out


def test_a_caption_in_another_language_is_told(sira, scenes, tmp_path):
    (scenes / "0.txt").write_text("Ein Hund ist auf dem Bild zu sehen.")
    (scenes / "1.txt").write_text('{"scene": "A dog is in the picture with a cat."}')
    (tmp_path / "words.txt").write_text("Hund\ndog\n")
    for language, count in (("en", "1 caption not in en (--language"), ("de", None)):
        output = tmp_path / f"{language}.jsonl"
        command = ["check", scenes, "-p", "demo", "--objects", tmp_path / "words.txt", "--language", language]
        _, out, _ = sira(*command, "-o", output)
        told = [one for record in records(output) for one in record.get("warnings") or () if "language" in one]
        assert told == (["not in the language asked for, en: it looks like de"] if count else [])
        assert count in out if count else " not in " not in out


def test_a_caption_that_cannot_be_put_into_a_prompt_fails_alone(sira, scenes):
    (scenes / "0.txt").write_text("A <image> of a dog.")
    code, out, err = sira("check", scenes, "-p", "demo", "--objects", "ask", "--json")
    assert code == 3
    assert "0.png: the prompt holds <image>" in err
    assert [json.loads(line)["status"] for line in out.splitlines()] == ["error", "ok"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--claims", "numbers"], "--claims 'numbers': expected some of objects, colors"),
        (["--language", "de", "--fix", "rewrite", "--fixed", "x", "-o", "y.jsonl"], "give --objects a list"),
    ],
)
def test_refused_before_the_model_is_loaded(sira, scenes, monkeypatch, options, message):
    monkeypatch.chdir(scenes.parent)
    monkeypatch.setattr("sira_cli.cli.engines.load_model", None)
    code, _, err = sira("check", "scenes", "-p", "demo", *options)
    assert (code, message in err) == (2, True), err
