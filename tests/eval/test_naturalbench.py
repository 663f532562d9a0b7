"""NaturalBench: the script's figures, and a run on drawn pictures."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path

import pytest

from sira_cli.errors import DataError
from sira_cli.eval.base import ONE_WORD
from sira_cli.eval.card import Asking
from sira_cli.eval.naturalbench import CARD, KINDS, NaturalBench
from tests.support.eval.helpers import values
from tests.support.eval.writing import lines

SAID = {
    "yes_no": ("Yes", "No", "no, yes", "YES!", "Nothing", "yesterday", "", "There is no dog", "yes or no", "Maybe"),
    "multiple_choice": ("A", "B", "b", "It is a B.", "Option A", "Both", "", "B, not A", "banana", "(A)"),
}


def rows(groups: int = 30) -> list[dict]:
    kinds = itertools.cycle(["yes_no", "multiple_choice", "yes_no"])
    return [
        {"Index": 4 * group + place, "Image": f"{2 * group + place % 2}.jpg", "Question": f"{group}.{place // 2}?"}
        | {"Question_Type": kind, "Answer": KINDS[kind][0][place in (1, 2)]}
        for group, kind in zip(range(groups), kinds, strict=False)
        for place in range(4)
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return lines(tmp_path / "natural" / "naturalbench.jsonl", rows()).parent


def extracted(text: str, kind: str) -> int:
    """The script's reading of an answer: 1, 0 or -1."""
    first, second = {"yes_no": ("yes", "no"), "multiple_choice": ("a", "b")}[kind]
    for word in re.findall(r"\w+", text.lower()):
        if word in (first, second):
            return int(word == first)
    return -1


def official(scores: list[int]) -> dict[str, float]:
    """get_scores of the script: pairs of 1 and 0 by place, over all samples."""
    found = dict.fromkeys(("Acc", "Q_Acc", "I_Acc", "G_Acc"), 0.0)
    names = ("q0_i0", "q0_i1", "q1_i0", "q1_i1")
    samples = [dict(zip(names, scores[at : at + 4], strict=True)) for at in range(0, len(scores), 4)]
    for one in samples:
        asked = int((one["q0_i0"], one["q0_i1"]) == (1, 0)) + int((one["q1_i1"], one["q1_i0"]) == (1, 0))
        shown = int((one["q0_i0"], one["q1_i0"]) == (1, 0)) + int((one["q1_i1"], one["q0_i1"]) == (1, 0))
        each = sum((one["q0_i0"] == 1, one["q0_i1"] == 0, one["q1_i0"] == 0, one["q1_i1"] == 1))
        for name, points, most in (("Acc", each, 4), ("Q_Acc", asked, 2), ("I_Acc", shown, 2)):
            found[name] += 100 * points / most / len(samples)
        found["G_Acc"] += 100 * (asked == shown == 2) / len(samples)
    return found


def figures(benchmark: NaturalBench, texts: dict[str, str]) -> dict[str, float]:
    return benchmark.figures("all", benchmark.score(benchmark.parts[0], texts)["all"].total())


@pytest.mark.parametrize("shift", [0, 3, 7])
def test_figures_are_the_script_s(folder, tmp_path, shift):
    benchmark = CARD.read(folder, Asking())
    texts = {}
    for place, row in enumerate(rows()):
        right = (
            row["Answer"] if (place * 7 + shift) % 10 < 7 else SAID[row["Question_Type"]][(place // 10 + shift) % 10]
        )
        texts[str(row["Index"])] = right
    scores = [extracted(texts[str(row["Index"])], row["Question_Type"]) for row in rows()]
    assert -1 in scores
    expected = official(scores)
    found = figures(benchmark, texts)
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert found["yes"] == pytest.approx(100 * scores.count(1) / len(scores))
    (file,) = benchmark.export({"naturalbench": texts}, tmp_path)
    assert benchmark.read([file]) == {"naturalbench": texts}


def test_a_group_that_lacks_an_answer_is_left_out(folder):
    benchmark = CARD.read(folder, Asking())
    texts = {each.id: each.expected for each in benchmark.questions}
    del texts["6"]
    tally = benchmark.score(benchmark.parts[0], texts)["all"]
    assert {"4", "5", "6", "7"}.isdisjoint(tally.right)
    assert len(tally.counts) == 29
    assert figures(benchmark, texts)["G_Acc"] == 100


def test_prompts_and_limit(folder):
    benchmark, ours = (CARD.read(folder, Asking(wording, limit=2)) for wording in ("official", "ours"))
    assert [len(each.questions) for each in (benchmark, ours)] == [8, 8]
    assert [ask.prompt for ask in benchmark.parts[0].asks[3:5]] == [
        *("0.1? Please answer Yes or No.", "1.0? Please output the letter corresponding to the correct option.")
    ]
    assert ours.parts[0].asks[0].prompt == "0.0?" + ONE_WORD


def test_answers_of_lmms_eval(folder, tmp_path):
    """Its samples hold the index in `doc`."""
    benchmark = CARD.read(folder, Asking())
    samples = [
        {
            "doc": {name: row[name] for name in ("Index", "Question")},
            "filtered_resps": ["Yes"],
            "input": row["Question"],
        }
        for row in rows()
    ]
    texts = benchmark.read([lines(tmp_path / "samples_naturalbench.jsonl", samples)])["naturalbench"]
    assert texts == {each.id: "Yes" for each in benchmark.questions}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"Index": 7}, "line 3: Index is 7, expected 2: rows are out of order"),
        ({"Question_Type": "free"}, "line 3: Question_Type is 'free', expected yes_no or multiple_choice"),
        ({"Question": "other?"}, "line 4: expected the question of the row before"),
    ],
)
def test_damaged_files_end_in_one_line(tmp_path, change, message):
    content = rows(1)
    content[2] |= change
    lines(tmp_path / "naturalbench.jsonl", content)
    with pytest.raises(DataError, match=message):
        CARD.read(tmp_path, Asking())


@pytest.mark.parametrize("count", [0, 3])
def test_a_file_of_no_whole_groups(tmp_path, count):
    lines(tmp_path / "naturalbench.jsonl", rows(1)[:count])
    with pytest.raises(DataError, match=f"holds {count} questions, expected groups of four"):
        CARD.read(tmp_path, Asking())


def test_a_run_on_drawn_pictures(sira, scenes, loaded, lvlm, tmp_path):
    folder = shutil.copytree(scenes / "naturalbench", tmp_path / "drawn")
    shutil.copytree(scenes / "images", folder / "images")
    command = ("eval", "naturalbench", folder, "--json")
    ask = (
        *command,
        "--images",
        folder / "images",
        "-p",
        "demo",
        "-b",
        8,
        "-o",
        tmp_path / "out",
        "--option",
        "wording=ours",
    )
    code, out, _ = sira(*ask, "--method", "sira")
    report = json.loads(out)
    assert (code, list(report["settings"])) == (0, ["greedy", "greedy+apc", "sira"])
    benchmark = CARD.read(folder, Asking("ours"))
    texts = {each.id: lvlm.ask(folder / "images" / each.picture, each.prompt).text for each in benchmark.questions}
    expected = figures(benchmark, texts)
    found = values(report)
    assert {name: found["all", "sira", name] for name in expected} == pytest.approx(expected)
    loaded.clear()
    assert (
        json.loads(sira(*command, "--option", "wording=ours", "--answers", tmp_path / "out")[1])["rows"]
        == report["rows"]
    )
    (folder / "images" / benchmark.questions[1].picture).unlink()
    code, out, _ = sira(*command, "--images", folder / "images", "-p", "demo")
    assert (code, {row["answered"] for row in json.loads(out)["rows"]}) == (3, {4})  # one of two groups
