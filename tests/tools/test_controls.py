"""The threshold without labels: measured on scenes that know the truth, against each question asked by itself."""

from __future__ import annotations

import json

from sira_cli.analysis.calibration.controls import PERCENTILE, threshold_of
from tools.controls import PERCENTILES, file_of


def test_the_percentile_is_that_chosen_on_validation_scenes():
    """Of those tried, the one with the share of real objects below its thresholds that is nearest to labels' 3 %."""
    content = json.loads(file_of("validation").read_text(encoding="utf-8"))
    far = {
        each: abs(sum(effect["there"] - 0.03 for row in content["rows"] for effect in row["controls"][str(each)]))
        for each in PERCENTILES["validation"]
    }
    assert min(far, key=far.__getitem__) == PERCENTILE
    assert threshold_of.__defaults__ == (PERCENTILE,)
