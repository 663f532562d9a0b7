"""Captions of drawn scenes with and without a second look: figures counted by hand, texts that are kept, the table."""

from __future__ import annotations

import pytest

from sira_cli.analysis.experiment import Units
from sira_cli.demo.questions import hallucinated, held_out
from sira_cli.demo.scenes import VALIDATION_SEEDS, render
from sira_cli.look.claims import Verify
from sira_cli.run.lvlm import load
from tools.verified import measure_verified

LOOK = Verify(min_support=0.5, mode="guide")
LOOKS = [("greedy", LOOK)]


@pytest.fixture(scope="module")
def greedy():
    return load("demo", method="greedy")


@pytest.fixture(scope="module")
def scenes():
    return [held_out(seed) for seed in (VALIDATION_SEEDS[500_000], VALIDATION_SEEDS[500_002])]  # a cup; nothing


@pytest.fixture(scope="module")
def measured(greedy, scenes, tmp_path_factory):
    path, done = tmp_path_factory.mktemp("texts") / "texts.jsonl", []
    units = Units(path)
    units.begin({"scenes": "drawn"})
    found = measure_verified({"greedy": greedy}, scenes, LOOKS, done.append, units)
    units.close()
    assert done == [2]
    return path, found


def test_figures_are_those_of_the_texts(greedy, scenes, measured):
    _, report = measured
    assert list(report.figures) == ["greedy", "greedy + guide"]
    results = [greedy.caption(render(scene)[0], verify=LOOK) for scene in scenes]
    words = sum(len(result.text.split()) for result in results) / 2
    assert report.figures["greedy + guide"]["words"].value == pytest.approx(words)
    texts = {"greedy": [greedy.caption(render(scene)[0]).text for scene in scenes]}
    texts["greedy + guide"] = [result.text for result in results]
    wrong = {name: sum(bool(hallucinated(*pair)) for pair in zip(scenes, texts[name], strict=True)) for name in texts}
    assert wrong["greedy"] > 0
    for name, count in wrong.items():
        assert report.figures[name]["CHAIRs"].value == 50 * count
    changed = wrong["greedy + guide"] - wrong["greedy"]
    assert report.differences["greedy + guide"]["CHAIRs"].value == 50 * changed
