"""How well support tells true colours from wrong ones: against single looks, on scenes that know the truth."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sira_cli.analysis.calibration.support import Source, SupportReport
from sira_cli.demo.language import mentions
from sira_cli.demo.measure import load_methods
from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import VALIDATION_SEEDS, render
from sira_cli.demo.world import COLORS
from sira_cli.eval.stats.auroc import auroc
from sira_cli.models.loading import presets
from sira_cli.models.look.second_look import SecondLook, Verify
from tools.claims import SEEDS, SWAPPED, caption, colors_of, file_of, measure_claims, shown, swapped, to_json
from tools.support import SEEDS as OTHERS

SCENES = [held_out(seed) for seed in VALIDATION_SEEDS[90:93]]


def test_scenes_are_not_those_of_the_second_look():
    for split, seeds in SEEDS.items():
        assert {*seeds[:1000]}.isdisjoint(OTHERS[split][:1000])


@pytest.mark.parametrize("scene", SCENES, ids=str)
def test_a_swapped_colour_is_wrong(scene):
    colors, others = colors_of(scene), swapped(scene)
    assert others.keys() == colors.keys() == scene.objects.keys()
    for name, color in others.items():
        assert color in COLORS
        assert all(thing.color not in (color,) for thing in scene.objects[name])
        assert all(thing.color == colors[name] for thing in scene.objects[name])


@pytest.mark.slow
def test_every_colour_counts_with_the_support_of_a_look_at_its_text():
    methods = load_methods()
    found = measure_claims(methods, SCENES)
    look = SecondLook(methods["greedy"], Verify(claims="objects,colors"))
    for kind in (SWAPPED, "own, greedy"):
        rows = []
        for number, scene in enumerate(SCENES):
            image = render(scene)[0]
            texts = [caption(colors_of(scene)), caption(swapped(scene))]
            if kind != SWAPPED:
                texts = [methods["greedy"].caption(image).text]
            for text in texts:
                for claim in look.check(image, text).claims:
                    [(_, _, name)] = mentions(claim.thing)
                    things = scene.objects.get(name)
                    rows += [(number, claim.value == things[0].color, claim.support)] if things else []
        assert [row[:2] for row in found[kind]] == [row[:2] for row in rows]
        assert [row.support for row in found[kind]] == pytest.approx([row[2] for row in rows], abs=1e-4)
    content = json.loads(to_json("validation", len(SCENES), 0.5, found))["claims"][SWAPPED]
    true = np.array([row.there for row in found[SWAPPED]])
    support = np.array([row.support for row in found[SWAPPED]])
    assert content["auroc"]["value"] == pytest.approx(100 * auroc(true, support))
    assert (content["true"], content["wrong"]) == (true.sum(), (~true).sum())
    assert content["below"] == pytest.approx([(support[true] < 0.5).mean(), (support[~true] < 0.5).mean()])
    threshold = SupportReport.of(Source("", "", {}), len(SCENES), found[SWAPPED]).threshold
    assert (support[true] < threshold).mean() <= 0.03 < (support[true] < threshold + 0.001).mean()


def test_the_measured_figures_meet_the_aim():
    """The aim, an AUROC of 85, is met for colours from elsewhere and for the model's own."""
    content = json.loads(file_of("test").read_text(encoding="utf-8"))
    assert content["threshold"] == presets.find("demo").verify.thresholds["colors"]
    figures = [content["claims"][name]["auroc"]["value"] for name in (SWAPPED, "own, sira")]
    assert min(figures) >= 85
    table = shown(file_of("test").read_text(encoding="utf-8"))
    assert f"| {SWAPPED} " in table
    assert f"{content['scenes']:,} test scenes" in table
