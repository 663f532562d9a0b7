"""MaskCD's calibration: attention on image tokens, recomputed by hand from an eager copy, and as a command."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from sira_cli.analysis.calibration.maskcd import ImageMass, calibrate, measure_mass, recorded_mass
from sira_cli.analysis.experiment import Units
from sira_cli.core.reference import extend
from sira_cli.errors import AttachError, PictureError
from sira_cli.methods.calibrated import Calibration
from sira_cli.methods.maskcd import MASS
from sira_cli.models import presets
from sira_cli.models.presets import SHIPPED_CALIBRATIONS
from sira_cli.pictures.sources import as_picture
from sira_cli.run.lvlm import load
from tests.support import tiny
from tests.support.decoding import case_of
from tests.support.helpers import generate, hooks

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.png"))


def find(ids):
    return ids == tiny.IMAGE


@pytest.mark.parametrize("name", tiny.WITH_HEADS)
def test_each_step_s_mass_is_that_of_an_eager_pass_over_the_whole_text(name):
    case = case_of(name)
    kept = case.model.get_decoder().config._attn_implementation
    with recorded_mass(case.model, find) as steps:
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

    def fail():
        with recorded_mass(case.model, find):
            case.model(input_ids=torch.tensor([[5]]))  # a step without a prompt
            raise AssertionError

    with pytest.raises(IndexError):
        fail()
    assert (hooks(case.model), config._attn_implementation) == (before, "sdpa")
    with recorded_mass(case.model, find):
        generate(case.model, case.inputs)
        assert config._attn_implementation == "eager"  # of the last step
        with pytest.raises(AttachError), recorded_mass(case.model, find):
            pass
    assert (hooks(case.model), config._attn_implementation) == (before, "sdpa")


def measured(lvlm, paths, batch_size=1) -> Units[ImageMass]:
    units = Units[ImageMass]()
    for _ in measure_mass(lvlm, [as_picture(path) for path in paths], units, batch_size):
        pass
    return units


def by_hand(lvlm, path: Path) -> torch.Tensor:
    """`[L, H]`: one picture's mass, from weights of an eager copy."""
    inputs = lvlm.to_device(lvlm.prepare([Image.open(path).convert("RGB")], [lvlm.preset.prompts.caption]))
    limit = lvlm.preset.generation.max_new_tokens
    ids = lvlm.model.generate(**inputs, do_sample=False, max_new_tokens=limit)[:, :-1]
    model = copy.deepcopy(lvlm.model)
    model.set_attn_implementation("eager")
    text = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    attentions = model(**{**inputs, **text}, use_cache=False, output_attentions=True).attentions
    image, prompt = ids[0] == lvlm.model.config.image_token_id, inputs["input_ids"].shape[1]
    return torch.stack([layer[0, :, prompt:, image].double().sum(dim=-1).mean(dim=-1) for layer in attentions])


def test_the_calibration_is_the_mean_over_rows_and_pictures(tmp_path):
    """Also if a picture of the batch fails."""
    (tmp_path / "broken.png").write_bytes(b"no picture")
    lvlm = load("demo", max_new_tokens=12, temperature=1.0)  # the caption is greedy all the same
    units = measured(lvlm, (EXAMPLES[0], tmp_path / "broken.png", EXAMPLES[1]), 4)
    (failed,) = units.failures.values()
    assert failed.error.startswith(f"{tmp_path / 'broken.png'}: is not a picture")
    expected = [by_hand(lvlm, path) for path in EXAMPLES[:2]]
    for result, mass in zip(units.values(), expected, strict=True):
        torch.testing.assert_close(result.mass, mass, atol=1e-5, rtol=0)
    made = calibrate(lvlm, units)
    torch.testing.assert_close(made.tensors[MASS], torch.stack(expected).mean(dim=0).float(), atol=1e-5, rtol=0)
    assert made.origin.made_from["rows"] == sum(result.rows for result in units.values())
    with pytest.raises(PictureError, match="no picture could be measured"):
        calibrate(lvlm, Units[ImageMass]())


@pytest.mark.parametrize("end", [False, True])
def test_padding_of_a_shorter_caption_does_not_count(end):
    lvlm = load("demo", max_new_tokens=8)
    if end:  # the first caption ends earlier, where the second one goes on
        pictures = [as_picture(path).open().image for path in EXAMPLES[:2]]
        prompts = [lvlm.to_device(lvlm.prepare([each], [lvlm.preset.prompts.caption])) for each in pictures]
        first, second = (lvlm.generate(each)[0].tolist() for each in prompts)
        lvlm.model.generation_config.eos_token_id = [next(token for token in first[2:] if token not in second)]
    together, alone = (measured(lvlm, EXAMPLES[:2], size) for size in (2, 1))
    assert len({result.rows for result in together.values()}) == 1 + end
    for name, result in alone.items():
        assert together[name].rows == result.rows
        torch.testing.assert_close(together[name].mass, result.mass, atol=1e-5, rtol=0)


def test_the_command_makes_the_calibration_that_the_method_finds(sira, tmp_path):
    home = tmp_path / "home"
    (tmp_path / "broken.png").write_bytes(b"no picture")
    command = ("calibrate", "maskcd", EXAMPLES[0], tmp_path / "broken.png", "-p", "demo", "-b", 2)
    code, out, err = sira(*command, home=home)
    assert (code, "1 of 2 pictures failed" in err, "1 picture, " in out) == (3, True, True)
    assert "now: sira caption PATH -p demo --method maskcd" in err
    (own,) = (home / "calibrations" / "maskcd").iterdir()
    assert own.name == next((SHIPPED_CALIBRATIONS / "maskcd").iterdir()).name
    first = own.read_bytes()
    code, _, err = sira(*command, home=home)
    assert (code, "exists: replace it with --overwrite" in err) == (2, True)
    sira(*command, "--overwrite", home=home)
    assert own.read_bytes() == first
    caption = ("caption", EXAMPLES[0], "-p", "demo", "--method", "maskcd", "--max-new-tokens", 2, "--json")
    record, shipped = (json.loads(sira(*caption, **where)[1]) for where in ({"home": home}, {}))
    assert record["method_settings"]["calibration"] != shipped["method_settings"]["calibration"]
    code, _, err = sira("calibrate", "maskcd", tmp_path / "broken.png", "-p", "demo", "--overwrite", home=home)
    assert (code, "no picture could be measured" in err) == (1, True)


def test_drawn_scenes_give_the_shipped_calibration_and_a_preset_names_it(sira, tmp_path):
    file, preset = tmp_path / "m.safetensors", tmp_path / "mine.yaml"
    code, out, err = sira("calibrate", "maskcd", "-p", "demo", "--limit", 1, "-o", file, "--write-preset", preset)
    assert (code, f"use it with --method maskcd --set calibration={file}" in err) == (0, True), err
    assert presets.read(preset).methods["maskcd"]["calibration"] == str(file)
    assert " of 32 heads have a z-score above 0.7777 " in out
    made, shipped = (Calibration.read(path) for path in (file, next((SHIPPED_CALIBRATIONS / "maskcd").iterdir())))
    assert made.origin.made_from["prompt"] == shipped.origin.made_from["prompt"]
    assert made.tensors[MASS].shape == shipped.tensors[MASS].shape == (8, 4)
    code, _, err = sira("caption", EXAMPLES[0], "-p", preset, "--method", "maskcd", "--max-new-tokens", 4)
    assert code == 0, err
    assert sira("calibrate", "maskcd", "-p", "demo", "-o", file)[0] == 2
    assert sira("calibrate", "maskcd", EXAMPLES[0], "-p", "demo", "--scenes")[0] == 2
