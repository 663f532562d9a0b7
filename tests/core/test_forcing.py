"""Forced texts: one prefill gives what an uncached forward a token gives, in both streams."""

from __future__ import annotations

import pytest
import torch

from sira_cli.core import passes, reference
from sira_cli.core.config import SiraConfig
from sira_cli.core.passes import score
from sira_cli.errors import UnsupportedModelError
from tests.support import tiny
from tests.support.helpers import equal_streams, generate_sira, left_pad

TEXT = [11, 57, 33, 7, 42]


@torch.no_grad()
def slow(case: tiny.Tiny, k: int, text: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """`[N, V]` of each stream, the whole sequence again for every token."""
    inputs, image, full, cf = dict(case.inputs), case.image, [], []
    for token in text:
        full.append(case.model(**inputs, use_cache=False).logits[0, -1].float())
        cf.append(reference.counterfactual(case.model, inputs, image, k))
        inputs = reference.extend(inputs, token, case.grown)
        image = torch.nn.functional.pad(image, (0, 1), value=False)
    return torch.stack(full), torch.stack(cf)


@pytest.mark.parametrize("rows", [2, 16])
def test_forced_tokens_equal_an_uncached_forward(family: tiny.Tiny, rows, monkeypatch):
    monkeypatch.setattr(passes, "ROWS_AT_ONCE", rows)
    steps = list(score(family.model, SiraConfig(k=3, alpha=0.7), family.inputs, [TEXT]))
    full, cf = slow(family, 3, TEXT)
    torch.testing.assert_close(torch.cat([step.full for step in steps]), full, atol=1e-4, rtol=0)
    torch.testing.assert_close(torch.cat([step.cf for step in steps]), cf, atol=1e-4, rtol=0)
    torch.testing.assert_close(torch.cat([step.contrast for step in steps]), 1.7 * full - 0.7 * cf, atol=3e-4, rtol=0)
    assert (full - cf).abs().max() > 0.01


@pytest.mark.parametrize("name", ["LLaVA-1.5", "Qwen2.5-VL", "Gemma 3", "PaliGemma", "InternVL"])
def test_texts_of_several_lengths_in_a_batch(name):
    case = tiny.FAMILIES[name]()
    texts = [TEXT[:1], TEXT, TEXT[2:4]]
    steps = list(score(case.model, SiraConfig(k=3), left_pad([case.inputs] * 3), texts))
    assert len(steps) == len(TEXT)
    for row, text in enumerate(texts):
        full, cf = slow(case, 3, text)
        mine = steps[-len(text) :]
        torch.testing.assert_close(torch.stack([step.full[row] for step in mine]), full, atol=1e-4, rtol=0)
        torch.testing.assert_close(torch.stack([step.cf[row] for step in mine]), cf, atol=1e-4, rtol=0)


@pytest.mark.parametrize("k", [2, 4])
def test_soft_caps_of_paligemma_2(k):
    """Caps that bind: of the scores of attention, and of the logits where a version of transformers applies it."""
    case = tiny.paligemma(2)
    before = case.model(**case.inputs).logits
    case.model.config.text_config.final_logit_softcapping = 2.0
    for module in case.model.modules():
        if hasattr(module, "attn_logit_softcapping"):
            module.attn_logit_softcapping = 0.3
    assert (case.model(**case.inputs).logits - before).abs().max() > 0.1
    expected = reference.decode(case, k, 0.5, 3)
    tokens, steps = generate_sira(case.model, case.inputs, SiraConfig(k=k), max_new_tokens=3)
    assert tokens[0].tolist() == expected.tokens
    forced = list(score(case.model, SiraConfig(k=k), case.inputs, [expected.tokens]))
    for mine in (steps, forced):
        equal_streams(mine, expected)


def test_a_model_that_does_more_after_its_head_is_refused(llava):
    def scale(model, args, output):
        output.logits = output.logits * 2
        return output

    handle = llava.model.register_forward_hook(scale)
    try:
        with pytest.raises(UnsupportedModelError, match="does more after its final norm"):
            list(score(llava.model, SiraConfig(k=3), llava.inputs, [TEXT]))
    finally:
        handle.remove()


def test_a_prompt_needs_a_text_with_tokens(llava):
    with pytest.raises(ValueError, match="expected 1 texts with tokens"):
        next(score(llava.model, SiraConfig(k=3), llava.inputs, [[]]))
