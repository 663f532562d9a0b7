"""The threshold without labels: measured on scenes that know the truth, against each question asked by itself."""

from __future__ import annotations

import json

import pytest

from sira_cli.analysis.calibration.controls import PERCENTILE, WithControls, threshold_of
from sira_cli.demo.measure import load_method
from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import VALIDATION_SEEDS, render
from sira_cli.language import things
from sira_cli.models.look.second_look import SecondLook
from tools.controls import PERCENTILES, SEEDS, WORDINGS, file_of, measure_controls, shown, to_json

SCENES = [held_out(seed) for seed in VALIDATION_SEEDS[80:84]]


@pytest.mark.slow
def test_lines_and_their_effects_are_those_of_single_questions():
    lvlm = load_method("sira")
    [row] = measure_controls(lvlm, SCENES, [90], WORDINGS[:1])
    texts = {scene: lvlm.caption(render(scene)[0]).text for scene in SCENES}
    look, there, absent, present = SecondLook(lvlm), [], [], []
    for seed, effect in zip(SEEDS, row["controls"][90], strict=True):
        words, controls = WithControls(things.shipped(), texts.values(), seed), []
        for scene, text in texts.items():
            for claim in look.claims(render(scene)[0], words.things(text)):
                if not claim.spans:
                    controls.append(claim.support)
                    present.append(claim.thing in scene.objects)
                elif seed == 0:
                    (there if claim.thing in scene.objects else absent).append(claim.support)
        threshold = sorted(controls)[len(controls) - 1 - len(controls) // 10]
        assert effect.threshold == pytest.approx(threshold, abs=0.0011)
        assert effect.there == pytest.approx(sum(each < effect.threshold for each in there) / len(there))
        assert effect.absent == pytest.approx(sum(each < effect.threshold for each in absent) / len(absent))
    assert row["in the picture"] == pytest.approx(sum(present) / len(present))
    table = shown(to_json("validation", len(SCENES), [row]))
    assert f"| {row['labels'].threshold:.3f} " in table
    assert " / ".join(f"{each.threshold:.3f}" for each in row["controls"][90]) in table


def test_the_percentile_is_that_chosen_on_validation_scenes():
    """Of those tried, the one with the share of real objects below its thresholds that is nearest to labels' 3 %."""
    content = json.loads(file_of("validation").read_text(encoding="utf-8"))
    far = {
        each: abs(sum(effect["there"] - 0.03 for row in content["rows"] for effect in row["controls"][str(each)]))
        for each in PERCENTILES["validation"]
    }
    assert min(far, key=far.__getitem__) == PERCENTILE
    assert threshold_of.__defaults__ == (PERCENTILE,)
