"""Passes over known rows equal uncached forwards: forced texts, every K from one prefill, texts behind a picture."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

from sira_cli.core import passes, reference
from sira_cli.core.config import SiraConfig
from sira_cli.core.families import position_state
from sira_cli.core.fork import attach
from sira_cli.core.passes import BIDIRECTIONAL, TAILS_AT_ONCE, ImagePrefix, next_token, score
from sira_cli.errors import AttachError, ImageTokenError, SettingsError, UnsupportedModelError
from tests.support import census, tiny
from tests.support.helpers import case_of, equal_streams, family_prompts, hooks, left_pad, llava_prompts

# --- forced texts

TEXT = [11, 57, 33, 7, 42]


def slow(case: tiny.Tiny, k: int, text: list[int]) -> reference.Reference:
    return reference.decode(case, k, 0.5, len(text), follow=text)


@pytest.mark.parametrize("rows", [2, 16])
def test_forced_tokens_equal_an_uncached_forward(family: tiny.Tiny, rows: int, monkeypatch):
    monkeypatch.setattr(passes, "ROWS_AT_ONCE", rows)
    steps = list(score(family.model, SiraConfig(k=3, alpha=0.7), family.inputs, [TEXT]))
    expected = slow(family, 3, TEXT)
    equal_streams(steps, expected)
    contrast = 1.7 * expected.full - 0.7 * expected.cf
    torch.testing.assert_close(torch.cat([step.contrast for step in steps]), contrast, atol=3e-4, rtol=0)


@pytest.mark.parametrize("name", ["LLaVA-1.5", "Qwen2.5-VL", "Gemma 3", "PaliGemma", "InternVL"])
def test_texts_of_several_lengths_in_a_batch(name: str):
    case, texts = case_of(name), [TEXT[:1], TEXT, TEXT[2:4]]
    steps = list(score(case.model, SiraConfig(k=3), left_pad([case.inputs] * 3), texts))
    assert len(steps) == len(TEXT)
    for row, text in enumerate(texts):
        equal_streams(steps[-len(text) :], slow(case, 3, text), row=row)


@pytest.mark.parametrize("cap", [None, 2.0])
def test_what_a_model_does_after_its_head(cap: float | None):
    """A soft cap is followed; PaliGemma 2 leaves the cap of its config out until transformers 5.22."""
    case = tiny.paligemma(2)
    case.model.config.text_config.final_logit_softcapping = cap
    equal_streams(score(case.model, SiraConfig(k=4), case.inputs, [TEXT]), slow(case, 4, TEXT))


def test_what_cannot_be_forced_is_refused(llava: tiny.Tiny):
    with pytest.raises(ValueError, match="expected 1 texts with tokens"):
        next(score(llava.model, SiraConfig(k=3), llava.inputs, [[]]))

    def scale(model, args, output):
        output.logits = output.logits * 2
        return output

    handle = llava.model.register_forward_hook(scale)
    try:
        with pytest.raises(UnsupportedModelError, match="does more after its final norm"):
            list(score(llava.model, SiraConfig(k=3), llava.inputs, [TEXT]))
    finally:
        handle.remove()


# --- every K from one prefill


@pytest.mark.parametrize("name", [*tiny.REPRESENTATIVES, *census.KINDS, "chameleon"])  # whose layers return a tuple
def test_every_k_equals_algorithm_1(name: str):
    case = case_of(name)
    full, cf = next_token(case.model, SiraConfig(), case.inputs, case.boundaries)
    plain = case.model(**case.inputs, use_cache=False).logits[:, -1]
    torch.testing.assert_close(full, plain, atol=1e-5, rtol=0)
    assert set(cf) == set(case.boundaries)
    for k, z_cf in cf.items():
        expected = reference.counterfactual(case.model, case.inputs, case.image, k)
        torch.testing.assert_close(z_cf[0], expected, atol=1e-4, rtol=0)
    assert all((one - other).abs().max() > 0.01 for one, other in itertools.pairwise([full, *cf.values()]))


@pytest.mark.parametrize("name", ["LLaVA-1.5", "eager", "Qwen2.5-VL", "Qwen3.5", "LFM2-VL", "Gemma 4 E"])
def test_every_k_in_a_left_padded_batch(name: str):
    case = tiny.llava("eager") if name == "eager" else case_of(name)
    singles = llava_prompts() if name == "eager" else family_prompts(name, case)
    full, cf = next_token(case.model, SiraConfig(), left_pad(singles), [2, 5, 3, 2])
    assert list(cf) == [5, 3, 2]
    for row, single in enumerate(singles):
        plain = case.model(**single, use_cache=False).logits[0, -1]
        torch.testing.assert_close(full[row], plain, atol=1e-4, rtol=0)
        for k, z_cf in cf.items():
            expected = reference.counterfactual(case.model, single, single["input_ids"] == tiny.IMAGE, k)
            torch.testing.assert_close(z_cf[row], expected, atol=1e-4, rtol=0)


def test_what_many_k_refuse_and_leave_behind(llava: tiny.Tiny):
    llava.model(**llava.inputs)  # transformers puts hooks of its own on, once
    before = hooks(llava.model)
    next_token(llava.model, SiraConfig(), llava.inputs, [3])
    text = {name: llava.inputs[name][:, -5:] for name in ("input_ids", "attention_mask")}
    with pytest.raises(ImageTokenError):
        next_token(llava.model, SiraConfig(), text, [3])
    with pytest.raises(SettingsError, match=r"k = 6 is out of range"):
        next_token(llava.model, SiraConfig(), llava.inputs, [1, 6])
    with attach(llava.model), pytest.raises(AttachError):
        next_token(llava.model, SiraConfig(), llava.inputs, [1])
    assert hooks(llava.model) == before


# --- texts behind a picture's rows, which are computed once

CAUSAL = [name for name in tiny.FAMILIES if not name.startswith("PaliGemma")]
TAILS = [[20, 21, 22, 23, 24], [30, 31], [40], [50, 51, 52, 53, 54, 55, 56]]
TAILS += [[60 + number, 70] for number in range(TAILS_AT_ONCE)]  # more than a pass holds


@torch.no_grad()
def whole(case: tiny.Tiny, tail: list[int]) -> torch.Tensor:
    """The logits of the whole prompt `[V]`: one pass, no cache."""
    length, inputs = int(case.image[0].nonzero().max()) + 1, {}
    for name, value in case.inputs.items():
        if value.shape == case.image.shape:  # a tail is text: token types 0, seen
            value = F.pad(value[:, :length], (0, len(tail)), value=int(name == "attention_mask"))
        inputs[name] = value
    inputs["input_ids"][0, length:] = torch.tensor(tail)
    return case.model(**inputs, use_cache=False).logits[0, -1].float()


def prefix_of(case: tiny.Tiny) -> ImagePrefix:
    return ImagePrefix(case.model, case.inputs, int(case.image[0].nonzero().max()) + 1)


@pytest.mark.parametrize("name", [*CAUSAL, *sorted({"llama4", "mistral4", "dots3_note"} & census.HERE)])
def test_tails_of_all_lengths_equal_whole_prompts(name: str):
    """A recurrent state that several texts go on from is copied for each, and positions that a model keeps stay."""
    case = case_of(name)
    with torch.no_grad():
        case.model(**case.inputs)
    kept = [(module, state, getattr(module, state)) for module, state in position_state(case.model)]
    prefix = prefix_of(case)
    found = torch.cat([prefix.last_logits(TAILS), prefix.last_logits(TAILS[:2])])  # it can be asked again
    assert all(getattr(module, state) is value for module, state, value in kept)
    for logits, tail in zip(found, [*TAILS, *TAILS[:2]], strict=True):
        torch.testing.assert_close(logits, whole(case, tail), atol=1e-4, rtol=1e-5)
    assert kept or "Qwen" not in name
    assert case.model.config.model_type not in BIDIRECTIONAL


@pytest.mark.parametrize("name", [name for name in tiny.FAMILIES if name not in CAUSAL])
def test_the_families_that_are_left_out_are_those_where_it_is_not_exact(name: str):
    case = case_of(name)
    assert case.model.config.model_type in BIDIRECTIONAL
    assert not torch.allclose(prefix_of(case).last_logits(TAILS)[0], whole(case, TAILS[0]), atol=1e-2)
