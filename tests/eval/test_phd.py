"""PhD: the index, the four modes, a run on drawn pictures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sira_cli.errors import DataError
from sira_cli.eval.base import ONE_WORD
from sira_cli.eval.card import Asking
from sira_cli.eval.phd import CARD, INSTRUCTION, Phd
from tests.support.eval.drawn import SCENES, phd
from tests.support.eval.writing import save

TASKS = ("object recognition", "counting", "positional recognition", "attribute recognition")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return phd(tmp_path / "phd")


@pytest.fixture
def benchmark(folder: Path) -> Phd:
    return CARD.read(folder, Asking())


def ids(benchmark: Phd, mode: str, truth: str = "") -> list[str]:
    return [each.id for each in benchmark.questions if each.id.startswith(f"{mode}/") and each.id.endswith(truth)]


def test_four_modes_in_the_authors_words(benchmark, folder):
    asks = {ask.id: ask for ask in benchmark.parts[0].asks}
    content = json.loads((folder / "data.json").read_text())
    usual = [number for number, row in enumerate(content) if "context" in row]
    assert len(asks) == 2 * (3 * len(usual) + len(content) - len(usual))
    row, number = content[usual[1]], usual[1]
    assert asks[f"base/{number}/yes"].prompt == row["yes_question"]
    assert asks[f"iac/{number}/no"].prompt == f"{row['context']['iac']}{INSTRUCTION}{row['no_question']}"
    assert asks[f"icc/{number}/no"].prompt == f"{row['context']['icc']}{INSTRUCTION}{row['no_question']}"
    assert benchmark.parts[0].groups == (
        *("base", "iac", "icc", "ccs"),
        *(f"{mode} {task}" for mode in ("base", "iac", "icc", "ccs") for task in TASKS),
    )
    seen = {
        scene: [ask.picture for ask in asks.values() if str(SCENES[scene].seed) in ask.picture] for scene in range(4)
    }
    names = [
        "val2014/COCO_val2014_{:012d}.jpg",
        "CCS_images/{}.png",
        "train2014/COCO_train2014_{:012d}.jpg",
        "CCS_images/{}.png",
    ]
    assert {scene: {*of} for scene, of in seen.items()} == {
        scene: {name.format(SCENES[scene].seed)} for scene, name in enumerate(names)
    }
    ours = {ask.id: ask.prompt for ask in CARD.read(folder, Asking("ours")).parts[0].asks}
    assert ours[f"iac/{number}/no"] == asks[f"iac/{number}/no"].prompt + ONE_WORD


def test_the_index_is_the_harmonic_mean_of_both_recalls(benchmark):
    """By hand: of eight base questions whose truth is yes six are answered so, of the others two."""
    texts = {each.id: "Yes." for each in benchmark.questions}
    yes, no = ids(benchmark, "base", "yes"), ids(benchmark, "base", "no")
    assert len(yes) == len(no) == 8
    texts |= {yes[0]: "no", yes[1]: "Not at all", no[2]: "No, there is none", no[3]: "NO", no[4]: "Perhaps, no"}
    found = benchmark.score(benchmark.parts[0], texts)
    figures = benchmark.figures("base", found["base"].total())
    expected = {"PhD Index": 3 / 8, "yes recall": 6 / 8, "no recall": 2 / 8, "accuracy": 1 / 2, "neither": 2 / 16}
    assert {name: figures[name] for name in expected} == pytest.approx(
        {name: 100 * of for name, of in expected.items()}
    )
    of_task = {task: benchmark.figures(f"base {task}", found[f"base {task}"].total()) for task in TASKS}
    assert sum(of["accuracy"] for of in of_task.values()) / 4 == pytest.approx(figures["accuracy"])
    assert benchmark.figures("iac", found["iac"].total())["PhD Index"] == 0  # yes to everything


@pytest.mark.parametrize(
    ("text", "said"),
    [("'No'", "no"), ("No-one", "no"), ("No\u2019s", "no"), ("No's", ""), ("“Yes”", "yes"), ("yes'm", ""), ("Not", "")],
)
def test_apostrophes_are_read_as_the_documents_say(benchmark, text: str, said: str):
    assert benchmark.said(benchmark.questions[0], text) == said


def test_answers_of_other_tools(benchmark, tmp_path):
    texts = {each.id: f"No {number}" for number, each in enumerate(benchmark.questions)}
    (file,) = benchmark.export({"phd": texts}, tmp_path)
    assert benchmark.read([file]) == {"phd": texts}
    without_ids = [{name: row[name] for name in row if name != "id"} for row in json.loads(file.read_text())]
    assert benchmark.read([save(tmp_path / "b.json", without_ids)]) == {"phd": texts}
    with pytest.raises(DataError, match="row 1: answers no question of phd"):
        benchmark.read([save(tmp_path / "c.json", [without_ids[0] | {"mode": "other"}])])


def test_a_limit_takes_pictures_of_each_mode(folder):
    limited = CARD.read(folder, Asking(limit=1))
    pictures = {(each.group.partition(" ")[0], each.picture) for each in limited.questions}
    assert [mode for mode, _ in sorted(pictures)] == ["base", "ccs", "iac", "icc"]
