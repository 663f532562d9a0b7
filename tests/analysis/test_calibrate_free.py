"""`sira calibrate free`: weights of support without questions, by logistic regression on captions with labels."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from sira_cli.analysis.calibration.free_support import calibrate, fit, measure_numbers
from sira_cli.analysis.calibration.support import Labelled, from_coco
from sira_cli.demo.export import export
from sira_cli.demo.labelled_captions import label_scenes
from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import VALIDATION_SEEDS, scene_picture
from sira_cli.errors import DataError
from sira_cli.methods.calibrated import Calibration
from sira_cli.models.free_support import NUMBERS, Weights, streams_of
from sira_cli.models.loading import load

SCENES = 12  # of which greedy's captions name things that are not there


def drawn(count=200, seed=5):
    """Numbers of different sizes, and labels that follow them in part."""
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(count, 3)) * [1.0, 50.0, 0.01] + [0.0, 300.0, -1.0]
    there = rng.random(count) < 1 / (1 + np.exp(-(numbers[:, 0] + (numbers[:, 1] - 300) / 50 + 1)))
    return numbers, there


def loss(weights, numbers, there, ridge):
    """What the weights are to make least, from its definition; they are for the numbers as they are."""
    spread = numbers.std(axis=0)
    scores = numbers @ weights[:-1] + weights[-1]
    return np.logaddexp(0, -np.where(there, scores, -scores)).sum() + ridge / 2 * ((weights[:-1] * spread) ** 2).sum()


@pytest.mark.parametrize("ridge", [1.0, 30.0])
def test_no_other_weights_are_better(ridge):
    """The slope is 0 on all sides, and thousands of other weights, near and far, give more."""
    numbers, there = drawn()
    found = fit(torch.tensor(numbers), torch.tensor(there), ridge).numpy()
    spread = numbers.std(axis=0)
    best = loss(found, numbers, there, ridge)

    def moved(by):
        """Weights of standardised numbers and their bias, moved."""
        weights = found[:-1] + by[:-1] / spread
        return np.append(weights, found[-1] + by[-1] - (by[:-1] / spread) @ numbers.mean(axis=0))

    for axis in np.eye(4):
        one, other = (loss(moved(by * axis), numbers, there, ridge) for by in (1e-4, -1e-4))
        assert abs(one - other) / 2e-4 < 1e-4
    rng = np.random.default_rng(1)
    for size in (1e-3, 0.1, 3.0):
        assert all(loss(moved(by), numbers, there, ridge) > best for by in size * rng.normal(size=(1_000, 4)))


def test_what_tells_nothing_does_no_harm():
    """A constant column gets no weight, and labels that can be told without error get weights all the same."""
    numbers = torch.tensor([[1.0, float(number)] for number in range(20)])
    weights = fit(numbers, numbers[:, 1] > 9)
    assert weights[0] == 0
    assert weights.isfinite().all()
    assert ((numbers.double() @ weights[:-1] + weights[-1] > 0) == (numbers[:, 1] > 9)).all()
    with pytest.raises(DataError, match="things that are there and things that are not"):
        fit(numbers, torch.ones(20, dtype=torch.bool))


def test_weights_are_those_of_the_captions(tmp_path):
    """Labelled by what was drawn, or as pictures of COCO: only things that CHAIR does not know are left out."""
    scenes = [held_out(seed) for seed in VALIDATION_SEEDS[:SCENES]]
    lvlm = load("demo", method="greedy", max_new_tokens=60)
    captions = [found for _, found in measure_numbers(lvlm, [scene_picture(scene) for scene in scenes], 4)]
    single = [found for _, found in measure_numbers(lvlm, [scene_picture(scenes[0])])]
    assert [*single[0].support] == [*captions[0].support]
    torch.testing.assert_close(
        torch.tensor([*single[0].support.values()]), torch.tensor([*captions[0].support.values()]), atol=1e-4, rtol=1e-4
    )
    calibration, reports = calibrate({"greedy": (lvlm, captions)}, label_scenes)
    calibration.write(tmp_path / "a.safetensors")
    again = Calibration.read(tmp_path / "a.safetensors")
    weights = Weights.read(again.tensors, "greedy")
    assert Weights.read(again.tensors, "sira") is None
    assert again.origin.made_from["streams"] == {"greedy": streams_of(lvlm)}
    labelled = label_scenes(captions)
    there = torch.tensor([one.there for one in labelled])
    numbers = torch.tensor([one.support for one in labelled])
    assert numbers.shape[1] == len(NUMBERS)
    torch.testing.assert_close(weights.values, fit(numbers, there))
    support = np.array(weights.support(numbers.tolist()))
    report = reports["greedy"]
    assert (report.there, report.absent) == (int(there.sum()), int((~there).sum()))
    below = [(support[there.numpy()] < line).mean() for line in (weights.line, weights.line + 0.001)]
    assert below[0] <= 0.03 < below[1]
    to = export(scenes, tmp_path / "scenes")
    names = {scene.seed: path.name for scene, path in zip(scenes, sorted(to.images.iterdir()), strict=True)}
    moved = [
        type(each)(each.where, names[int(each.file_name.removeprefix("scene "))], each.support) for each in captions
    ]
    by_coco, unknown = from_coco(moved, to.coco)
    assert len(by_coco) == len(labelled) - unknown
    assert {(one.there, one.support) for one in by_coco} <= {(one.there, one.support) for one in labelled}
    assert isinstance(by_coco[0], Labelled)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["photos", "-p", "demo"], "say what is there with --annotations PATH"),
        (["photos", "-p", "demo", "--annotations", "a", "--labels", "b"], "one of them"),
        (["photos", "-p", "demo", "--scenes"], "leave out these"),
        (["-p", "demo", "--method", "vcd"], "sira calibrate free needs method"),
        (["-p", "demo", "--method", "greedi"], "greedi"),
    ],
)
def test_wrong_options(sira, options, message):
    code, out, err = sira("calibrate", "free", *options)
    assert (code, out) == (2, "")
    assert message in err


def test_pictures_of_ones_own(sira, home, tmp_path):
    """The command, with labels of one's own; against the same scenes labelled by what was drawn."""
    scenes = [held_out(seed) for seed in VALIDATION_SEEDS[:SCENES]]
    to = export(scenes, tmp_path / "scenes")
    names = [path.name for path in sorted(to.images.iterdir())]
    labels = tmp_path / "there.json"
    labels.write_text(json.dumps({name: [*scene.objects] for name, scene in zip(names, scenes, strict=True)}))
    command = ("calibrate", "free", to.images, "--labels", labels, "-p", "demo", "--method", "greedy", "-b", 4)
    code, out, err = sira(*command)
    assert code == 0
    assert "captions of greedy:" in out
    lvlm = load("demo", method="greedy")
    captions = [found for _, found in measure_numbers(lvlm, [scene_picture(scene) for scene in scenes], 4)]
    calibration, reports = calibrate({"greedy": (lvlm, captions)}, label_scenes)
    (path,) = (home / "calibrations" / "support").iterdir()
    assert f"{path}: --verify free finds it by the model" in err
    written = Calibration.read(path)
    torch.testing.assert_close(
        written.tensors["greedy.weights"], calibration.tensors["greedy.weights"], atol=1e-3, rtol=1e-3
    )
    assert f"min_support = {reports['greedy'].line:g}" in out
    assert sira(*command)[0] == 2  # not without --overwrite
    caption = ("caption", to.images / names[0], "-p", "demo", "--verify", "free", "--json")
    assert sira(*caption)[0] == 2  # the weights are for greedy only
    code, out, _ = sira(*caption, "--method", "greedy")
    assert code == 0
    assert json.loads(out)["verify"]["min_support"] == pytest.approx(float(written.tensors["greedy.line"]))
