"""The fork equals Algorithm 1 on every family: same tokens, both streams' logits within 1e-4 in float32."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest
import torch

from sira_cli.core import reference
from sira_cli.core.config import SiraConfig
from sira_cli.core.families import FAMILIES
from sira_cli.core.fork import Step, attach
from tests.support import tiny
from tests.support.helpers import equal_streams, generate, generate_sira

STEPS = 6


def test_the_table_of_families_is_the_list_of_tested_ones():
    assert [family.name for family in FAMILIES] == list(tiny.FAMILIES)


@pytest.mark.parametrize("k", [1, tiny.LAYERS // 2, tiny.LAYERS - 1])
def test_equals_the_reference(every_family: tiny.Tiny, k: int, request, record_property):
    if k not in every_family.boundaries:
        pytest.skip("the fork would lie inside DeepStack; its refusal has its own test")
    record_property("conformance", (request.node.callspec.params["every_family"], *compared(every_family, k, 0.5)))


def test_video_tokens_are_image_tokens():
    """A picture and a video in one prompt, as Qwen's processor prepares them."""
    case = tiny.FAMILIES["Qwen2.5-VL"]()
    picture, video = case.inputs, tiny.qwen_inputs(tiny.prompt(seed=1), seed=1)
    ids = torch.cat([picture["input_ids"], video["input_ids"].where(video["input_ids"] != tiny.IMAGE, 101)], dim=1)
    kinds = torch.cat([picture["mm_token_type_ids"], 2 * video["mm_token_type_ids"]], dim=1)
    both = {**picture, "input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": kinds}
    both |= {"pixel_values_videos": video["pixel_values"], "video_grid_thw": video["image_grid_thw"]}
    compared(SimpleNamespace(**vars(case) | {"inputs": both, "image": kinds > 0, "silent": tiny.SUPPRESS}), 3, 0.5)


@pytest.mark.parametrize("alpha", [0.0, 1.0, 2.5])
def test_other_strengths(llava: tiny.Tiny, alpha: float):
    """Alpha comes after the logits, so that one family stands for all."""
    compared(llava, tiny.LAYERS // 2, alpha)


def compared(family: tiny.Tiny, k: int, alpha: float) -> tuple[float, float]:
    """Decode as the reference does, with a cache and without: the worst difference, and that between the streams."""
    expected = reference.decode(family, k, alpha, STEPS)
    worst = 0.0
    for use_cache in (True, False):
        steps: list[Step] = []
        with attach(family.model, SiraConfig(k=k, alpha=alpha), on_step=steps.append):
            output = family.model.generate(
                **family.inputs,
                max_new_tokens=STEPS,
                do_sample=False,
                eos_token_id=None,
                suppress_tokens=tiny.SUPPRESS,
                use_cache=use_cache,
            )
        assert output[0, family.inputs["input_ids"].shape[1] :].tolist() == expected.tokens
        full, cf = torch.cat([step.full for step in steps]), torch.cat([step.cf for step in steps])
        contrast = torch.cat([step.contrast for step in steps])
        worst = max(worst, float((full - expected.full).abs().max()), float((cf - expected.cf).abs().max()))
        assert worst < 1e-4
        torch.testing.assert_close(contrast, (1 + alpha) * expected.full - alpha * expected.cf, atol=3e-4, rtol=0)
    # A contrast of a model with itself would pass everything above with alpha = 0, and only then.
    gap = float((expected.full - expected.cf).abs().max())
    assert gap > 0.01
    return worst, gap


def test_the_contrast_changes_what_is_said(every_family: tiny.Tiny):
    """Else equal tokens would prove little."""
    said, _ = generate_sira(every_family.model, every_family.inputs, SiraConfig(k=3, alpha=1.0))
    assert not torch.equal(said, generate(every_family.model, every_family.inputs))


def two_images(case: tiny.Tiny) -> tiny.Tiny:
    """The case's prompt twice in a row: two images with text between them, the second one other than the first."""
    ids = case.inputs["input_ids"].shape
    inputs = {
        name: torch.cat(
            [value, value.flip(-1) if name == "pixel_values" else value],
            dim=1 if value.shape == ids or (value.ndim == 5 and "image_sizes" not in case.inputs) else 0,
        )
        for name, value in case.inputs.items()
    }
    return tiny.Tiny(case.model, inputs, case.grown)


def test_several_images_in_a_prompt(every_family: tiny.Tiny):
    case = two_images(every_family)
    expected = reference.decode(case, 3, 0.5, STEPS)
    tokens, steps = generate_sira(case.model, case.inputs)
    assert tokens[0].tolist() == expected.tokens
    equal_streams(steps, expected)


@pytest.mark.parametrize("name", tiny.REPRESENTATIVES)
def test_the_cf_stream_sees_no_row_of_either_image(name: str):
    """Whatever the late layers find at the rows of an image, CF stays as it is to the last bit; full does not."""
    case = two_images(tiny.FAMILIES[name]())
    _, plain = generate_sira(case.model, case.inputs, SiraConfig(k=3))
    places = case.image[0].nonzero().flatten()
    first, second = places[: len(places) // 2], places[len(places) // 2 :]
    for rows in (first, second):
        layer = case.model.get_decoder().layers[tiny.LAYERS - 3]
        handle = layer.register_forward_pre_hook(functools.partial(_overwrite, rows), with_kwargs=True)
        try:
            _, changed = generate_sira(case.model, case.inputs, SiraConfig(k=3))
        finally:
            handle.remove()
        assert torch.equal(changed[0].cf, plain[0].cf)
        assert float((changed[0].full - plain[0].full).abs().max()) > 1e-3


def _overwrite(rows: torch.Tensor, layer: object, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    hidden = (args[0] if args else kwargs["hidden_states"]).clone()
    if hidden.shape[1] > int(rows.max()):  # the prompt, not a later token
        hidden[:, rows] = hidden[:, rows].flip(-1)
    return ((hidden, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": hidden})
