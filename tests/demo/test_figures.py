"""CHAIR's and POPE's figures against hand-made counts, and intervals against what is known of them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from sira_cli.demo.measure import FIGURES, SceneReport, count, read_figures
from sira_cli.demo.questions import SPLITS, Questions, SceneQuestion, held_out
from sira_cli.demo.scenes import OBJECTS, PLACES, TEST_SEEDS, Scene, SceneObject
from sira_cli.eval.statistics import Figure, Tally
from tools import card
from tools.support import from_json

BOX = (0, 0, 40, 40)


def room(*names: str) -> Scene:
    return Scene(0, "kitchen", tuple(SceneObject(name, "red", BOX) for name in names))


def figures_of(*rows: tuple[Scene, str, list[SceneQuestion], list[str]]) -> dict[str, Figure]:
    """What one method said about scenes, as figures."""
    groups = ("captions", *(SPLITS if rows[0][2] else ()))
    tallies = {group: {"greedy": Tally()} for group in groups}
    for number, (scene, caption, asked, answers) in enumerate(rows):
        count(tallies, "greedy", replace(scene, seed=number), caption, asked, answers)
    return SceneReport.of(tallies, {}).figures["greedy"]


@pytest.fixture(scope="module")
def questions() -> Questions:
    return Questions(sample=300)


def test_chair_by_hand():
    first = room("cup", "bowl", "table"), "A red cup and a blue cup. A dog and a dog.", [], []
    second = room("cup"), "There is one mug here.", [], []
    third = room("apple"), "Nothing.", [], []
    figures = figures_of(first, second, third)
    assert figures["CHAIRs"].value == pytest.approx(100 / 3)
    assert figures["CHAIRi"].value == pytest.approx(100 * 2 / 5)  # repeats count
    assert figures["coverage"].value == pytest.approx(100 * 2 / 5)  # each object once
    assert figures["words"].value == pytest.approx((12 + 5 + 1) / 3)


def test_questions_are_balanced_and_of_their_split(questions):
    assert [held_out(seed).broken for seed in TEST_SEEDS[:4]] == [False, True, False, True]
    adversarial, any_absent = [], []
    for seed in TEST_SEEDS[:200]:
        of = held_out(seed)
        asked = questions.about(of)
        assert asked == questions.about(of)
        assert len({question.name for question in asked}) == len(asked)
        assert all(question.expected == (question.name in of.objects) for question in asked)
        there = sum(question.expected for question in asked)
        assert there == min(3, len(of.objects))
        for split in SPLITS:
            absent = [question.name for question in asked if split in question.splits and not question.expected]
            assert len(absent) == 3
            if split == "popular":  # the commonest absent objects
                rarest = min(questions._frequency[name] for name in absent)
                left_out = [name for name in OBJECTS if name not in of.objects and name not in absent]
                assert all(questions._frequency[name] <= rarest for name in left_out)
            if not of.broken:
                typical = [name in PLACES[of.place].objects for name in absent]
                if split == "adversarial":
                    adversarial += typical
                elif split == "random":
                    any_absent += typical
    assert np.mean(adversarial) > 0.8 > 0.4 > np.mean(any_absent)


def tally(wrong: np.ndarray) -> Tally:
    row = {"captions": 1, "mentions": 4, "objects": 5, "recalled objects": 4, "words": 9}
    rows = [row | {"hallucinated captions": int(one), "hallucinated mentions": int(one)} for one in wrong]
    return Tally({f"{number:06d}": row for number, row in enumerate(rows)})


def report_of(settings: dict | None = None, **tallies: Tally) -> SceneReport:
    return SceneReport.of({"captions": tallies}, settings or {})


def test_figures_are_written_as_they_are_read(tmp_path):
    shipped = read_figures()
    card.write_figures(
        SceneReport.from_json(shipped), from_json(shipped["words"]), shipped["tags"], tmp_path / "figures.json"
    )
    assert (tmp_path / "figures.json").read_bytes() == FIGURES.read_bytes()


def test_tables_and_json():
    answers = tally(np.arange(50) % 3 == 0)
    report = report_of({"sira": {"k": 4}}, greedy=answers, sira=answers)
    assert SceneReport.from_json(json.loads(json.dumps(report.to_json()))) == report
    assert report.outcomes_line() == (
        "Compared with greedy's, sira's captions name fewer absent objects in 0 of 50 scenes, more in 0, as many in 50."
    )
    lines = report.captions_table().splitlines()
    assert lines[0].split() == ["|", "|", "CHAIRs", "|", "CHAIRi", "|", "coverage", "|", "words", "|"]
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["greedy", "sira", "sira - greedy"]
