"""Runs that sira 0.1.0 began or finished go on: same keys, same records, nothing is decoded twice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

OLD = Path(__file__).parent / "data" / "old_runs"
CAPTION = ("caption", "pictures", "-r", "-p", "demo", "--max-new-tokens", 24)
ONE = ("caption", "pictures/a.jpg", "--max-new-tokens", 12)
QUESTION = ("ask", "pictures", "-r", "Is there a dog in the image?", "-p", "demo")
POPE = ("--questions", "pope/scenes_pope_random.json", "pope/scenes_pope_popular.json")
EVAL = ("eval", "pope", *POPE, "--images", "pictures", "-p", "demo", "--method", "sira,vcd", "--max-new-tokens", 3)

# What was typed, and the file of records.
FINISHED = {
    "captions": ((*CAPTION, "-o", "captions.jsonl"), "captions.jsonl"),
    "words": ((*CAPTION, "--words", "-o", "words.csv"), "words.jsonl"),
    "answers": ((*QUESTION, "-o", "answers.jsonl"), "answers.jsonl"),
    "choices": ((*QUESTION, "--choices", "Yes,No", "-o", "choices.jsonl"), "choices.jsonl"),
    **{
        method: ((*ONE, "-p", "demo", "--method", method, "-o", f"methods/{method}.jsonl"), f"methods/{method}.jsonl")
        for method in ("greedy", "greedy+apc", "text-only", "vcd", "icd", "m3id", "sid", "dola")
    },
    "vcd-set": (
        (
            *ONE,
            "-p",
            "demo",
            "--method",
            "vcd",
            "--alpha",
            0.7,
            "--beta",
            0.2,
            "--seed",
            3,
            "-o",
            "methods/vcd-set.jsonl",
        ),
        "methods/vcd-set.jsonl",
    ),
    "sira-set": (
        (
            *(*ONE, "-p", "demo", "--temperature", 0.5, "--top-p", 0.9, "--seed", 5),
            *("--k", 3, "--alpha", 1.5, "--beta", 0.3, "-o", "methods/sira-set.jsonl"),
        ),
        "methods/sira-set.jsonl",
    ),
    "own-preset": ((*ONE, "-p", "preset.yaml", "-o", "methods/own-preset.jsonl"), "methods/own-preset.jsonl"),
}


@pytest.fixture
def old(tmp_path, monkeypatch) -> Path:
    """The old runs, in the current folder."""
    shutil.copytree(OLD, tmp_path / "runs")
    monkeypatch.chdir(tmp_path / "runs")
    return tmp_path / "runs"


@pytest.fixture
def no_decoding(monkeypatch) -> None:
    monkeypatch.setattr("sira_cli.models.decoding.DecodingModel.generate", None)
    monkeypatch.setattr("sira_cli.models.decoding.DecodingModel.prepare", None)


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def comparable(record: dict) -> dict:
    """A record without what may differ between two versions of sira."""
    return {
        name: value for name, value in record.items() if name not in ("duration_ms", "sira_version", "method_settings")
    }


@pytest.mark.parametrize("name", FINISHED)
def test_a_finished_run_is_left_as_it_is(sira, old, no_decoding, name):
    command, records = FINISHED[name]
    before = (old / records).read_bytes()
    code, out, err = sira(*command)
    assert (code, out) == (0, "")
    assert "were done before" in err
    assert (old / records).read_bytes() == before


@pytest.mark.parametrize("name", ["captions", "words", "answers"])
def test_an_interrupted_run_ends_as_if_it_had_never_stopped(sira, old, name):
    command, records = FINISHED[name]
    whole = (old / records).read_bytes()
    lines = whole.splitlines(keepends=True)
    (old / records).write_bytes(lines[0] + lines[1] + lines[2][:100])
    assert sira(*command)[0] == 0
    found = (old / records).read_bytes().splitlines(keepends=True)
    assert found[:2] == lines[:2]
    for record, line in zip(read(old / records), lines, strict=True):
        expected = comparable(json.loads(line))
        words, expected_words = record.pop("words", []), expected.pop("words", [])
        assert comparable(record) == expected
        for word, other in zip(words, expected_words, strict=True):
            assert word == {name: pytest.approx(value, abs=1e-4) for name, value in other.items()}


def test_a_picture_that_was_replaced_is_done_under_the_method_s_old_settings(sira, old):
    """The new record says more than the old ones; they stay together all the same."""
    command, records = FINISHED["vcd-set"]
    shutil.copy(old / "pictures/b.jpg", old / "pictures/a.jpg")
    assert sira(*command)[0] == 0
    (record,) = read(old / records)
    assert record["method_settings"] == {"beta": 0.2, "noise_step": 500}
    before = (old / records).read_bytes()
    assert sira(*command)[0] == 0
    assert (old / records).read_bytes() == before


@pytest.mark.parametrize(
    ("name", "options", "difference"),
    [
        ("captions", ("--alpha", 2), "sira.alpha is 0.5 there and 2.0 now"),
        ("captions", ("--system", "Be brief."), "system is None there and 'Be brief.' now"),
        ("vcd", ("--set", "noise_step=700"), "vcd.noise_step is 500 there and 700 now"),
        ("sid", ("--set", "visible=10"), "sid.visible is None there and 10 now"),
    ],
)
def test_other_settings_are_refused(sira, old, no_decoding, name, options, difference):
    command, records = FINISHED[name]
    before = (old / records).read_bytes()
    code, _, err = sira(*command, *options)
    assert code == 2
    assert difference in err
    assert (old / records).read_bytes() == before


@pytest.mark.parametrize("how", ["run", "answers"])
def test_figures_of_old_answers_are_the_same_to_the_last_digit(sira, old, no_decoding, how):
    report = json.loads((old / "eval/report.json").read_text())
    command = (*EVAL, "-o", "eval") if how == "run" else ("eval", "pope", *POPE, "--answers", "eval")
    code, out, _ = sira(*command, "--json")
    again = json.loads(out)
    assert code == 0
    order = [row["method"] for row in report["rows"][:4]]
    rows, expected = (
        sorted(those["rows"], key=lambda row: (row["group"], order.index(row["method"]))) for those in (again, report)
    )
    for row, old_row in zip(rows, expected, strict=True):
        for name, old_figure in old_row["figures"].items():
            if old_figure is not None and old_figure["low"] == old_figure["high"] in (0, 100):  # now Wilson's interval
                del row["figures"][name]["low"], row["figures"][name]["high"], old_figure["low"], old_figure["high"]
        assert old_row.items() <= row.items()
    for name in ("benchmark", "official", "facts", "failures", "not_run"):
        assert again[name] == report[name]


@pytest.mark.parametrize(
    ("file", "options"),
    [
        ("sweep.jsonl", ("pope/scenes_pope_random.json", "--images", "pictures", "--k", "3,7", "--alpha", "0.5,1")),
        ("sweep-scenes.jsonl", ("--scenes", "--captions", "--limit", 1, "--k", 7, "--alpha", 0.5)),
    ],
)
def test_a_finished_sweep_measures_nothing_again(sira, old, no_decoding, file, options):
    text = (
        (old / file).read_text().replace("/tmp/old/runs/pictures", str(old / "pictures"))
    )  # the file names its folder
    (old / file).write_text(text)
    code, out, _ = sira("sweep", *options, "-p", "demo", "-o", file, "--json")
    assert (code, json.loads(out)["schema"]) == (0, "sira.sweep/1")
    assert (old / file).read_text() == text


def test_old_traces_are_read_and_not_made_again(sira, old, no_decoding):
    assert sira("report", "trace.jsonl", "-o", "page.html")[0] == 0
    assert "data:image/jpeg" in (old / "page.html").read_text()
    before = (old / "traces/pictures/a.trace.jsonl").read_bytes()
    assert sira("trace", "pictures/a.jpg", "-p", "demo", "--max-new-tokens", 6, "--output-dir", "traces")[0] == 0
    assert (old / "traces/pictures/a.trace.jsonl").read_bytes() == before
