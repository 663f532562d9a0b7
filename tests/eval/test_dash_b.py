"""DASH-B: the script's figures, and a run on drawn pictures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sira_cli.errors import DataError
from sira_cli.eval.base import ONE_WORD
from sira_cli.eval.card import Asking
from sira_cli.eval.dash_b import CARD, DashB
from tests.support.eval.writing import save

SAID = ("Yes", "yes, but no", "No.", "I cannot see it", "It is NOT there", "", "Nothing", "Eyes", "maybe", "No")


@pytest.fixture
def folder(scenes: Path, tmp_path: Path) -> Path:
    return shutil.copytree(scenes / "dash-b", tmp_path / "dash")


@pytest.fixture
def benchmark(folder: Path) -> DashB:
    return CARD.read(folder, Asking())


def official(answers: list[dict]) -> dict[str, float]:
    """compute_results of the official script, by its own arithmetic, over the rows of its file of answers."""
    for row in answers:
        said = row["response"].lower()
        row["answer"] = "yes" if said.find("yes") >= 0 else "no" if said.find("no") >= 0 else None
    of = {truth: [row["answer"] == truth for row in answers if row["gt"] == truth] for truth in ("yes", "no")}
    tpr, tnr = (sum(of[truth]) / len(of[truth]) for truth in ("yes", "no"))
    both = of["yes"] + of["no"]
    found = {"accuracy": sum(both) / len(both), "TPR": tpr, "TNR": tnr, "harmonic mean": 2 * tpr * tnr / (tpr + tnr)}
    return {name: 100 * share for name, share in found.items()}


def figures(benchmark: DashB, texts: dict[str, str]) -> dict[str, float]:
    return benchmark.figures("all", benchmark.score(benchmark.parts[0], texts)["all"].total())


@pytest.mark.parametrize("shift", [0, 3, 7])
def test_figures_are_the_script_s(benchmark, tmp_path, shift):
    texts = {each.id: SAID[(place + shift) % len(SAID)] for place, each in enumerate(benchmark.questions)}
    (file,) = benchmark.export({"dash-b": texts}, tmp_path)
    answers = json.loads(file.read_text())
    assert set(answers[0]) == {"img_id", "object_name", "gt", "response", "answer"}
    taken = [row["answer"] for row in answers]
    expected = official(answers)
    assert taken == [row["answer"] for row in answers]
    found = figures(benchmark, texts)
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert benchmark.read([file]) == {"dash-b": texts}  # an answer file of the script


def test_both_wordings(benchmark, folder):
    ours = CARD.read(folder, Asking("ours"))
    names = [each.picture.split("/")[2] for each in ours.questions]
    assert [ask.prompt for ask in ours.parts[0].asks] == [
        f"Is there a {name} in the image?{ONE_WORD}" for name in names
    ]
    prompt = f"Can you see a {names[0]} in this image? Please answer only with yes or no."
    assert benchmark.parts[0].asks[0].prompt == prompt


def test_a_limit_takes_pictures_of_both_files(folder):
    limited = CARD.read(folder, Asking(limit=1))
    assert [each.expected for each in limited.questions] == ["yes", "no"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"pos.json: line 1 is not JSON"),
        ([], r"pos.json: expected file names by data set and object, got \[\]"),
        ({"a": []}, r"pos.json: a: expected file names by object, got \[\]"),
        ({"a": {"cat": []}}, r"pos.json: names no pictures"),
        ({"a": {"cat": [1]}}, r"pos.json: a: cat: expected a list of file names, got \[1\]"),
        ({"a": {"cat": ["\ud800"]}}, r"pos.json: 'a': 'cat': a name holds half a character"),
    ],
)
def test_damaged_files_end_in_one_line(folder, content, message):
    save(folder / "dash_benchmark_pos.json", content)
    with pytest.raises(DataError, match=message):
        CARD.read(folder, Asking())


def test_answers_that_do_not_match(benchmark, tmp_path):
    known = [{"id": each.id, "text": "Yes"} for each in benchmark.questions]
    for rows_, message in (
        ([*known, {"id": "x", "text": "Yes"}], "answers no question of dash-b"),
        ([*known, known[0]], "is answered already: .*row 1"),
        (known[1:], r"is not answered: 1 of the \d answers are missing"),
    ):
        with pytest.raises(DataError, match=message):
            benchmark.read([save(tmp_path / "a.json", rows_)])


def test_a_picture_that_is_missing_is_left_out_of_every_figure(sira, folder, loaded):
    shutil.rmtree(next((folder / "neg" / "drawn").iterdir()))
    code, out, err = sira("eval", "dash-b", folder, "--images", folder, "-p", "demo", "--json")
    report = json.loads(out)
    assert (code, report["rows"][0]["failed"] > 0, "left out of all figures" in err) == (3, True, True)
