"""`sira calibrate ict`: directions recomputed by hand, the probe, the questions, the command, and what ships."""

from __future__ import annotations

import itertools
import json
import statistics
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFilter
from torch.nn import functional as F

from sira_cli.analysis.calibration.ict import calibration, fit, train
from sira_cli.analysis.experiment import Units
from sira_cli.analysis.questions import Question, QuestionSet, black_out, with_places
from sira_cli.errors import DataError
from sira_cli.methods.calibrated import Calibration
from sira_cli.models import presets
from sira_cli.models.hub import find_checkpoint
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.sources import located
from sira_cli.run.events import Advanced, FailedPicture
from sira_cli.run.lvlm import load

BOX = (20, 30, 200, 180)


@pytest.mark.parametrize("width", [1, 5])
def test_the_probe_is_at_the_minimum_of_scikit_learns_objective(width: int):
    """Its slope there is zero, by automatic differentiation of scikit-learn's documented objective, C = 1.

    Two classes overlap, in features of very different sizes.
    """
    generator = torch.Generator().manual_seed(0)
    labels = torch.rand(80, generator=generator) < 0.4
    features = torch.randn(6, 80, width, generator=generator, dtype=torch.float64)
    features[..., 0] += 1.5 * labels
    features *= torch.logspace(-3, 2, 6, dtype=torch.float64)[:, None, None]
    weights = fit(features, labels).requires_grad_()
    signs = torch.where(labels, 1.0, -1.0).double()
    for each, own in zip(features, weights, strict=True):
        losses = torch.log1p(torch.exp(-signs * (each @ own[:-1] + own[-1])))
        objective = 0.5 * (own[:-1] ** 2).sum() + losses.sum()
        (slope,) = torch.autograd.grad(objective, weights)
        assert float(slope.abs().max()) < 1e-6


# --- directions by hand


def outlines(question: Question) -> list[tuple[float, ...]]:
    """Places are known for all but the last picture."""
    return [] if question.picture == "rocket" else [(20, 30, 200, 30, 200, 180, 20, 180)]


@pytest.fixture
def questions(photos) -> QuestionSet:
    asked = [
        ("coffee", "Is there a cup in the image?", True),
        ("coffee", "Is there a dog?", False),
        ("tall", "Is there a tree in the image?", True),
        ("tall", "Is there a boat in this image?", False),
        ("rocket", "Is there a bird?", True),
    ]
    return QuestionSet(
        (),
        tuple(Question(*each) for each in asked),
        lambda name: located(str(photos[name])),
        outlines=outlines,
        made_from={"files": ["by hand"]},
    )


def trained(lvlm, questions: QuestionSet, batch_size: int) -> tuple[Calibration, list[object]]:
    outputs, tensors = Units[torch.Tensor](), dict[str, torch.Tensor]()
    events = [*train(lvlm, questions, outputs, tensors, batch_size)]
    return calibration(lvlm, questions, outputs, tensors), events


@torch.no_grad()
def by_hand(lvlm, image: Image.Image, question: str, answer: str) -> list[torch.Tensor]:
    """What o_proj gives at the last token of a prompt that ends in an answer, layer by layer `[d]`."""
    content = [{"type": "image"}, {"type": "text", "text": question}]
    text = lvlm.processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    text += answer if text[-1].isspace() else f" {answer}"
    inputs = lvlm.processor(images=image, text=text, return_tensors="pt")
    found: list[torch.Tensor] = []
    handles = [
        layer.self_attn.o_proj.register_forward_hook(lambda module, args, output: found.append(output[0, -1]))
        for layer in lvlm.model.get_decoder().layers
    ]
    lvlm.model(**inputs, use_cache=False)
    for handle in handles:
        handle.remove()
    return found


def degraded(image: Image.Image, question: Question, level: str) -> tuple[Image.Image, str] | None:
    """Picture and answer of a degraded run, as METHODS.md and the published code have them."""
    blurred = image.filter(ImageFilter.GaussianBlur(radius=5))
    if level == "image":
        return (blurred, "yes") if question.expected else (image, "yes")
    if not question.expected:
        return blurred, "no"
    if question.picture == "rocket":
        return None
    hidden = image.copy()
    ImageDraw.Draw(hidden).rectangle(BOX, fill=(0, 0, 0))
    return hidden, "yes"


@pytest.mark.parametrize(
    ("checkpoint", "batch_size"),
    [
        ("qwen_folder", 4),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("llava_folder", 4), ("qwen_folder", 1))),
    ],
)
def test_directions_spreads_and_accuracies_are_those_worked_out_by_hand(checkpoint, batch_size, request, questions):
    lvlm = load(request.getfixturevalue(checkpoint), method="greedy", dtype="float32")
    made, events = trained(lvlm, questions, batch_size)
    assert sum(event.count for event in events if isinstance(event, Advanced)) == 14 + 2 * lvlm.layers  # 14 prefills
    assert made.origin.made_from["questions"] == {"image": 5, "object": 4}
    assert not any(layer.self_attn.o_proj._forward_hooks for layer in lvlm.model.get_decoder().layers)

    for level in ("image", "object"):
        clean, other = [], []
        for question in questions.questions:
            image = questions.picture(question.picture).open().image
            if (pair := degraded(image, question, level)) is not None:
                clean.append(by_hand(lvlm, image, question.text, "yes" if question.expected else "no"))
                other.append(by_hand(lvlm, pair[0], question.text, pair[1]))
        count = len(clean)
        order = torch.randperm(2 * count, generator=torch.Generator().manual_seed(0)).tolist()
        shuffled = [row >= count for row in order]
        for layer, number in itertools.product((0, 3, lvlm.layers - 1), (0, -1)):
            rows = torch.stack([each[layer] for each in clean + other]).double().unflatten(1, (-1, 32))[:, number]
            shift = rows[:count].mean(dim=0) - rows[count:].mean(dim=0)
            direction = shift / shift.norm()
            told = {
                name: made.tensors[f"{level}.{name}"][layer, number] for name in ("direction", "spread", "accuracy")
            }
            torch.testing.assert_close(told["direction"].double(), direction, atol=2e-3, rtol=0)
            spread = statistics.pstdev((rows @ direction).tolist())
            assert float(told["spread"]) == pytest.approx(spread, rel=2e-3)
            assert float(told["accuracy"]) == pytest.approx(slow_accuracy(rows[order], shuffled), abs=1e-6)


def slow_accuracy(x: torch.Tensor, labels: list[bool]) -> float:
    """Two folds of a logistic regression that goes down its slope by L-BFGS."""
    y, middle, shares = torch.tensor(labels).double(), len(x) // 2, []
    for tested, fitted in ((slice(0, middle), slice(middle, None)), (slice(middle, None), slice(0, middle))):
        parameters = [torch.zeros(size, dtype=torch.float64, requires_grad=True) for size in (32, 1)]
        search = torch.optim.LBFGS(parameters, max_iter=500, tolerance_grad=1e-10, line_search_fn="strong_wolfe")

        def loss(fitted: slice = fitted, parameters=parameters, search=search) -> torch.Tensor:
            search.zero_grad()
            logits = x[fitted] @ parameters[0] + parameters[1]
            value = F.binary_cross_entropy_with_logits(logits, y[fitted], reduction="sum")
            value = value + 0.5 * (parameters[0] ** 2).sum()
            value.backward()
            return value

        search.step(loss)
        predicted = (x[tested] @ parameters[0] + parameters[1]) > 0
        shares.append(float((predicted == y[tested].bool()).double().mean()))
    return statistics.fmean(shares)


def test_a_picture_that_fails_is_said_once_and_left_out(questions, llava_folder, tmp_path):
    def found(name: str) -> Picture:
        return located(str(tmp_path / "gone.png")) if name == "coffee" else questions.picture(name)

    lvlm = load(llava_folder, method="greedy", dtype="float32")
    made, events = trained(lvlm, QuestionSet((), questions.questions, found), 4)
    failed = [event for event in events if isinstance(event, FailedPicture)]
    assert [(each.picture, each.error) for each in failed] == [("coffee", f"{tmp_path / 'gone.png'}: no such file")]
    assert made.origin.made_from["questions"] == {"image": 3}
    assert not any(name.startswith("object") for name in made.tensors)


# --- questions and places


COCO = {
    "categories": [{"id": 1, "name": "dog"}, {"id": 2, "name": "hot dog"}, {"id": 3, "name": "couch"}],
    "annotations": [
        {"image_id": 1, "category_id": 1, "bbox": [2, 3, 4, 5], "segmentation": [[0, 0, 1, 0, 1, 1]]},
        {"image_id": 1, "category_id": 1, "bbox": [10, 3, 1, 1]},
        {"image_id": 1, "category_id": 2, "bbox": [0, 0, 9, 9]},
        {"image_id": 1, "category_id": 3, "bbox": [0, 0, 8, 8]},
        {"image_id": 2, "category_id": 3, "bbox": [0, 0, 1, 1]},
    ],
}
PICTURE = "COCO_val2014_000000000001.jpg"


def pope_file(path: Path, *rows: tuple[str, str], image: str = PICTURE) -> Path:
    told = [{"question_id": n, "image": image, "text": text, "label": label} for n, (text, label) in enumerate(rows)]
    path.write_text("".join(json.dumps(row) + "\n" for row in told), encoding="utf-8")
    return path


def test_a_region_is_that_of_the_object_in_the_question(tmp_path):
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "instances_val2014.json").write_text(json.dumps(COCO))
    found = with_places([pope_file(tmp_path / "a.json", ("A dog?", "yes"))], tmp_path, annotations=tmp_path)

    def about(text: str, picture: str = PICTURE) -> list[tuple[float, ...]]:
        corners = found.outlines(Question(picture, text, True))
        return [(each[0], each[1], each[4], each[5]) for each in corners]

    assert found.made_from["annotations"] == ["instances_val2014.json"]
    assert about("Is there a dog in the image?") == [(2.0, 3.0, 6.0, 8.0), (10.0, 3.0, 11.0, 4.0)]
    assert about("Is there a hot dog in the image?") == [(0.0, 0.0, 9.0, 9.0)]
    assert about("Is there a sofa in the image?") == [(0.0, 0.0, 8.0, 8.0)]  # another word for a couch
    assert about("Is there a doghouse in the image?") == about("Is there a dog in the image?", "other.jpg") == []
    for content, message in (({"categories": [], "annotations": []}, "has no objects"), (COCO, "with its `bbox`")):
        broken = content | {"annotations": [row | {"bbox": None} for row in content["annotations"]]}
        (tmp_path / "broken.json").write_text(json.dumps(broken))
        with pytest.raises(DataError, match=message):
            with_places([tmp_path / "a.json"], tmp_path, annotations=tmp_path / "broken.json")


def test_regions_are_black_and_the_rest_is_as_it_was():
    image = Image.new("RGB", (12, 12), (200, 100, 50))
    pixels = np.asarray(black_out(image, [(2, 3, 6, 3, 6, 8, 2, 8)]))
    assert not pixels[3:9, 2:7].any()
    assert (pixels.any(axis=2)).sum() == 12 * 12 - 6 * 5
    assert np.asarray(image).all()


def test_questions_of_several_files_are_asked_once(tmp_path):
    one = pope_file(tmp_path / "a.json", ("A dog?", "yes"), ("A cup?", "no"))
    two = pope_file(tmp_path / "b.json", ("A dog?", "yes"), ("A car?", "no"))
    found = with_places([one, two], tmp_path)
    asked = [(each.text, each.expected) for each in found.questions]
    assert (asked, found.outlines) == ([("A dog?", True), ("A cup?", False), ("A car?", False)], None)
    assert [each.text for each in with_places([two, one], tmp_path, 1).questions] == ["A dog?"]
    three = pope_file(tmp_path / "c.json", ("A cup?", "yes"))
    with pytest.raises(DataError, match="a question has both labels"):
        with_places([one, three], tmp_path)


# --- the command


@pytest.fixture
def data(tmp_path, photos) -> Path:
    pope_file(tmp_path / "pope.json", ("Is there a dog?", "yes"), ("Is there a cup?", "no"), ("A couch?", "yes"))
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / PICTURE).write_bytes(photos["coffee"].read_bytes())
    (tmp_path / "instances.json").write_text(json.dumps(COCO))
    return tmp_path


def test_made_once_it_is_found_by_the_model(sira, data, llava_folder, photos):
    home = data / "home"
    given = ("calibrate", "ict", "-m", llava_folder, "--questions", data / "pope.json", "--images", data / "images")
    ask = ("ask", photos["coffee"], "Hm?", "-m", llava_folder, "--method", "ict", "--max-new-tokens", 3, "--json")
    code, out, err = sira(*given, "--annotations", data / "instances.json", home=home)
    assert (code, out) == (0, "")
    for line in ("image level: 3 questions; the best of 48 slices separates", "object level: 3 questions"):
        assert line in err
    assert "--method ict finds it by the model" in err
    (path,) = (home / "calibrations" / "ict").iterdir()
    origin = Calibration.read(path).origin
    assert (origin.kind, origin.made_from["files"]) == ("ict", ["pope.json"])
    assert (origin.made_from["blur"], origin.made_from["seed"]) == (5.0, 0)
    code, out, _ = sira(*ask, home=home)
    assert code == 0
    assert json.loads(out)["method_settings"]["calibration"].startswith("sha256:")
    code, _, err = sira(*given, home=home)
    assert (code, "exists: replace it with --overwrite" in err) == (2, True)
    code, _, err = sira(*given, "--overwrite", home=home)
    assert (code, "the image level only" in err) == (0, True)
    code, _, err = sira(*ask, "--set", "level=object", home=home)
    assert (code, "has no object level, only image" in err) == (2, True)


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        ([], 2, "give --questions FILE... with --images FOLDER, or --scenes"),
        (["--scenes", "--images", "images"], 2, "not both"),
        (["--questions", "pope.json", "--images", "nowhere"], 2, "--images nowhere: is not a folder"),
        (["--scenes", "--output", "pope.json"], 2, "--output pope.json: exists"),
    ],
)
def test_what_is_refused_before_a_model_is_loaded(sira, data, monkeypatch, given, code, message):
    monkeypatch.chdir(data)
    monkeypatch.setattr("sira_cli.run.lvlm.load", None)
    found, out, err = sira("calibrate", "ict", "-m", "nowhere/at-all", *given)
    assert (found, out) == (code, "")
    assert message in err


# --- the shipped calibration


@pytest.fixture
def shipped() -> Calibration:
    found = presets.find_calibration("ict", find_checkpoint(presets.find("demo"), offline=True).revision)
    assert found is not None
    assert found.parent == presets.SHIPPED_CALIBRATIONS / "ict"
    return Calibration.read(found)


def test_the_bundled_model_comes_with_a_calibration(shipped):
    origin = shipped.origin
    assert (origin.kind, origin.model) == ("ict", presets.BUNDLED)
    assert origin.made_from["questions"] == {"image": 600, "object": 600}
    first, last = map(int, origin.made_from["scenes"].split("-"))
    assert 1_000_000 <= first < last < 2_000_000  # validation scenes


@pytest.mark.slow
def test_the_command_in_the_documents_makes_the_shipped_one(tmp_path, sira, shipped):
    assert sira("calibrate", "ict", "-p", "demo", "-o", tmp_path / "again.safetensors", "-q")[0] == 0
    again = Calibration.read(tmp_path / "again.safetensors")
    assert again.origin.made_from == shipped.origin.made_from
    for name, tensor in shipped.tensors.items():
        torch.testing.assert_close(again.tensors[name], tensor, atol=1e-3, rtol=1e-3)
