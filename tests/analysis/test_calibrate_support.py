"""`sira calibrate support`: the threshold between supported and not, from captions with labels."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sira_cli.analysis.calibration.support import Labelled, Source, SupportReport, from_coco, from_labels, read_captions
from sira_cli.demo.export import export
from sira_cli.demo.labelled import scene_report
from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import VALIDATION_SEEDS, render
from sira_cli.errors import DataError
from sira_cli.eval.coco import HEADS
from sira_cli.models import presets
from sira_cli.run.lvlm import load

SOURCE = Source("m", "r", {"mode": "flag", "words": "chair+amber/1", "question": "?"})
SEEDS = VALIDATION_SEEDS[60:64]


def record(name: str, *objects: tuple[str, float], **more) -> str:
    return json.dumps(
        {
            "status": "ok",
            "file_name": name,
            "model": "m",
            "revision": "r",
            "verify": {"mode": "flag", "words": "chair+amber/1", "question": "?", "min_support": 0.5},
            "objects": [{"thing": thing, "spans": [], "support": support, "neither": 0} for thing, support in objects],
            **more,
        }
    )


def write(path, *lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("share", [0.0, 0.03, 0.1, 1.0])
def test_the_line_is_the_highest_that_keeps_the_promise(share):
    rng = np.random.default_rng(1)
    named = [
        Labelled(number % 20, bool(there), float(rng.beta(5, 1) if there else rng.beta(1, 2)))
        for number, there in enumerate(rng.random(300) < 0.8)
    ]
    report = SupportReport.of(SOURCE, 20, named, false_alarms=share)
    there = [one.support for one in named if one.there]
    kept = [
        threshold for threshold in range(1001) if sum(each < threshold / 1000 for each in there) <= share * len(there)
    ]
    assert report.threshold == max(kept) / 1000
    below = report.below[report.threshold]
    assert below[0] <= share
    assert below[1] == np.mean([one.support < report.threshold for one in named if not one.there])
    assert (report.there, report.there + report.absent) == (len(there), 300)
    assert report.auroc.low < report.auroc.value < report.auroc.high
    assert json.loads(report.to_json())["threshold"] == report.threshold


def test_labels_of_ones_own(tmp_path):
    """Synonyms and plurals count, names that the list does not know are compared as they are."""
    records = write(
        tmp_path / "captions.jsonl",
        record("a.jpg", ("dog", 0.9), ("automobile", 0.8), ("lightsaber", 0.7)),
        record("b.jpg", ("dog", 0.2)),
        record("c.jpg", status="error"),
    )
    labels = tmp_path / "labels.json"
    labels.write_text(json.dumps({"a.jpg": ["Dogs", "cars", "lightsaber"], "b.jpg": ["cat"]}))
    source, captions = read_captions([records])
    assert source == SOURCE
    assert from_labels(captions, labels) == [
        Labelled(0, True, 0.9),
        Labelled(0, True, 0.8),
        Labelled(0, True, 0.7),
        Labelled(1, False, 0.2),
    ]
    labels.write_text('{"a.jpg": ["dog"]}')
    with pytest.raises(DataError, match=r"has no labels of 'b\.jpg' .*line 2"):
        from_labels(captions, labels)
    labels.write_text('{"a.jpg": "dog"}')
    with pytest.raises(DataError, match="expected a list of objects"):
        from_labels(captions, labels)


def test_labels_of_coco(tmp_path):
    """What CHAIR's list does not have is left out, and counted."""
    table = tmp_path / "truth.json"
    table.write_text('{"7": ["dog", "car"], "8": []}')
    records = write(
        tmp_path / "captions.jsonl",
        record("COCO_val2014_000000000007.jpg", ("puppy", 0.9), ("automobile", 0.8), ("tree", 0.7)),
        record("photos/COCO_val2014_000000000008.jpg", ("dog", 0.1)),
    )
    _, captions = read_captions([records])
    labelled, unknown = from_coco(captions, table)
    assert labelled == [Labelled(0, True, 0.9), Labelled(0, True, 0.8), Labelled(1, False, 0.1)]
    assert unknown == 1
    _, captions = read_captions([write(tmp_path / "other.jsonl", record("mine.jpg", ("dog", 0.5)))])
    with pytest.raises(DataError, match=r"line 1: 'mine\.jpg' is not a file name of COCO"):
        from_coco(captions, table)


def test_records_that_cannot_be_used(tmp_path):
    plain = write(tmp_path / "plain.jsonl", json.dumps({"status": "ok", "file_name": "a.jpg", "text": "A dog."}))
    with pytest.raises(DataError, match=r"line 1: not a record with a second look: .*`verify=` flag"):
        read_captions([plain])
    mended = json.loads(record("a.jpg", ("dog", 0.5)))
    mended["verify"]["mode"] = "guide"
    with pytest.raises(DataError, match="not a record with a second look"):
        read_captions([write(tmp_path / "mended.jsonl", json.dumps(mended))])
    both = write(tmp_path / "both.jsonl", record("a.jpg", ("dog", 0.5)), record("b.jpg", revision="other"))
    with pytest.raises(DataError, match=r"line 1 and .*line 2: made with different models"):
        read_captions([both])
    with pytest.raises(DataError, match="holds no captions"):
        read_captions([write(tmp_path / "none.jsonl", record("a.jpg", status="error"))])
    with pytest.raises(DataError, match="no labelled object is in its picture"):
        SupportReport.of(SOURCE, 1, [Labelled(0, False, 0.5)])


@pytest.mark.slow
def test_of_files_and_of_scenes_it_is_the_same(sira, tmp_path):
    """From pictures in COCO's format, by the commands; against the same scenes labelled by what was drawn."""
    scenes = [held_out(seed) for seed in SEEDS]
    export(scenes, tmp_path / "scenes")
    records = tmp_path / "captions.jsonl"
    command = ("caption", tmp_path / "scenes/images", "-p", "demo", "-o", records, "--verify", "flag")
    assert sira(*command, "-b", 4, "-q")[0] == 0
    command = ("calibrate", "support", records, "--labels", tmp_path / "scenes/coco", "-p", "demo")
    preset = tmp_path / "mine.yaml"
    code, out, err = sira(*command, "--json", "--write-preset", preset)
    assert code == 0
    found = json.loads(out)
    lvlm = load("demo", method="sira")
    there, absent, others = [], [], []
    for scene in scenes:
        image = render(scene)[0]
        for claim in lvlm.check(image, lvlm.caption(image).text).objects:
            kind = others if claim.thing not in HEADS else there if claim.thing in scene.objects else absent
            kind.append(claim.support)
    counts = [found[name] for name in ("pictures", "there", "absent", "unknown")]
    assert counts == [len(SEEDS), len(there), len(absent), len(others)]
    assert found["threshold"] == pytest.approx(min(there), abs=0.0011)  # 3 % of so few is none
    assert presets.read(preset).verify.min_support == found["threshold"]
    assert "mine.yaml: min_support = " in err
    assert sira(*command, "--write-preset", preset)[0] == 2
    code, out, _ = sira(*command)
    assert code == 0
    assert f"min_support = {found['threshold']:g}" in out


def test_scenes_without_files(sira):
    lvlm = load("demo", method="sira")
    code, out, _ = sira("calibrate", "support", "-p", "demo", "--limit", 3, "--json", "-q")
    assert code == 0
    assert json.loads(out) == json.loads(scene_report(lvlm, 3).to_json())


def test_a_preset_of_another_model_is_not_written(sira, tmp_path):
    records = write(tmp_path / "captions.jsonl", record("a.jpg", ("dog", 0.9), ("cat", 0.1)))
    (tmp_path / "labels.json").write_text('{"a.jpg": ["dog"]}')
    command = ("calibrate", "support", records, "--labels", tmp_path / "labels.json", "-p", "demo")
    code, out, err = sira(*command, "--write-preset", tmp_path / "mine.yaml")
    assert (code, out) == (2, "")
    assert "the records are of m, the preset is for bundled" in err
    code, out, err = sira(*command)
    assert code == 0
    assert "min_support = 0.9" in out
    assert "only 1 hallucinated objects" in err
