"""VideoHallucer: the figures of the authors' cal_score and evaluation.py, by their arithmetic."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from sira_cli.errors import DataError
from sira_cli.eval.card import Asking
from sira_cli.eval.videohallucer import CARD, SUBSETS, VideoHallucer
from tests.support.eval.writing import save

SAID = ("Yes", "no", "No, it is not.", "YES!", "yes and no", "I do not know", "know", "nothing", "", "not: yes")


@pytest.fixture
def folder(tmp_path) -> Path:
    """Pairs in the authors' form, as many in each subset as its place says; the second clip of a pair may differ."""
    for place, subset in enumerate(SUBSETS, start=3):
        pairs = [
            {
                "basic": {"video": f"{number // 2}.mp4", "question": f"Is it {number}?", "answer": "yes"},
                "hallucination": {"video": f"{number // 2}b.mp4", "question": f"Is it not {number}?", "answer": "no"},
                "type": "any",
            }
            for number in range(place)
        ]
        save(tmp_path / subset / f"{subset}.json", pairs)
    return tmp_path


@pytest.fixture
def benchmark(folder) -> VideoHallucer:
    return CARD.read(folder, Asking())


def official(pairs: list[dict]) -> dict[str, float]:
    """The shares that cal_score returns for a file of answers."""

    def hit(each: dict) -> bool:
        return bool(re.search(r"\b(" + each["answer"] + r")\b", each["predict"], re.IGNORECASE))

    hits = [[hit(pair["basic"]), hit(pair["hallucination"])] for pair in pairs]
    of = {"basic": [hit[0] for hit in hits], "hallucination": [hit[1] for hit in hits], "accuracy": [*map(all, hits)]}
    return {name: sum(each) / len(each) for name, each in of.items()}


@pytest.mark.parametrize("seed", range(3))
def test_figures_are_those_of_the_authors_script(benchmark, tmp_path, seed):
    draws = random.Random(seed)
    texts = {each.id: draws.choice(SAID) for each in benchmark.questions}
    files = benchmark.export({"videohallucer": texts}, tmp_path)
    assert [file.name for file in files] == [f"{start}_sira.json" for start in SUBSETS.values()]
    assert benchmark.read(files) == {"videohallucer": texts}
    tallies = benchmark.score(benchmark.parts[0], texts)
    expected = {subset: official(json.loads(file.read_text())) for subset, file in zip(SUBSETS, files, strict=True)}
    expected["all"] = {name: sum(each[name] for each in expected.values()) / 5 for name in expected["temporal"]}
    for group, shares in expected.items():
        found = benchmark.figures(group, tallies[group].total())
        assert {name: found[name] for name in shares} == pytest.approx({n: 100 * s for n, s in shares.items()})


def test_questions_and_files(benchmark, folder):
    first, second = benchmark.parts[0].asks[:2]
    assert (first.picture, second.picture) == ("object_relation/videos/0.mp4", "object_relation/videos/0b.mp4")
    assert first.prompt == "Is it 0?\nAnswer the question using 'yes' or 'no'."
    assert len(CARD.read(folder, Asking(limit=2)).questions) == 2 * 2 * 5
    with pytest.raises(DataError, match="basic: expected an object with `predict`"):
        benchmark.read([save(folder / "fact_x.json", [{"basic": {"question": "Is it 0?"}}])])
    save(folder / "temporal" / "temporal.json", [{"basic": {}}])
    with pytest.raises(DataError, match="expected a question `basic` and one `hallucination`"):
        CARD.read(folder, Asking())
