"""`sira calibrate support --controls`: the threshold between supported and not, without labels."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sira_cli.analysis.calibration.support import ControlsReport, WithControls, interval_of, threshold_of
from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import VALIDATION_SEEDS, render
from sira_cli.errors import DataError
from sira_cli.look.second_look import SecondLook
from sira_cli.look.words import shipped
from sira_cli.models import presets
from sira_cli.run.lvlm import load
from tests.support.endpoint import named, plain, scripted, tokens

TEXTS = (
    "A dog stands there. There is a bowl beside a blue bicycle.",
    "There is a house. A horse stands in front of it.",
    "A boat with an elephant, two chairs, a cup and a clock.",
)
WORDS = shipped()


@pytest.fixture
def captions(tmp_path):
    folder = tmp_path / "captions"
    folder.mkdir()
    for number, text in enumerate(TEXTS):
        render(held_out(VALIDATION_SEEDS[70 + number]))[0].save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text(text)
    return folder


def check(named=(), controls=(), **more):
    objects = [{"thing": f"n{each}", "spans": [[0, 1]], "support": each, "neither": 0} for each in named]
    objects += [{"thing": f"c{each}", "spans": [], "support": each, "neither": 0} for each in controls]
    verify = {"mode": "flag", "question": "?", "words": "w", "min_support": 0.5}
    return {"status": "ok", "model": "m", "revision": "r", "verify": verify, "objects": objects, **more}


@pytest.mark.parametrize("percentile", [0, 50, 98, 99.9, 100])
def test_the_line_is_the_lowest_that_so_many_controls_do_not_reach(percentile):
    rng = np.random.default_rng(3)
    for count in (1, 7, 400):
        controls = rng.beta(1, 3, count)
        enough = [each for each in range(1001) if 100 * sum(controls < each / 1000) >= percentile * count]
        assert threshold_of(controls, percentile) == min(enough) / 1000
    assert threshold_of(np.ones(9)) == 1


def test_controls_are_what_only_other_captions_name():
    texts = [
        "A dog and a car.",
        "Two automobiles, and no cat.",
        "A puppy, a horse, a bowl, a cup, a clock, a boat, a chair.",
        "A house, a tree and a cat on a bench.",
        "",
    ]
    heads = {thing.group for text in texts for thing in WORDS.things(text)}
    words = WithControls(WORDS, texts)
    for text in texts:
        own = WORDS.things(text)
        found = words.things(text)
        assert found[: len(own)] == own
        controls = found[len(own) :]
        groups = [control.group for control in controls]
        assert {control.spans for control in controls} <= {()}
        assert len({*groups}) == len(groups) == min(8, len(heads - {thing.group for thing in own}))
        assert {*groups} <= heads - {thing.group for thing in own}
        assert all(WORDS.group(control.name) == control.group for control in controls)
        assert words.things(text) == found
    assert words.name != WORDS.name
    with pytest.raises(DataError, match="name no different things of a list"):
        WithControls(WORDS, ["A dog.", "The puppy."])


def test_the_report_counts_named_things_and_controls():
    few = [check([0.9, 0.2], [0.1, 0.5]), check([0.6], [0.3, 0.7]), check(status="error")]
    report = ControlsReport.of(few, 75)
    assert (report.pictures, report.failed, report.named, report.controls) == (2, 1, 3, 4)
    assert report.threshold == 0.501
    assert report.yes == pytest.approx((2 / 3, 1 / 2))
    assert report.below[0.501] == pytest.approx((1 / 3, 3 / 4))
    assert next(report.doubts()).startswith("support means little here: 33% of the named")
    assert [*ControlsReport.of([check([0.9] * 3 + [0.2], [0.1, 0.5])], 50).doubts()] == [
        "only 2 controls: the threshold is uncertain"
    ]
    assert json.loads(report.to_json())["threshold"] == 0.501
    assert report.interval[0] <= 0.501 <= report.interval[1]
    with pytest.raises(DataError, match="no picture could be asked about"):
        ControlsReport.of([check(status="error")])


def test_the_interval_holds_the_true_threshold_and_four_times_the_pictures_halve_it():
    """Controls of one picture are alike, so pictures are drawn; the truth is that of very many pictures."""
    chance = np.random.default_rng(1)

    def draw(pictures):
        own = chance.normal(-3, 1, (pictures, 1))
        return 1 / (1 + np.exp(-own - chance.normal(0, 0.5, (pictures, 8))))

    true = np.percentile(draw(200_000), 90)
    few, many = ([interval_of([*draw(count)], 90, samples=100) for _ in range(40)] for count in (50, 200))
    for found in (few, many):
        assert sum(low - 0.001 <= true <= high + 0.001 for low, high in found) >= 33  # of 40; 38 are expected
    widths = [np.mean([high - low for low, high in found]) for found in (few, many)]
    assert widths[1] / widths[0] == pytest.approx(0.5, abs=0.1)


def slow_supports(lvlm):
    """Each thing in a question of its own."""
    words, look = WithControls(WORDS, TEXTS), SecondLook(lvlm)
    found = {True: [], False: []}
    for number, text in enumerate(TEXTS):
        image = render(held_out(VALIDATION_SEEDS[70 + number]))[0]
        for thing in words.things(text):
            found[bool(thing.spans)].append(look.claims(image, [thing])[0].support)
    return found


def test_captions_are_asked_about_and_answers_are_kept(sira, captions, tmp_path):
    lvlm = load("demo", method="greedy")
    support = slow_supports(lvlm)
    command = ("calibrate", "support", captions, "--controls")
    here = tmp_path / "here.jsonl"
    code, out, err = sira(*command, "-p", "demo", "--json", "--answers", here)
    assert code == 0, err
    found = json.loads(out)
    threshold = next(each for each in range(1001) if np.mean([one < each / 1000 for one in support[False]]) >= 0.98)
    assert found["threshold"] == pytest.approx(threshold / 1000, abs=0.0011)
    assert [found["pictures"], found["named"], found["controls"]] == [3, len(support[True]), len(support[False])]
    records = [json.loads(each) for each in here.read_text().splitlines()]
    asked = [(bool(each["spans"]), each["support"]) for record in records for each in record["objects"]]
    for kind in (True, False):
        assert [one for named, one in asked if named is kind] == pytest.approx(support[kind], abs=1e-5)
    assert [record["support"] for record in records] == [
        min(each["support"] for each in record["objects"] if each["spans"]) for record in records
    ]
    preset = tmp_path / "mine.yaml"
    code, again, err = sira(*command, "-p", "demo", "--answers", here, "--json", "--write-preset", preset)
    assert (code, json.loads(again)) == (0, found), err
    assert presets.find(str(preset)).verify.min_support == found["threshold"]


def test_records_without_probabilities_have_no_threshold(sira, captions, tmp_path):
    with scripted(lambda number, body: plain("Yes")) as (_, address):
        server = ("--endpoint", address, "-m", "m")
        assert sira("check", captions, *server, "-o", tmp_path / "checks.jsonl")[0] == 0
    labels = tmp_path / "labels.json"
    labels.write_text(json.dumps({f"captions/{number}.png": ["dog"] for number in range(3)}))
    code, _, err = sira("calibrate", "support", tmp_path / "checks.jsonl", "--labels", labels)
    assert (code, "tells no probabilities" in err) == (2, True)


def test_records_of_a_server_and_labels(sira, captions, tmp_path):
    def script(number, body):
        return tokens({"Yes": 0.6, "No": 0.2} if "dog" in named(body) else {"Yes": 0.2, "No": 0.6})

    with scripted(script) as (_, address):
        sira("check", captions, "--endpoint", address, "-m", "qwen3-vl:8b", "-o", tmp_path / "checks.jsonl")
    labels, preset = tmp_path / "labels.json", tmp_path / "mine.yaml"
    labels.write_text(json.dumps({f"captions/{number}.png": ["dog"] for number in range(3)}))
    command = ("calibrate", "support", tmp_path / "checks.jsonl", "--labels", labels)
    code, out, _ = sira(*command, "-m", "qwen3-vl:8b", "--write-preset", preset, "--json")
    assert (code, json.loads(out)["threshold"]) == (0, 0.749)  # 0.6 / 0.8, a little less in floats
    assert presets.find(str(preset)).verify.min_support == 0.749


def test_drawn_scenes_need_no_files(sira):
    code, out, err = sira("calibrate", "support", "-p", "demo", "--controls", "--limit", 3, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["pictures"] == 3
    assert found["controls"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["x", "--controls", "--labels", "x.json"], "--controls needs no labels"),
        (
            ["captions", "--controls", "-p", "demo", "--objects", "ask"],
            "--controls needs a list of objects: give --objects FILE",
        ),
        (["x", "--scenes"], "--scenes and --limit are for drawn scenes"),
        (["x"], "give the ground truth: --labels PATH"),
        (["--labels", "x.json"], "--labels is for records: also give PATH"),
        (["x", "--controls", "--scenes"], "give captions, or --scenes, not both"),
        (["x", "--answers", "a.jsonl"], "--answers and --objects are for --controls"),
        (["--controls", "--answers", "a.jsonl"], "--answers and --objects need PATH"),
        (["--controls", "-m", "m"], "name captions, such as those that `sira caption -o captions.jsonl` writes"),
    ],
)
def test_options_that_do_not_fit_are_refused(sira, captions, monkeypatch, options, message):
    monkeypatch.chdir(captions.parent)
    code, _, err = sira("calibrate", "support", *options)
    assert code == 2
    assert message in err
