"""Branches as an `Lvlm` prepares them, methods on the command line, and what records say of them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from sira_cli import load
from sira_cli.analysis.drift import measure_drift
from sira_cli.errors import SettingsError, UnsupportedModelError
from sira_cli.methods import METHODS
from sira_cli.methods.base import PromptBatch
from sira_cli.methods.icd import ROLE
from sira_cli.methods.vcd import Vcd, noised, signal_share
from sira_cli.models import presets
from sira_cli.models.model import BRANCH
from sira_cli.models.processor import chat_inputs
from sira_cli.pictures.sources import as_picture
from tests.support.decoding import case_of, stub
from tests.support.helpers import mostly_slow
from tests.support.reference_methods import diffusion_share
from tests.support.runs import key_of

EXAMPLES = sorted(Path(__file__).parents[2].glob("examples/*.png"))
PROMPT = "What is on the left?"


def branch_of(lvlm, pictures, prompt: str = PROMPT) -> tuple[dict, dict]:
    """A prompt's own inputs, and those of its contrast stream."""
    inputs = lvlm.prepare([as_picture(str(path)).open().image for path in pictures], [prompt] * len(pictures))
    own = {name: value for name, value in inputs.items() if not name.startswith(BRANCH)}
    return own, {name.removeprefix(BRANCH): inputs[name] for name in inputs if name not in own}


@pytest.mark.parametrize("step", [0, 500, 999])
def test_the_noise_schedule_is_the_published_one(step: int):
    assert signal_share(step) == pytest.approx(diffusion_share(step), rel=1e-6)


def epsilon(inputs: dict, tokens: list[int], copies: int = 1, seeds: tuple[int, ...] = (0, 1)) -> torch.Tensor:
    """What `noised` added, by the inverse of its formula."""
    share = diffusion_share(500)
    mixed = noised(inputs, torch.tensor(tokens), copies, 500, seeds)
    return (mixed - math.sqrt(share) * inputs["pixel_values"]) / math.sqrt(1 - share)


def test_noise_of_a_picture_is_normal_and_depends_on_its_seed_alone():
    pixels = torch.rand(2, 3, 64, 64)
    together = epsilon({"pixel_values": pixels}, [16, 16])
    assert float(together[0].mean()) == pytest.approx(0, abs=0.05)
    assert float(together[0].std()) == pytest.approx(1, abs=0.05)
    torch.testing.assert_close(together[1:], epsilon({"pixel_values": pixels[1:]}, [16], seeds=(1,)))
    assert abs(float(torch.corrcoef(together.flatten(1))[0, 1])) < 0.05
    equal = epsilon({"pixel_values": pixels}, [16, 16], seeds=(7, 7))
    torch.testing.assert_close(equal[0], equal[1])


@pytest.mark.parametrize("tokens", [[32, 16], [1, 2, 3]])
def test_what_is_no_picture_or_cannot_be_told_apart_is_refused(tokens):
    case = case_of("Qwen2.5-VL")
    pixels = case.inputs["pixel_values"]
    for inputs, message in [
        (case.inputs | {"pixel_values_videos": pixels}, "adds noise to pictures, not to videos"),
        ({"input_ids": case.inputs["input_ids"]}, "finds no picture among the inputs input_ids"),
    ]:
        with pytest.raises(UnsupportedModelError, match=f"method vcd {message}"):
            Vcd().branch_inputs(PromptBatch(stub(case), inputs, [0]))
    with pytest.raises(UnsupportedModelError, match="cannot tell which pixels belong to which picture"):
        noised({"pixel_values": torch.rand(5, 3, 8, 8)}, torch.tensor(tokens), 1, 500, range(len(tokens)))


def test_temporal_copies_of_a_patch_get_the_same_noise():
    grids = torch.tensor([[1, 4, 4], [1, 2, 6]])
    pixels = torch.rand(16 + 12, 3 * 2 * 8 * 8)
    noise = epsilon({"pixel_values": pixels, "image_grid_thw": grids}, [4, 3], copies=2)
    patches = noise.view(28, 3, 2, 64)
    torch.testing.assert_close(patches[:, :, 0], patches[:, :, 1])
    assert not torch.allclose(patches[:, 0, 0], patches[:, 1, 0], atol=1e-2)
    second = epsilon({"pixel_values": pixels[16:], "image_grid_thw": grids[1:]}, [3], copies=2, seeds=(1,))
    torch.testing.assert_close(noise[16:], second)


def test_tiles_that_fill_up_a_batch_stay_empty():
    pixels = torch.rand(2, 3, 3, 16, 16)
    pixels[1, 2] = 0
    together = noised({"pixel_values": pixels}, torch.tensor([48, 32]), 1, 500, (0, 1))
    assert not together[1, 2].any()
    torch.testing.assert_close(
        together[1:, :2], noised({"pixel_values": pixels[1:, :2]}, torch.tensor([32]), 1, 500, (1,))
    )


def test_padding_of_a_smaller_picture_stays_empty():
    pixels, sizes = torch.rand(2, 3, 32, 32), torch.tensor([[32, 32], [16, 24]])
    pixels[1, :, 16:], pixels[1, :, :, 24:] = 0, 0
    together = noised({"pixel_values": pixels, "image_sizes": sizes}, torch.tensor([16, 6]), 1, 500, (0, 1))
    alone = {"pixel_values": pixels[1:, :, :16, :24], "image_sizes": sizes[1:]}
    torch.testing.assert_close(together[1:, :, :16, :24], noised(alone, torch.tensor([6]), 1, 500, (1,)))
    assert not together[1, :, 16:].any()


def test_patches_that_a_picture_lacks_stay_empty_and_tiles_are_told_apart():
    """LFM2-VL: rows of patches, here two tiles of the first picture and one of the second, 4 patches per token."""
    mask = torch.ones(3, 8, dtype=torch.long)
    mask[2, 4:] = 0
    inputs = {"pixel_values": torch.zeros(3, 8, 12), "pixel_attention_mask": mask}
    noise = epsilon(inputs, [4, 1])
    assert not noise[2, 4:].any()
    alone = epsilon({"pixel_values": torch.zeros(1, 4, 12), "pixel_attention_mask": mask[2:, :4]}, [1], seeds=(1,))
    torch.testing.assert_close(noise[2, :4], alone[0])
    assert not torch.equal(noise[0], noise[1])


def test_gemma_4_gets_the_noise_of_normalised_pixels():
    """Its processor leaves values of 0 to 1, and the model makes -1 to 1 of them."""
    pixels, places = torch.rand(1, 8, 12), torch.zeros(1, 8, 2, dtype=torch.long)
    places[0, 6:] = -1
    found = noised({"pixel_values": pixels, "image_position_ids": places}, torch.tensor([2]), 1, 500, [5])
    mask = (places >= 0).all(-1)
    normalised = {"pixel_values": 2 * pixels - 1, "pixel_attention_mask": mask}
    expected = noised(normalised, torch.tensor([2]), 1, 500, [5])
    torch.testing.assert_close(2 * found - 1, expected)


@pytest.mark.parametrize(
    ("shape", "more"),
    [
        ((3, 3, 8, 8), {"image_sizes": torch.tensor([[8, 8]] * 3)}),
        ((3, 2, 3, 8, 8), {}),  # a row per picture
        ((2, 4, 3, 8, 8), {}),  # a row per prompt
        ((6, 3, 8, 8), {}),  # tiles, two of each picture
        ((6, 3 * 64), {"image_grid_thw": torch.tensor([[1, 1, 2]] * 3)}),
    ],
    ids=["pictures", "tiles of pictures", "tiles of prompts", "tiles", "patches"],
)
def test_the_pictures_of_a_prompt_draw_from_its_seed_in_order(shape, more):
    """Two pictures in the first prompt, one in the second."""
    pixels, tokens = torch.rand(shape), [30, 18] if "image_sizes" in more else [32, 16]  # tiles have as many each
    mixed = noised({"pixel_values": pixels, **more}, torch.tensor(tokens), 1, 500, (5, 6), [2, 1])
    share = diffusion_share(500)
    noise = (mixed - math.sqrt(share) * pixels) / math.sqrt(1 - share)
    first = len(pixels) // 2 if shape[0] == 2 else len(pixels) // 3 * 2
    for seed, found in ((5, noise[:first].flatten()), (6, noise[first:].flatten())):
        size = shape[1:] if len(shape) == 4 else shape[2:] if len(shape) == 5 else (2, *shape[1:])
        generator = torch.Generator().manual_seed(seed)
        drawn = [torch.randn(size, generator=generator).flatten() for _ in range(len(found) // math.prod(size))]
        torch.testing.assert_close(found, torch.cat(drawn), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("checkpoint", ["llava_folder", "qwen_folder"])
def test_the_branch_of_vcd_differs_in_its_pixels_only(checkpoint, request, photos):
    lvlm = load(request.getfixturevalue(checkpoint), method="vcd", dtype="float32")
    own, branch = branch_of(lvlm, [photos["coffee"], photos["tall"]])
    assert own.keys() == branch.keys()
    for name in own:
        assert torch.equal(own[name], branch[name]) == (name != "pixel_values")
    assert branch["pixel_values"].dtype == torch.float32


def test_pictures_of_one_size_have_noise_of_their_own_and_questions_about_one_picture_share_it():
    lvlm = load("demo", method="vcd")
    own, branch = branch_of(lvlm, [*EXAMPLES[:2], EXAMPLES[0]])
    share = diffusion_share(500)
    noise = (branch["pixel_values"] - math.sqrt(share) * own["pixel_values"]) / math.sqrt(1 - share)
    assert abs(float(torch.corrcoef(noise.flatten(1))[0, 1])) < 0.05
    torch.testing.assert_close(noise[0], noise[2])
    (_, other) = branch_of(lvlm, EXAMPLES[:1], "Is there a dog?")
    assert torch.equal(other["pixel_values"][0], branch["pixel_values"][0])
    seeded = load("demo", method="vcd", seed=1)
    assert not torch.equal(branch_of(seeded, EXAMPLES[:1])[1]["pixel_values"], other["pixel_values"])
    assert key_of(seeded, "caption", "a", "b", "c") != key_of(lvlm, "caption", "a", "b", "c")


@pytest.mark.parametrize("checkpoint", ["llava_folder", "qwen_folder"])
@pytest.mark.parametrize("method", ["text-only", "m3id"])
def test_the_branch_without_an_image_is_the_prompt_without_placeholders(checkpoint, method, request, photos):
    lvlm = load(request.getfixturevalue(checkpoint), method=method)
    own, branch = branch_of(lvlm, [photos["coffee"], photos["tall"]])
    assert "pixel_values" not in branch
    for row in range(2):
        ids = own["input_ids"][row]
        expected = ids[own["attention_mask"][row].bool() & ~lvlm.find_image(ids[None])[0]]
        assert torch.equal(branch["input_ids"][row][branch["attention_mask"][row].bool()], expected)


@pytest.mark.parametrize("checkpoint", ["llava_folder", "qwen_folder"])
def test_the_branch_of_icd_has_the_role_and_the_same_picture(checkpoint, request, photos):
    lvlm = load(request.getfixturevalue(checkpoint), method="icd", dtype="float32")
    own, branch = branch_of(lvlm, [photos["coffee"]])
    assert torch.equal(own["pixel_values"], branch["pixel_values"])
    decode = lvlm.processor.tokenizer.decode
    said, disturbed = (decode(inputs["input_ids"][0]).replace("\n", " ") for inputs in (own, branch))
    assert ROLE not in said
    assert ROLE in disturbed
    assert PROMPT in disturbed
    if checkpoint == "qwen_folder":  # in place of the template's own
        assert "You are a helpful assistant." in said
        assert "You are a helpful assistant." not in disturbed


CONTENT = (
    "{% for c in m['content'] %}{% if c['type'] == 'image' %}<image>{% else %}{{ c['text'] }}{% endif %}{% endfor %}"
)
TEMPLATES = {
    "refuses": "{{ raise_exception('') if messages[0]['role'] == 'system' }}{% for m in messages %}CONTENT{% endfor %}",
    "leaves out": "{% for m in messages if m['role'] == 'user' %}CONTENT{% endfor %}",
    "is not there": None,
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_role_goes_before_the_prompt_where_there_is_no_system_message(llava_folder, photos, template):
    lvlm, text = load(llava_folder), TEMPLATES[template]
    lvlm.processor.chat_template = text and text.replace("CONTENT", CONTENT)
    lvlm.processor.tokenizer.chat_template = lvlm.processor.chat_template
    picture = Image.open(photos["coffee"])
    ids = chat_inputs(lvlm.processor, "llava", [picture], [PROMPT], system=ROLE)["input_ids"][0]
    assert f"{ROLE} {PROMPT}" in lvlm.processor.tokenizer.decode(ids)


@pytest.mark.parametrize("method", mostly_slow(METHODS, "sira", "vcd", "sid", "maskcd"))
def test_caption_with_each_method(method, sira, tmp_path):
    output = tmp_path / "captions.jsonl"
    command = ("caption", *EXAMPLES[:2], "-p", "demo", "--method", method, "--max-new-tokens", 12, "-o", output)
    code, _, err = sira(*command, "-b", 2)
    assert code == 0, err
    published = {"sira": 0.5, "text-only": 0.5, "vcd": 1.0, "icd": 1.0, "sid": 0.5, "maskcd": 1.0}
    alpha = published.get(method, METHODS[method].settings().get("alpha", 0.0))
    for line in output.read_text().splitlines():
        record = json.loads(line)
        assert (record["status"], record["method"], record["alpha"]) == ("ok", method, alpha)
        assert record["k"] == (7 if method in ("sira", "greedy") else 0)
        assert record["text"]
    code, _, err = sira(*command)
    assert "2 of 2 pictures were done before" in err


@pytest.mark.parametrize("method", mostly_slow([*METHODS][2:], "vcd", "sid", "dola"))
def test_settings_of_sira_do_not_leak_and_a_method_s_own_decide_the_key(method):
    def key(**settings):
        return key_of(load(preset, method=method, **settings), "caption", "a.png", "0", "p")

    preset = presets.find("demo")
    known = key()
    own = METHODS[method].settings()
    for name in ("alpha", "beta"):
        if name in own:
            assert key(**{name: 0.7}) != known
    preset = preset.with_settings(alpha=3.0, beta=0.7, k=2)
    assert key() == known
    lvlm = load(preset, method=method)
    fixed = {name: value for name, value in own.items() if value is not None}  # others follow from the model
    assert lvlm.decoder.settings() | fixed == lvlm.decoder.settings()
    assert lvlm.decoder.settings().keys() == own.keys()
    assert lvlm.alpha == own.get("alpha", 0.0)


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("dola", {"alpha": 1.0}, r"method 'dola' has no setting 'alpha' \(its settings: bucket, relative_top\)"),
        ("sid", {"k_fraction": 0.5}, "method 'sid' has no setting 'k_fraction'"),
        ("vcd", {"alpha": -1}, "alpha of method vcd: expected a number from 0, got -1"),
        ("dola", {"bucket": "middle"}, "bucket of method dola: expected low or high, or none, got 'middle'"),
        ("nothing", {}, "no method named 'nothing'; available: sira, greedy, greedy\\+apc, text-only, vcd, icd"),
    ],
)
def test_what_a_method_has_not_is_refused(method, settings, message):
    with pytest.raises(SettingsError, match=message):
        load("demo", method=method, **settings)


def test_a_model_that_a_method_cannot_follow_is_refused_when_it_is_loaded(checkpoint_of):
    with pytest.raises(UnsupportedModelError, match="sliding window"):
        load(checkpoint_of("Gemma 3"), method="sid", dtype="float32")


def test_what_needs_both_streams_refuses_other_methods_in_the_library():
    lvlm = load("demo", method="text-only")
    inputs = lvlm.prepare([as_picture(str(EXAMPLES[0])).open().image], [PROMPT])
    with pytest.raises(SettingsError, match="needs method sira or greedy, not text-only"):
        lvlm.answer(inputs, words=True)
    with pytest.raises(SettingsError, match="needs method sira or greedy"):
        lvlm.choose(inputs, ["Yes", "No"])
    with pytest.raises(SettingsError, match="drift needs method sira or greedy"):
        measure_drift(lvlm, as_picture(EXAMPLES[0]).open().image, PROMPT)


def test_the_help_lists_the_methods_without_torch(sira):
    for command in ("caption", "ask", "serve"):
        assert ",".join(METHODS) in "".join(sira(command, "--help")[1].split())  # it is wrapped
    assert "siraorgreedy." in "".join(sira("trace", "--help")[1].split())  # it refuses the others
    code = "import sys, sira_cli.cli.caption, sira_cli.methods; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
