"""How well support tells true things from hallucinated ones, and where its thresholds lie: records and documents."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from sira_cli.eval.statistics import auroc_interval
from sira_cli.models import presets
from tools import support

ROOT = Path(__file__).parents[2]


def test_the_threshold_is_that_of_the_preset():
    found = json.loads((ROOT / "docs/bench/demo-support.json").read_text(encoding="utf-8"))
    assert found["threshold"] == presets.find("demo").verify.min_support


def pairs_ordered_right(rows: list[tuple[bool, float]]) -> float:
    """The AUROC in percent, the slow way."""
    scores = {kind: [score for there, score in rows if there is kind] for kind in (True, False)}
    right = [(yes > no) + (yes == no) / 2 for yes, no in product(scores[True], scores[False])]
    return 100 * sum(right) / len(right)


def test_the_interval_of_an_auroc_is_over_pictures():
    """As wide as the jackknife's, which leaves out picture by picture."""
    rng = np.random.default_rng(7)
    pictures, positive = np.arange(900) // 3, rng.random(900) < 0.7
    score = rng.integers(5, size=900) + 2 * positive + np.repeat(rng.integers(6, size=300), 3)
    figure = auroc_interval(pictures, positive, score, 300)
    rest = [pictures != out for out in range(300)]
    left = [auroc_interval(pictures[each], positive[each], score[each], 300).value / 100 for each in rest]
    error = 100 * np.sqrt(299 * np.var(left))
    assert figure.value == pytest.approx(pairs_ordered_right([*zip(positive.tolist(), score, strict=True)]))
    assert figure.half == pytest.approx(1.96 * error, rel=0.05)


def test_support_is_no_worse_than_it_was_on_validation_scenes():
    """The aim is an AUROC of 94 and more."""
    content = json.loads(support.file_of("validation").read_text(encoding="utf-8"))
    for name in ("greedy", "sira"):
        assert content[name]["threshold"] == presets.find("demo").verify.min_support
        row = content[name]["all"]
        assert row["support"]["value"] >= 94
        assert row["support"]["value"] > max(row[score]["value"] for score in support.SCORES[1:])
