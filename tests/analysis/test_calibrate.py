"""`sira calibrate ict` and `maskcd`: tensors recomputed by hand, the probe, the questions, the commands, what ships."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import shutil
import statistics
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFilter

from sira_cli.analysis.calibration import ict, maskcd
from sira_cli.analysis.experiment import Units
from sira_cli.analysis.questions import Question, QuestionSet, black_out, with_places
from sira_cli.core.reference import extend
from sira_cli.errors import AttachError, DataError, PictureError
from sira_cli.methods.calibrated import Calibration
from sira_cli.methods.maskcd import MASS
from sira_cli.models import presets
from sira_cli.models.hub import find_checkpoint
from sira_cli.pictures.sources import as_picture, located
from sira_cli.run.events import Advanced, Finished
from sira_cli.run.lvlm import load
from tests.support import tiny
from tests.support.eval.writing import lines, save
from tests.support.helpers import case_of, generate, hooks

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.png"))
BOX = (20, 30, 200, 180)


# --- ICT: directions by hand


@pytest.mark.parametrize("width", [1, 5])
def test_the_probe_is_at_the_minimum_of_scikit_learns_objective(width: int):
    """Its slope there is zero, for C = 1; two classes overlap, in features of very different sizes."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.rand(80, generator=generator) < 0.4
    features = torch.randn(6, 80, width, generator=generator, dtype=torch.float64)
    features[..., 0] += 1.5 * labels
    features *= torch.logspace(-3, 2, 6, dtype=torch.float64)[:, None, None]
    weights = ict.fit(features, labels).requires_grad_()
    signs = torch.where(labels, 1.0, -1.0).double()
    for each, own in zip(features, weights, strict=True):
        losses = torch.log1p(torch.exp(-signs * (each @ own[:-1] + own[-1])))
        (slope,) = torch.autograd.grad(0.5 * (own[:-1] ** 2).sum() + losses.sum(), weights)
        assert float(slope.abs().max()) < 1e-6


ASKED = (
    Question("coffee", "Is there a cup in the image?", True),
    Question("coffee", "Is there a dog?", False),
    Question("tall", "Is there a tree in the image?", True),
    Question("tall", "Is there a boat in this image?", False),
    Question("rocket", "Is there a bird?", True),
)


@torch.no_grad()
def outputs_by_hand(lvlm, image: Image.Image, question: str, answer: str) -> list[torch.Tensor]:
    """What o_proj gives at the last token of a prompt that ends in an answer, layer by layer `[d]`."""
    content = [{"type": "image"}, {"type": "text", "text": question}]
    text = lvlm.processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    text += answer if text[-1].isspace() else f" {answer}"
    found: list[torch.Tensor] = []
    handles = [
        layer.self_attn.o_proj.register_forward_hook(lambda module, args, output: found.append(output[0, -1]))
        for layer in lvlm.model.get_decoder().layers
    ]
    lvlm.model(**lvlm.processor(images=image, text=text, return_tensors="pt"), use_cache=False)
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


def accuracy_by_hand(x: torch.Tensor, labels: torch.Tensor) -> float:
    """The share of rows that a fit on the other half of them takes rightly, for slices `[n, 32]`."""
    halves, right = torch.arange(len(x)) < len(x) // 2, torch.zeros(len(x))
    for tested in (halves, ~halves):
        (weights,) = ict.fit(x[None, ~tested], labels[~tested])
        right[tested] = ((x[tested] @ weights[:-1] + weights[-1] > 0) == labels[tested]).float()
    return float(right.mean())


@pytest.mark.parametrize(
    ("checkpoint", "batch_size"),
    [
        ("qwen_folder", 4),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("llava_folder", 4), ("qwen_folder", 1))),
    ],
)
def test_directions_spreads_and_accuracies_are_those_worked_out_by_hand(checkpoint, batch_size, request, photos):
    """Places are known for all but the last picture."""
    outlines = lambda question: [(20, 30, 200, 30, 200, 180, 20, 180)] * (question.picture != "rocket")  # noqa: E731
    questions = QuestionSet((), ASKED, lambda name: located(str(photos[name])), outlines=outlines)
    lvlm = load(request.getfixturevalue(checkpoint), method="greedy", dtype="float32")
    outputs, tensors = Units[torch.Tensor](), dict[str, torch.Tensor]()
    events = [*ict.train(lvlm, questions, outputs, tensors, batch_size)]
    made = ict.calibration(lvlm, questions, outputs, tensors)
    assert sum(isinstance(event, Finished) for event in events) == 14  # prefills
    assert sum(event.count for event in events if isinstance(event, Advanced)) == 2 * lvlm.layers
    assert made.origin.made_from["questions"] == {"image": 5, "object": 4}
    assert not any(layer.self_attn.o_proj._forward_hooks for layer in lvlm.model.get_decoder().layers)

    for level in ("image", "object"):
        clean, other = [], []
        for question in ASKED:
            image = questions.picture_of(question.picture).open().image
            if (pair := degraded(image, question, level)) is not None:
                clean.append(outputs_by_hand(lvlm, image, question.text, "yes" if question.expected else "no"))
                other.append(outputs_by_hand(lvlm, pair[0], question.text, pair[1]))
        count = len(clean)
        order = torch.randperm(2 * count, generator=torch.Generator().manual_seed(0))
        for layer, number in itertools.product((0, 3, lvlm.layers - 1), (0, -1)):
            rows = torch.stack([each[layer] for each in clean + other]).double().unflatten(1, (-1, 32))[:, number]
            shift = rows[:count].mean(dim=0) - rows[count:].mean(dim=0)
            direction = shift / shift.norm()
            own = {name: made.tensors[f"{level}.{name}"][layer, number] for name in ("direction", "spread", "accuracy")}
            torch.testing.assert_close(own["direction"].double(), direction, atol=2e-3, rtol=0)
            assert float(own["spread"]) == pytest.approx(statistics.pstdev((rows @ direction).tolist()), rel=2e-3)
            assert float(own["accuracy"]) == pytest.approx(accuracy_by_hand(rows[order], order >= count), abs=1e-6)


# --- ICT: questions and places

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


def pope_file(path: Path, *rows: tuple[str, str]) -> Path:
    return lines(path, [{"image": PICTURE, "text": text, "label": label} for text, label in rows])


def test_a_region_is_that_of_the_object_in_the_question(tmp_path):
    save(tmp_path / "annotations/instances_val2014.json", COCO)
    found = with_places([pope_file(tmp_path / "a.json", ("A dog?", "yes"))], tmp_path, annotations=tmp_path)

    def about(text: str, picture: str = PICTURE) -> list[tuple[float, ...]]:
        return [(*each[:2], *each[4:6]) for each in found.outlines(Question(picture, text, True))]

    assert found.made_from["annotations"] == ["instances_val2014.json"]
    assert about("Is there a dog in the image?") == [(2.0, 3.0, 6.0, 8.0), (10.0, 3.0, 11.0, 4.0)]
    assert about("Is there a hot dog in the image?") == [(0.0, 0.0, 9.0, 9.0)]
    assert about("Is there a sofa in the image?") == [(0.0, 0.0, 8.0, 8.0)]  # another word for a couch
    assert about("Is there a doghouse in the image?") == about("Is there a dog in the image?", "other.jpg") == []
    pixels = np.asarray(black_out(Image.new("RGB", (12, 12), "white"), [(2, 3, 6, 3, 6, 8, 2, 8)]))
    assert not pixels[3:9, 2:7].any()
    assert pixels.any(axis=2).sum() == 12 * 12 - 6 * 5
    two = pope_file(tmp_path / "b.json", ("A dog?", "yes"), ("A cup?", "no"))
    assert [each.text for each in with_places([tmp_path / "a.json", two], tmp_path).questions] == ["A dog?", "A cup?"]
    with pytest.raises(DataError, match="a question has both labels"):
        with_places([two, pope_file(tmp_path / "c.json", ("A cup?", "yes"))], tmp_path)
    for content, message in (({"categories": [], "annotations": []}, "has no objects"), (COCO, "with its `bbox`")):
        broken = content | {"annotations": [row | {"bbox": None} for row in content["annotations"]]}
        with pytest.raises(DataError, match=message):
            with_places([tmp_path / "a.json"], tmp_path, annotations=save(tmp_path / "broken.json", broken))


# --- ICT: the command, and what ships


def test_directions_made_once_are_found_by_the_model(sira, tmp_path, llava_folder, photos, home):
    pope = pope_file(tmp_path / "pope.json", ("Is there a dog?", "yes"), ("Is there a cup?", "no"), ("A couch?", "yes"))
    shutil.copy(photos["coffee"], tmp_path / PICTURE)
    given = ("calibrate", "ict", "-m", llava_folder, "--questions", pope, "--images", tmp_path)
    ask = ("ask", photos["coffee"], "Hm?", "-m", llava_folder, "--method", "ict", "--max-new-tokens", 3, "--json")
    code, out, err = sira(*given, "--annotations", save(tmp_path / "instances.json", COCO))
    assert (code, out) == (0, "")
    for line in ("image level: 3 questions; the best of 48 slices separates", "object level: 3 questions"):
        assert line in err
    (path,) = (home / "calibrations" / "ict").iterdir()
    origin = Calibration.read(path).origin
    assert (origin.kind, origin.made_from["files"]) == ("ict", ["pope.json"])
    assert (origin.made_from["blur"], origin.made_from["seed"]) == (5.0, 0)
    code, out, _ = sira(*ask)
    assert code == 0
    assert json.loads(out)["method_settings"]["calibration"].startswith("sha256:")
    code, _, err = sira(*given)
    assert code == 2
    assert "exists: replace it with --overwrite" in err
    code, _, err = sira(*given, "--overwrite")
    assert code == 0
    assert "the image level only" in err
    code, _, err = sira(*ask, "--set", "level=object")
    assert code == 2
    assert "has no object level, only image" in err


@pytest.mark.slow
def test_the_command_in_the_documents_makes_the_shipped_one(tmp_path, sira):
    revision = find_checkpoint(presets.find("demo"), offline=True).revision
    shipped = Calibration.read(presets.find_calibration("ict", revision))
    assert sira("calibrate", "ict", "-p", "demo", "-o", tmp_path / "again.safetensors", "-q")[0] == 0
    again = Calibration.read(tmp_path / "again.safetensors")
    assert again.origin.made_from == shipped.origin.made_from
    for name, tensor in shipped.tensors.items():
        torch.testing.assert_close(again.tensors[name], tensor, atol=1e-3, rtol=1e-3)


# --- MaskCD: attention on image tokens, from an eager copy


@pytest.mark.parametrize("name", tiny.WITH_HEADS)
def test_each_step_s_mass_is_that_of_an_eager_pass_over_the_whole_text(name):
    case = case_of(name)
    kept = case.model.get_decoder().config._attn_implementation
    with maskcd.recorded_mass(case.model, lambda ids: ids == tiny.IMAGE) as steps:
        tokens = generate(case.model, case.inputs)[0].tolist()
    assert case.model.get_decoder().config._attn_implementation == kept
    assert len(steps) == len(tokens) - 1  # the last token predicts nothing

    model, inputs = copy.deepcopy(case.model), dict(case.inputs)
    model.set_attn_implementation("eager")
    for token in tokens[:-1]:
        inputs = extend(inputs, token, case.grown)
    attentions = model(**inputs, use_cache=False, output_attentions=True).attentions
    prompt, image = case.image.shape[1], case.image[0].nonzero().flatten().tolist()
    for number, step in enumerate(steps):
        for layer in range(tiny.LAYERS):
            expected = [sum(float(head[prompt + number, column]) for column in image) for head in attentions[layer][0]]
            assert step[0, layer].tolist() == pytest.approx(expected, abs=1e-4)


def test_the_model_is_as_before_also_after_an_error():
    case = case_of("Gemma 3")
    generate(case.model, case.inputs)  # transformers puts hooks of its own on a model that runs for the first time
    before, config = hooks(case.model), case.model.get_decoder().config
    record = functools.partial(maskcd.recorded_mass, case.model, lambda ids: ids == tiny.IMAGE)
    with pytest.raises(AttachError), record():  # noqa: PT012
        generate(case.model, case.inputs)
        assert config._attn_implementation == "eager"  # of the last step
        with record():
            raise AssertionError
    assert (hooks(case.model), config._attn_implementation) == (before, "sdpa")


def measured(lvlm, paths, batch_size=1) -> Units[maskcd.ImageMass]:
    units = Units[maskcd.ImageMass]()
    [*maskcd.measure_mass(lvlm, [as_picture(path) for path in paths], units, batch_size)]
    return units


def test_the_calibration_is_the_mean_over_rows_and_pictures(tmp_path):
    """Also if a picture of the batch fails."""
    (tmp_path / "broken.png").write_bytes(b"no picture")
    lvlm, expected = load("demo", max_new_tokens=12, temperature=1.0), []  # the caption is greedy all the same
    greedy = load("demo", max_new_tokens=12, method="greedy")
    for path in EXAMPLES[:2]:
        with maskcd.recorded_mass(greedy.model, greedy.find_image) as steps:
            greedy.generate(greedy.prepare([as_picture(path).open().image], [lvlm.preset.prompts.caption]))
        expected.append(torch.stack(steps)[:, 0].double().mean(dim=0))
    units = measured(lvlm, (EXAMPLES[0], tmp_path / "broken.png", EXAMPLES[1]), 4)
    (failed,) = units.failures.values()
    assert failed.error.startswith(f"{tmp_path / 'broken.png'}: is not a picture")
    mass = torch.stack([each.mass for each in units.values()])
    torch.testing.assert_close(mass, torch.stack(expected), atol=1e-5, rtol=0)
    made = maskcd.calibrate(lvlm, units)
    torch.testing.assert_close(made.tensors[MASS], mass.mean(dim=0).float(), atol=1e-5, rtol=0)
    assert made.origin.made_from["rows"] == sum(result.rows for result in units.values())
    with pytest.raises(PictureError, match="no picture could be measured"):
        maskcd.calibrate(lvlm, Units[maskcd.ImageMass]())


def test_padding_of_a_shorter_caption_does_not_count():
    """The first caption ends earlier, where the second one goes on."""
    lvlm = load("demo", max_new_tokens=8)
    pictures = [as_picture(path).open().image for path in EXAMPLES[:2]]
    prompts = [lvlm.prepare([each], [lvlm.preset.prompts.caption]) for each in pictures]
    first, second = (lvlm.generate(each)[0].tolist() for each in prompts)
    lvlm.model.generation_config.eos_token_id = [next(token for token in first[2:] if token not in second)]
    together, alone = (measured(lvlm, EXAMPLES[:2], size) for size in (2, 1))
    assert len({result.rows for result in together.values()}) == 2
    for name, result in alone.items():
        assert together[name].rows == result.rows
        torch.testing.assert_close(together[name].mass, result.mass, atol=1e-5, rtol=0)


def test_heads_measured_once_are_found_by_the_model_or_named_by_a_preset(sira, tmp_path, home):
    (tmp_path / "broken.png").write_bytes(b"no picture")
    caption = ("caption", EXAMPLES[0], "--method", "maskcd", "--max-new-tokens", 2, "--json", "-p")
    used = lambda preset: json.loads(sira(*caption, preset)[1])["method_settings"]["calibration"]  # noqa: E731
    before = used("demo")
    command = ("calibrate", "maskcd", EXAMPLES[0], tmp_path / "broken.png", "-p", "demo", "-b", 2)
    code, out, err = sira(*command)
    assert code == 3
    assert "1 of 2 pictures failed" in err
    assert "1 picture, " in out
    (own,) = (home / "calibrations" / "maskcd").iterdir()
    (shipped,) = (presets.SHIPPED_CALIBRATIONS / "maskcd").iterdir()
    assert own.name == shipped.name
    assert used("demo") != before
    first = own.read_bytes()
    assert sira(*command)[0] == 2  # it exists
    sira(*command, "--overwrite")
    assert own.read_bytes() == first
    assert sira("calibrate", "maskcd", tmp_path / "broken.png", "-p", "demo", "--overwrite")[0] == 2

    file, preset = tmp_path / "m.safetensors", tmp_path / "mine.yaml"
    scenes = ("calibrate", "maskcd", "-p", "demo", "--limit", 1, "-o", file)
    code, out, err = sira(*scenes, "--write-preset", preset)
    assert code == 0, err
    assert " of 24 heads have a z-score above 0.635 " in out, err
    assert presets.read(preset).methods["maskcd"]["calibration"] == str(file)
    assert Calibration.read(file).origin.made_from["prompt"] == Calibration.read(shipped).origin.made_from["prompt"]
    assert used(preset) != before
    assert sira("calibrate", "maskcd", EXAMPLES[0], "-p", "demo", "--scenes")[0] == 2
