"""`sira calibrate support`: the threshold between supported and not, from captions with labels, or by controls."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sira_cli.analysis.calibration import support
from sira_cli.analysis.calibration.support import Source, SupportReport, WithControls, from_files
from sira_cli.demo.export import export
from sira_cli.demo.labelled import scene_report
from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import VALIDATION_SEEDS, render
from sira_cli.errors import DataError
from sira_cli.eval.chair import HEADS
from sira_cli.look.second_look import SecondLook
from sira_cli.look.words import shipped
from sira_cli.models import presets
from sira_cli.run.lvlm import load
from tests.support.eval.writing import lines, read, save
from tests.support.helpers import under
from tests.support.records import caption_record

VERIFY = {"mode": "flag", "words": "chair+amber/1", "question": "?"}
SOURCE = Source("m", "r", VERIFY)
WORDS = shipped()
TEXTS = (
    "A dog stands there. There is a bowl beside a blue bicycle.",
    "There is a house. A horse stands in front of it.",
    "A boat with an elephant, two chairs, a cup and a clock.",
)


def record(name: str, *objects: tuple[str, float], **more) -> dict:
    claims = [{"thing": thing, "spans": [], "support": support, "neither": 0} for thing, support in objects]
    return caption_record(name, **{"verify": VERIFY | {"min_support": 0.5}, "objects": claims} | more)


# --- with labels


@pytest.mark.parametrize("count", [5, 60, 700])
def test_the_threshold_is_what_the_rule_says(count):
    """The highest that leaves 3 % of the real objects below, and the lowest that so leaves 98 % of the controls."""
    rng = np.random.default_rng(count)
    kinds = (bool(kind) for kind in rng.random(count) < 0.5)
    supports = [(kind, float(rng.beta(5, 1) if kind else rng.beta(1, 3))) for kind in kinds]
    grid = [number / 1000 for number in range(1001)]
    first, second = ([support for kind, support in supports if kind is wanted] for wanted in (True, False))
    by_labels, by_controls = (SupportReport.of(SOURCE, by, supports, 20) for by in ("labels", "controls"))
    assert by_labels.threshold == max(each for each in grid if np.mean([one < each for one in first]) <= 0.03)
    enough = [each for each in grid if 100 * sum(one < each for one in second) >= 98 * len(second)]
    assert by_controls.threshold == min(enough)
    for report in (by_labels, by_controls):
        kinds = [np.array(kind) for kind in (first, second)]
        assert report.below == pytest.approx([np.mean(kind < report.threshold) for kind in kinds])
        assert report.yes == pytest.approx([np.mean(kind >= 0.5) for kind in kinds])
        assert [*report.objects.values()] == [len(first), len(second)]
    report = SupportReport.of(SOURCE, "labels", [(True, 0.1)] * 3 + [(True, 0.9)] * 97, 9)
    assert (report.threshold, report.below[0]) == (0.9, 0.03)  # 3 % exactly
    assert SupportReport.of(SOURCE, "controls", [(False, 0.1)] * 98 + [(False, 0.9)] * 2, 9).threshold == 0.101
    assert SupportReport.of(SOURCE, "controls", [(False, 1.0)] * 9, 9).threshold == 1
    with pytest.raises(DataError, match="no real objects could be measured"):
        SupportReport.of(SOURCE, "labels", [(False, 0.2)], 1)


def test_labels_of_ones_own(tmp_path):
    """Synonyms and plurals count, names that the list does not know are compared as they are."""
    objects = record("a.jpg", ("dog", 0.9), ("automobile", 0.8), ("lightsaber", 0.7)), record("b.jpg", ("dog", 0.2))
    records = lines(tmp_path / "captions.jsonl", [*objects, record("c.jpg", status="error")])
    labels = save(tmp_path / "labels.json", {"a.jpg": ["Dogs", "cars", "lightsaber"], "b.jpg": ["cat"]})
    source, captions = support.read_captions([records])
    assert source == SOURCE
    expected = [(True, 0.9), (True, 0.8), (True, 0.7), (False, 0.2)]
    assert support.labelled_by(captions, support.truth_of(captions, labels)) == expected
    for content, message in (
        ({"a.jpg": ["dog"]}, r"has no labels of 'b\.jpg' .*line 2"),
        ({"a.jpg": "dog"}, "expected a list of objects"),
    ):
        with pytest.raises(DataError, match=message):
            from_files([records], save(labels, content))


def test_a_picture_that_was_captioned_again_counts_once(tmp_path):
    """Its newest record does: of a run that was stopped before it dropped the others."""
    records = [record("a.jpg", ("dog", 0.9)), record("b.jpg", ("cat", 0.8)), record("a.jpg", ("dog", 0.1))]
    _, captions = support.read_captions([lines(tmp_path / "captions.jsonl", records)])
    found = {caption.file_name: caption.support for caption in captions}
    assert (len(captions), found) == (2, {"a.jpg": {"dog": 0.1}, "b.jpg": {"cat": 0.8}})


def test_labels_of_coco(tmp_path):
    """Objects that CHAIR's list does not have are left out, and counted."""
    scene = held_out(VALIDATION_SEEDS[60])
    export([scene], tmp_path / "scenes")
    (picture,) = (tmp_path / "scenes/images").iterdir()
    there = next(name for name in scene.objects if name in HEADS)
    objects = (there, 0.9), ("lightsaber", 0.7), ("giraffe", 0.1)
    report = from_files([lines(tmp_path / "a.jsonl", [record(picture.name, *objects)])], tmp_path / "scenes/coco")
    assert (report.objects, report.unknown) == ({"real objects": 1, "hallucinated objects": 1}, 1)
    assert report.threshold == 0.9
    with pytest.raises(DataError, match=r"line 1: 'mine\.jpg' is not a file name of COCO"):
        from_files([lines(tmp_path / "other.jsonl", [record("mine.jpg", ("dog", 0.5))])], tmp_path / "scenes/coco")


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([caption_record("a.jpg")], r"line 1: not a record with .*`verify=` flag"),
        ([record("a.jpg", ("dog", 0.5), verify={"mode": "guide"})], "not a record with a second look"),
        ([record("a.jpg"), record("b.jpg", revision="other")], r"line 1 and .*line 2: made with different models"),
        ([record("a.jpg", status="error")], "holds no captions"),
        ([record("a.jpg", verify=VERIFY | {"source": "answer"})], "the server of m tells no probabilities"),
    ],
)
def test_records_that_cannot_be_used(tmp_path, records, message):
    with pytest.raises(DataError, match=message):
        support.read_captions([lines(tmp_path / "captions.jsonl", records)])


def test_scenes_without_files(sira):
    code, out, _ = sira("calibrate", "support", "-p", "demo", "--limit", 3, "--json", "-q")
    assert (code, json.loads(out)) == (0, json.loads(scene_report(load("demo", method="sira"), 3).to_json()))


def test_sampled_captions_of_scenes_are_the_same_in_any_batch(demo, monkeypatch):
    check, captions = SecondLook.check, list[str]()

    def noted(look, image, text):
        captions.append(text)
        return check(look, image, text)

    monkeypatch.setattr(SecondLook, "check", noted)
    lvlm = under(demo, "sira", temperature=1.0, max_new_tokens=12)
    scene_report(lvlm, 3)
    monkeypatch.setattr("sira_cli.demo.labelled.BATCH", 1)
    scene_report(lvlm, 3)
    assert captions[:3] == captions[3:]


def test_a_preset_is_written_of_the_model_of_the_records(sira, tmp_path):
    records = lines(tmp_path / "captions.jsonl", [record("a.jpg", ("dog", 0.9), ("cat", 0.1))])
    command = ("calibrate", "support", records, "--labels", save(tmp_path / "labels.json", {"a.jpg": ["dog"]}))
    code, out, err = sira(*command, "-p", "demo", "--write-preset", tmp_path / "mine.yaml")
    assert code == 2
    assert out == ""
    assert "the records are of m, the preset is for bundled" in err
    code, out, err = sira(*command, "-m", "m", "--write-preset", tmp_path / "mine.yaml")
    assert code == 0
    assert "min_support = 0.9" in out
    assert "only 1 hallucinated objects" in err
    assert presets.find(str(tmp_path / "mine.yaml")).verify.min_support == 0.9


# --- by controls


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
    assert words.name != WORDS.name
    for text in texts:
        own, found = WORDS.things(text), words.things(text)
        controls = found[len(own) :]
        groups, others = {control.group for control in controls}, heads - {thing.group for thing in own}
        assert found == [*own, *controls] == words.things(text)
        assert groups <= others
        assert len(groups) == len(controls) == min(8, len(others))
        assert not any(control.spans for control in controls)
        assert all(WORDS.group(control.name) == control.group for control in controls)
    drawn = {tuple(control.group for control in words.things(f"Nothing {number}.")) for number in range(9)}
    assert len(drawn) == 9  # each text draws anew
    with pytest.raises(DataError, match="name no different things of a list"):
        WithControls(WORDS, ["A dog.", "The puppy."])


def test_the_report_counts_named_things_and_controls():
    def check(named=(), controls=(), **more):
        objects = [{"spans": [[0, 1]], "support": each} for each in named]
        return record("a.jpg", objects=objects + [{"spans": [], "support": each} for each in controls], **more)

    report = support.from_controls([check([0.9, 0.2], [0.1, 0.5]), check([0.6], [0.3, 0.7]), check(status="error")])
    assert report.pictures == 2
    assert report.failed == 1
    assert report.threshold == 0.701
    assert [doubt.partition(":")[0] for doubt in report.doubts()] == ["support means little here", "only 4 controls"]
    with pytest.raises(DataError, match="no picture could be asked about"):
        support.from_controls([check(status="error")])


def test_captions_are_asked_about_and_answers_are_kept(sira, tmp_path):
    words, look = WithControls(WORDS, TEXTS), SecondLook(load("demo", method="greedy"))
    alone = {True: [], False: []}
    for number, text in enumerate(TEXTS):
        save(tmp_path / f"captions/{number}.txt", text)
        image = render(held_out(VALIDATION_SEEDS[70 + number]))[0]
        image.save(tmp_path / f"captions/{number}.png")
        for thing in words.things(text):  # slowly, each in a question of its own
            alone[bool(thing.spans)].append(look.claims(image, [thing])[0].support)
    file, preset = tmp_path / "answers.jsonl", tmp_path / "mine.yaml"
    command = ("calibrate", "support", tmp_path / "captions", "--controls", "-p", "demo", "--json", "--answers", file)
    code, out, err = sira(*command)
    assert code == 0, err
    found = json.loads(out)
    threshold = next(each for each in range(1001) if np.mean([one < each / 1000 for one in alone[False]]) >= 0.98)
    assert found["threshold"] == pytest.approx(threshold / 1000, abs=0.0011)
    assert [found["pictures"], *found["objects"].values()] == [3, len(alone[True]), len(alone[False])]
    records = read(file)
    asked = [(bool(each["spans"]), each["support"]) for one in records for each in one["objects"]]
    for kind in (True, False):
        assert [one for is_named, one in asked if is_named is kind] == pytest.approx(alone[kind], abs=1e-5)
    for each in records:
        assert each["support"] == min(one["support"] for one in each["objects"] if one["spans"])
    code, again, err = sira(*command, "--write-preset", preset)
    assert (code, json.loads(again)) == (0, found), err
    assert presets.find(str(preset)).verify.min_support == found["threshold"]
