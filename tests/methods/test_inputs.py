"""Inputs of contrast streams: vcd's noise, prompts without the picture or with a role; batches of all processors."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
from PIL import Image

from sira_cli import load
from sira_cli.errors import UnsupportedModelError
from sira_cli.methods.base import PromptBatch
from sira_cli.methods.icd import ROLE
from sira_cli.methods.vcd import Vcd, noised, signal_share
from sira_cli.models.model import BRANCH
from sira_cli.models.processor import chat_inputs
from sira_cli.pictures.sources import as_picture
from tests.support.checkpoints import REPRESENTATIVES
from tests.support.helpers import case_of, mostly_slow, stub, under
from tests.support.records import key_of
from tests.support.reference_methods import diffusion_share

EXAMPLES = sorted(Path(__file__).parents[2].glob("examples/*.png"))
PROMPT = "What is on the left?"

# --- the noise of vcd


@pytest.mark.parametrize("step", [0, 500, 999])
def test_the_noise_schedule_is_the_published_one(step: int):
    assert signal_share(step) == pytest.approx(diffusion_share(step), rel=1e-6)


def epsilon(mixed: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
    """What `noised` added, by the inverse of its formula."""
    share = diffusion_share(500)
    return (mixed - math.sqrt(share) * pixels) / math.sqrt(1 - share)


ALL, PATCHES = slice(None), {"image_grid_thw": torch.tensor([[1, 4, 4], [1, 2, 6]])}
SIZES = {"image_sizes": torch.tensor([[32, 32], [16, 24]])}
MASK = {"pixel_attention_mask": torch.tensor([[1] * 8, [1] * 8, [1] * 4 + [0] * 4])}
# The shape of the pixels, what comes with them, and for each of two prompts its image tokens, the number of its
# pictures, and the parts that show them; a picture has several parts if it is cut into tiles.
SHAPES = {
    "pictures": ((3, 3, 8, 8), {"image_sizes": torch.tensor([[8, 8]] * 3)}, [30, 18], [2, 1], [[0, 1], [2]]),
    "a smaller picture": ((2, 3, 32, 32), SIZES, [16, 6], [1, 1], [[0], [(1, ALL, slice(16), slice(24))]]),
    "tiles": ((6, 3, 8, 8), {}, [32, 16], [2, 1], [[0, 1, 2, 3], [4, 5]]),
    "tiles by picture": ((3, 2, 3, 8, 8), {}, [32, 16], [2, 1], [[(0, 0), (0, 1), (1, 0), (1, 1)], [(2, 0), (2, 1)]]),
    "tiles by prompt": ((2, 3, 3, 8, 8), {}, [48, 32], [2, 1], [[(0, 0), (0, 1), (0, 2)], [(1, 0), (1, 1)]]),
    "patches": ((28, 3 * 2 * 64), PATCHES, [4, 3], [1, 1], [[slice(16)], [slice(16, 28)]]),
    "rows of patches": ((3, 8, 12), MASK, [4, 1], [1, 1], [[0, 1], [(2, slice(4))]]),
}


@pytest.mark.parametrize("kind", SHAPES)
def test_each_prompt_draws_the_noise_of_its_pictures_from_its_own_seed_and_padding_has_none(kind: str):
    """Qwen's patches hold copies of a frame, with one noise."""
    shape, more, tokens, counts, prompts = SHAPES[kind]
    copies, noise = 2 if kind == "patches" else 1, torch.zeros(shape)
    for seed, parts in zip((5, 6), prompts, strict=True):
        generator = torch.Generator().manual_seed(seed)
        for part in parts:
            frame = (len(noise[part]), 3, 1, 64) if kind == "patches" else noise[part].shape
            drawn = torch.randn(frame, generator=generator)
            noise[part] = drawn.expand(-1, -1, copies, -1).flatten(1) if kind == "patches" else drawn
    pixels = torch.rand(shape) * (noise != 0)
    mixed = noised({"pixel_values": pixels, **more}, torch.tensor(tokens), copies, 500, (5, 6), counts)
    torch.testing.assert_close(epsilon(mixed, pixels), noise, atol=1e-5, rtol=1e-5)


def test_gemma_4_gets_the_noise_of_normalised_pixels():
    """Its processor leaves values of 0 to 1, and the model makes -1 to 1 of them."""
    pixels, places = torch.rand(1, 8, 12), torch.zeros(1, 8, 2, dtype=torch.long)
    places[0, 6:] = -1
    found = noised({"pixel_values": pixels, "image_position_ids": places}, torch.tensor([2]), 1, 500, [5])
    normalised = {"pixel_values": 2 * pixels - 1, "pixel_attention_mask": (places >= 0).all(-1)}
    torch.testing.assert_close(2 * found - 1, noised(normalised, torch.tensor([2]), 1, 500, [5]))


def test_what_is_no_picture_or_cannot_be_told_apart_is_refused():
    case = case_of("Qwen2.5-VL")
    videos = {**case.inputs, "pixel_values_videos": case.inputs["pixel_values"]}
    for inputs, message in (
        (videos, "adds noise to pictures, not to videos"),
        ({"input_ids": videos["input_ids"]}, "finds no"),
    ):
        with pytest.raises(UnsupportedModelError, match=f"method vcd {message}"):
            Vcd().branch_inputs(PromptBatch(stub(case), inputs, [0]))
    for tokens in ([32, 16], [1, 2, 3]):
        with pytest.raises(UnsupportedModelError, match="cannot tell which pixels belong to which picture"):
            noised({"pixel_values": torch.rand(5, 3, 8, 8)}, torch.tensor(tokens), 1, 500, range(len(tokens)))


# --- branches as an `Lvlm` prepares them


def branch_of(lvlm, pictures, prompt: str = PROMPT) -> tuple[dict, dict]:
    """A prompt's own inputs, and those of its contrast stream."""
    inputs = lvlm.prepare([as_picture(str(path)).open().image for path in pictures], [prompt] * len(pictures))
    own = {name: value for name, value in inputs.items() if not name.startswith(BRANCH)}
    return own, {name.removeprefix(BRANCH): inputs[name] for name in inputs if name not in own}


@pytest.mark.parametrize("checkpoint", ["llava_folder", "qwen_folder"])
def test_branches_differ_in_pixels_in_placeholders_or_in_a_role(checkpoint, request, photos):
    lvlm, pictures = load(request.getfixturevalue(checkpoint), dtype="float32"), [photos["coffee"], photos["tall"]]
    own, branch = branch_of(lvlm.under("vcd"), pictures)
    assert own.keys() == branch.keys()
    assert all(torch.equal(own[name], branch[name]) == (name != "pixel_values") for name in own)
    own, branch = branch_of(lvlm.under("text-only"), pictures)
    assert "pixel_values" not in branch
    for row, ids in enumerate(own["input_ids"]):
        expected = ids[own["attention_mask"][row].bool() & ~lvlm.find_image(ids[None])[0]]
        assert torch.equal(branch["input_ids"][row][branch["attention_mask"][row].bool()], expected)
    own, branch = branch_of(lvlm.under("icd"), pictures[:1])
    assert torch.equal(own["pixel_values"], branch["pixel_values"])
    decode = lvlm.processor.tokenizer.decode
    said, disturbed = (decode(inputs["input_ids"][0]).replace("\n", " ") for inputs in (own, branch))
    assert [ROLE in said, ROLE in disturbed, PROMPT in disturbed] == [False, True, True]
    system = "You are a helpful assistant."  # the role takes the place of the template's own
    assert (system in said, system in disturbed) == (checkpoint == "qwen_folder", False)


def test_pictures_of_one_size_have_noise_of_their_own_and_questions_about_one_picture_share_it(demo):
    lvlm, seeded = under(demo, "vcd"), under(demo, "vcd", seed=1)
    own, branch = branch_of(lvlm, [*EXAMPLES[:2], EXAMPLES[0]])
    noise = epsilon(branch["pixel_values"], own["pixel_values"])
    assert abs(float(torch.corrcoef(noise.flatten(1))[0, 1])) < 0.05
    torch.testing.assert_close(noise[0], noise[2])
    _, other = branch_of(lvlm, EXAMPLES[:1], "Is there a dog?")
    assert torch.equal(other["pixel_values"][0], branch["pixel_values"][0])
    assert not torch.equal(branch_of(seeded, EXAMPLES[:1])[1]["pixel_values"], other["pixel_values"])
    assert key_of(seeded, "caption", "a", "b", "c") != key_of(lvlm, "caption", "a", "b", "c")


TEXT = "<image>{{ messages[-1]['content'][-1]['text'] }}"
# A template that refuses a system message, one that leaves it out, and none.
TEMPLATES = ["{{ raise_exception('') if messages[0]['role'] == 'system' }}" + TEXT, TEXT, None]


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_role_goes_before_the_prompt_where_there_is_no_system_message(llava_folder, photos, template):
    processor = load(llava_folder).processor
    processor.chat_template = processor.tokenizer.chat_template = template
    ids = chat_inputs(processor, "llava", [Image.open(photos["coffee"])], [PROMPT], system=ROLE)["input_ids"][0]
    assert f"{ROLE} {PROMPT}" in processor.tokenizer.decode(ids)


# --- batches

PROMPTS = ["Is there a cat on the table?", "What is it?", "Describe this picture in detail, please."]
CHECKPOINTS = [*REPRESENTATIVES[:4], "LLaVA-NeXT", "InternVL", "Idefics3"]  # the last three cut pictures up
OTHERS = list(itertools.product(["LLaVA-1.5", "Qwen2.5-VL"], ["m3id", "sid", "dola", "opera"]))
CASES = [*itertools.product(CHECKPOINTS, ["text-only", "vcd", "icd"]), *OTHERS]


# PaliGemma's processor hands torch tensors to numpy's array().
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")
@pytest.mark.parametrize(
    ("checkpoint", "method"),
    mostly_slow(CASES, *((name, "vcd") for name in CHECKPOINTS), *CASES[:3], OTHERS[0], OTHERS[1], OTHERS[5]),
)
def test_a_batch_of_several_sizes_gives_the_texts_of_single_runs(checkpoint: str, method: str, checkpoint_of, photos):
    lvlm = load(checkpoint_of(checkpoint), method=method, dtype="float32", max_new_tokens=6)
    pictures = [as_picture(str(photos[name])).open().image for name in ("coffee", "tall", "rocket")]
    together = [answer.text for answer in lvlm.answer(lvlm.prepare(pictures, PROMPTS))]
    for picture, prompt, text in zip(pictures, PROMPTS, together, strict=True):
        single = lvlm.prepare([picture], [prompt])
        own = {name for name in single if not name.startswith(BRANCH)}
        assert {name.removeprefix(BRANCH) for name in single if name not in own} <= own
        assert lvlm.answer(single)[0].text == text
