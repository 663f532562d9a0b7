"""The control of the second look: its figures on rows that are counted by hand."""

from __future__ import annotations

import pytest

from sira_cli.demo.world import OBJECTS
from tools.unasked import figures, shipped


def row(true, greedy, guide, **support):
    return {"true": true, "greedy": greedy, "guide": guide, "support": dict.fromkeys(OBJECTS, 0.5) | support}


def test_only_the_named_objects_count():
    rows = [
        row(["cat", "dog"], "There is a cat and a cow.", "There is a cat.", cat=0.9, cow=0.2),
        row(["cow"], "There are two cats and a bird.", "There is a bird.", cat=0.6, cow=0.7),
    ]
    found = figures(rows, {"cat", "cow"})
    assert found["auroc"].value == 100.0  # 0.9 and 0.7 against 0.2 and 0.6
    assert found["greedy"] == {"CHAIRi": pytest.approx(200 / 3), "coverage": 50.0, "mentions": 3}
    assert found["guide"] == {"CHAIRi": 0.0, "coverage": 50.0, "mentions": 1}
    assert figures(rows, {"dog"})["greedy"]["coverage"] == 0.0


def test_the_record_has_both_models_and_both_groups():
    assert shipped().count("| the control ") == shipped().count("| the bundled model ") == 2
