"""PhD: the index, the four modes, a run on drawn pictures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sira_cli.errors import DataError
from sira_cli.eval.base import ONE_WORD
from sira_cli.eval.card import Asking
from sira_cli.eval.phd import CARD, INSTRUCTION, Phd
from tests.support.eval.drawn import phd
from tests.support.eval.helpers import rows, values
from tests.support.eval.writing import save

TASKS = ("object recognition", "attribute recognition")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return phd(tmp_path / "phd")


@pytest.fixture
def benchmark(folder: Path) -> Phd:
    return CARD.read(folder, Asking())


def test_four_modes_in_the_authors_words(benchmark, folder):
    asks = {ask.id: ask for ask in benchmark.parts[0].asks}
    question = json.loads((folder / "data.json").read_text())[1]
    assert len(asks) == 3 * 3 * 2 + 2
    assert asks["base/1/yes"].prompt == question["yes_question"]
    assert asks["iac/1/no"].prompt == f"It is a nice day.{INSTRUCTION}{question['no_question']}"
    assert asks["icc/1/no"].prompt == f"{question['context']['icc']}{INSTRUCTION}{question['no_question']}"
    assert [asks[id_].picture for id_ in ("base/0/yes", "icc/2/no", "ccs/3/yes")] == [
        "train2014/COCO_train2014_000000000000.jpg",
        "val2014/COCO_val2014_000000000002.jpg",
        "CCS_images/3.png",
    ]
    assert benchmark.parts[0].groups == (
        *("base", "iac", "icc", "ccs"),
        *(f"{mode} {task}" for mode in ("base", "iac", "icc") for task in TASKS),
        "ccs attribute recognition",
    )
    ours = {ask.id: ask.prompt for ask in CARD.read(folder, Asking("ours")).parts[0].asks}
    assert ours["iac/1/no"] == asks["iac/1/no"].prompt + ONE_WORD


def test_the_index_is_the_harmonic_mean_of_both_recalls(benchmark):
    """By hand: of the three base questions whose truth is yes two are answered so, of the others one."""
    texts = {each.id: "Yes." for each in benchmark.questions}
    texts |= {"base/0/yes": "no", "base/1/no": "No, there is none", "base/2/no": "Perhaps, no"}
    found = benchmark.score(benchmark.parts[0], texts)
    figures = benchmark.figures("base", found["base"].total())
    expected = {"PhD Index": 4 / 9, "yes recall": 2 / 3, "no recall": 1 / 3, "accuracy": 1 / 2, "neither": 1 / 6}
    assert {name: figures[name] for name in expected} == pytest.approx(
        {name: 100 * of for name, of in expected.items()}
    )
    task = benchmark.figures("base attribute recognition", found["base attribute recognition"].total())
    assert (task["PhD Index"], task["accuracy"]) == (100, 100)
    assert benchmark.figures("iac", found["iac"].total())["PhD Index"] == 0  # yes to everything


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
    assert [each.id for each in limited.questions] == [
        *(f"{mode}/0/{truth}" for mode in ("base", "iac", "icc") for truth in ("yes", "no")),
        *("ccs/3/yes", "ccs/3/no"),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_id": "x1"}, "row 1: image_id must be digits, got 'x1'"),
        ({"yes_question": None}, "row 1: .*yes_question"),
        ({"context": None}, "row 1: context must hold iac and icc, got None"),
        ({"context": {"iac": "a"}}, "row 1: context: .*icc"),
    ],
)
def test_damaged_files_end_in_one_line(folder, change, message):
    content = json.loads((folder / "data.json").read_text())
    save(folder / "data.json", [content[0] | change, *content[1:]])
    with pytest.raises(DataError, match=message):
        CARD.read(folder, Asking())
    save(folder / "data.json", [])
    with pytest.raises(DataError, match="holds no questions"):
        CARD.read(folder, Asking())


def test_a_run_on_drawn_pictures(sira, folder, loaded, lvlm, tmp_path):
    command = ("eval", "phd", "--data", folder, "--wording", "ours", "--json")
    ask = (*command, "--images", folder / "images", "-p", "demo", "-b", 8, "-o", tmp_path / "out")
    code, out, _ = sira(*ask)
    assert code == 0
    report = json.loads(out)
    assert {group for group, _ in rows(report)} == {*CARD.read(folder, Asking()).parts[0].groups}
    benchmark: Phd = CARD.read(folder, Asking("ours"))
    under = lvlm.under(lvlm.preset.method("sira"))
    texts = {ask.id: under.ask(folder / "images" / ask.picture, ask.prompt).text for ask in benchmark.parts[0].asks}
    found = benchmark.score(benchmark.parts[0], texts)
    for group in benchmark.parts[0].groups:
        expected = benchmark.figures(group, found[group].total())
        assert {name: values(report)[group, "sira", name] for name in expected} == pytest.approx(expected)
    loaded.clear()
    assert json.loads(sira(*ask)[1]) == report
    assert loaded.total() == 0
    assert values(json.loads(sira(*command, "--answers", tmp_path / "out")[1])) == values(report)
