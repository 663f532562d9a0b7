"""The fork equals Algorithm 1: same tokens, and logits of both streams within 1e-4 in float32.

Rows are families, and types with kinds of layers that no family has; columns are one prompt (with a cache and without),
two pictures, a padded batch, beams. Sampling is in test_generate.py, all types of transformers in test_census.py.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import transformers
from packaging.version import Version

from sira_cli.core import reference
from sira_cli.core.config import SiraConfig
from sira_cli.core.fork import attach
from sira_cli.core.image_tokens import ImageTokenFinder
from sira_cli.errors import UnsupportedModelError
from tests.support import census, helpers, tiny
from tests.support.helpers import batch_equals_singles, case_of, compared, family_prompts, generate, generate_sira

GRID = [(name, k) for name in tiny.FAMILIES for k in (1, 3, 5)]
GRID += [(kind, k) for kind in census.KINDS for k in range(1, 6)]
GRID.remove(("Qwen3-VL", 5))  # inside DeepStack: refused
STATES = ("Qwen3.5", "LFM2-VL", "Gemma 4 E")  # whose texts leave more, or less, than columns of their own


@pytest.mark.parametrize(("name", "k"), GRID)
def test_equals_the_reference(name: str, k: int, record_property):
    """Chunks have 16 tokens: with 6 more than a prompt of 30, a new one begins on the way."""
    found = compared(case_of(name), SiraConfig(k=k))
    if name in tiny.FAMILIES:
        record_property("conformance", (name, *found))


def test_video_tokens_are_image_tokens():
    """A picture and a video in one prompt, as Qwen's processor prepares them."""
    case = case_of("Qwen2.5-VL")
    picture, video = case.inputs, tiny.qwen_inputs(tiny.prompt(seed=1), seed=1)
    ids = torch.cat([picture["input_ids"], video["input_ids"].where(video["input_ids"] != tiny.IMAGE, 101)], dim=1)
    kinds = torch.cat([picture["mm_token_type_ids"], 2 * video["mm_token_type_ids"]], dim=1)
    both = {**picture, "input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": kinds}
    both |= {"pixel_values_videos": video["pixel_values"], "video_grid_thw": video["image_grid_thw"]}
    compared(
        SimpleNamespace(**vars(case) | {"inputs": both, "image": kinds > 0, "silent": tiny.SUPPRESS}), SiraConfig(k=3)
    )


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_identities(family: tiny.Tiny, alpha: float, monkeypatch):
    """Without a contrast it is plain `generate`; so it is where the CF stream drops nothing."""
    if alpha:
        monkeypatch.setattr(ImageTokenFinder, "find", lambda self, ids: torch.zeros_like(ids, dtype=torch.bool))
    tokens, steps = generate_sira(family.model, family.inputs, SiraConfig(k=3, alpha=alpha))
    assert torch.equal(tokens, generate(family.model, family.inputs))
    assert all(torch.allclose(step.cf, step.full, atol=1e-5) == bool(alpha) for step in steps)


# --- two pictures


def two_images(case: tiny.Tiny) -> tiny.Tiny:
    """The case's prompt twice in a row: two images with text between them, the second one other than the first."""
    ids, inputs = case.inputs["input_ids"].shape, {}
    for name, value in case.inputs.items():
        along = value.shape == ids or (value.ndim == 5 and "image_sizes" not in case.inputs)
        inputs[name] = torch.cat([value, value.flip(-1) if name == "pixel_values" else value], dim=int(along))
    return tiny.Tiny(case.model, inputs, case.grown)


def test_several_images_in_a_prompt(every_family: tiny.Tiny):
    compared(two_images(every_family), SiraConfig(k=3), caches=(True,))


# --- batches and beams


def with_half_a_picture(case: tiny.Tiny) -> dict[str, torch.Tensor]:
    ids = tiny.prompt(8)
    ids[0, 4], ids[0, 13] = 102, 103
    types = {name: (ids == tiny.IMAGE).long() for name in case.inputs if name.endswith("token_type_ids")}
    half = {"pixel_values": case.inputs["pixel_values"][:32], "image_grid_thw": torch.tensor([[1, 4, 8]])}
    return {name: (tiny.with_mask(ids, **half, **types))[name] for name in case.inputs}


def singles_of(name: str) -> list[dict[str, torch.Tensor]]:
    """Prompts of different lengths, with pictures of two sizes where a family has several."""
    case = case_of(name)
    if name in tiny.FAMILIES:
        return family_prompts(name, case)
    sizes = name in ("dots3_note", "kimi_k25", "ernie4_5_vl_moe")
    return [case.inputs, with_half_a_picture(case) if sizes else census.longer(case, 4)]


BATCHES = ["LLaVA-1.5", "Qwen2.5-VL", "Gemma 3", "PaliGemma", *STATES, "dots3_note", "kimi_k25", "ernie4_5_vl_moe"]


@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize("name", [name for name in BATCHES if name in tiny.FAMILIES or name in census.HERE])
def test_a_left_padded_batch_equals_its_single_runs(name: str, k: int):
    """Padding decays no recurrent state, and fillers of the CF stream do not either."""
    batch_equals_singles(case_of(name).model, singles_of(name), k, 1e-4 if name in STATES else 1e-5)


@pytest.mark.parametrize("settings", [{"attention": "eager"}, {"use_cache": False}], ids=str)
def test_a_left_padded_batch_in_other_ways(settings: dict):
    case = tiny.llava(settings.pop("attention", "sdpa"))
    batch_equals_singles(case.model, family_prompts("LLaVA-1.5", case), 3, 1e-5, **settings)


@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize("name", [*STATES, *sorted({"mistral4", "dots3_note"} & census.HERE)])
def test_beams_in_a_padded_batch(name: str, k: int):
    """Without a cache they have the states of no beam."""
    case, singles, beams = case_of(name), singles_of(name), {"num_beams": 3, "num_return_sequences": 2}
    with attach(case.model, SiraConfig(k=k)):
        if name == "Qwen3.5" and Version(transformers.__version__) < Version("5.21"):
            with pytest.raises(UnsupportedModelError, match="mixes up the pictures of beams"):
                generate(case.model, singles[0], **beams)
            return
        batch = generate(case.model, helpers.left_pad(singles), **beams)
        assert torch.equal(batch, torch.cat([generate(case.model, single, **beams) for single in singles]))
        assert torch.equal(batch[:2], generate(case.model, singles[0], use_cache=False, **beams))


def test_a_padded_batch_equals_the_reference():
    """Single runs have no padding, and so no mask: what both lack is seen here."""
    model, singles = case_of("Qwen2.5-VL").model, singles_of("Qwen2.5-VL")
    for use_cache in (True, False):
        _, steps = generate_sira(model, helpers.left_pad(singles), use_cache=use_cache)
        for row, single in enumerate(singles):
            expected = reference.decode(tiny.Tiny(model, single, {"mm_token_type_ids": 0}), 3, 0.5, len(steps))
            helpers.equal_streams(steps, expected, row=row)


# --- what single models have of their own


@pytest.mark.parametrize("k", [2, 4])
def test_soft_caps_of_paligemma_2(k: int):
    """Caps that bind: of the scores of attention, and of the logits where a version of transformers applies it."""
    case = tiny.paligemma(2)
    before = case.model(**case.inputs).logits
    case.model.config.text_config.final_logit_softcapping = 2.0
    for module in case.model.modules():
        if hasattr(module, "attn_logit_softcapping"):
            module.attn_logit_softcapping = 0.3
    assert (case.model(**case.inputs).logits - before).abs().max() > 0.1
    compared(case, SiraConfig(k=k), steps=3)


def test_tokens_that_a_model_rules_out_stay_out():
    """Chameleon gives tokens of pictures the smallest number that there is."""
    case = case_of("chameleon")
    _, steps = generate_sira(case.model, case.inputs, SiraConfig(k=3, alpha=3.0))
    for step in steps:
        assert step.full[0, 110] == torch.finfo(torch.float32).min
        assert step.contrast[0, 110:120].max() < -1e29
        assert step.contrast.isfinite().all()
