"""Texts behind a picture's rows, which are computed once: equal to whole prompts, in every family that allows it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sira_cli.core.families import POSITION_STATE
from sira_cli.core.passes import BIDIRECTIONAL, TAILS_AT_ONCE, ImagePrefix
from tests.support import census, tiny
from tests.support.decoding import case_of

CAUSAL = [name for name in tiny.FAMILIES if not name.startswith("PaliGemma")]
KINDS = [kind for kind in ("llama4", "mistral4", "dots3_note") if kind in census.HERE]  # layers that no family has
TAILS = [[20, 21, 22, 23, 24], [30, 31], [40], [50, 51, 52, 53, 54, 55, 56]]


def whole(case, length, tail):
    """The logits of the whole prompt `[V]`: one pass, no cache."""
    ids = case.inputs["input_ids"]
    inputs = {}
    for name, value in case.inputs.items():
        if value.shape == ids.shape:  # a tail is text: token types 0, seen
            value = F.pad(value[:, :length], (0, len(tail)), value=int(name == "attention_mask"))
        inputs[name] = value
    inputs["input_ids"][0, length:] = torch.tensor(tail)
    with torch.no_grad():
        return case.model(**inputs, use_cache=False).logits[0, -1].float()


def prefix_of(case):
    length = int(case.image[0].nonzero().max()) + 1
    return ImagePrefix(case.model, case.inputs, length), length


@pytest.mark.parametrize("name", [*CAUSAL, *KINDS])
def test_tails_of_all_lengths_equal_whole_prompts(name):
    """A recurrent state that several texts go on from is copied for each."""
    case = census.case_of(name) if name in KINDS else case_of(name)
    prefix, length = prefix_of(case)
    found = prefix.last_logits(TAILS)
    for row, tail in enumerate(TAILS):
        torch.testing.assert_close(found[row], whole(case, length, tail), atol=1e-4, rtol=1e-5)
    assert not torch.allclose(found[0], found[1], atol=1e-2)


@pytest.mark.parametrize("name", ["LLaVA-1.5", "Qwen2.5-VL", "Gemma 3"])
def test_it_can_be_asked_again_and_more_than_a_pass_holds(name):
    case = case_of(name)
    prefix, length = prefix_of(case)
    tails = [[60 + number, 70] for number in range(TAILS_AT_ONCE + 3)]
    prefix.last_logits(TAILS)
    found = prefix.last_logits(tails)
    for row in (0, TAILS_AT_ONCE - 1, TAILS_AT_ONCE, TAILS_AT_ONCE + 2):
        torch.testing.assert_close(found[row], whole(case, length, tails[row]), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("name", ["Qwen2-VL", "Qwen2.5-VL", "Qwen3-VL"])
def test_positions_that_a_model_keeps_are_put_back(name):
    case = case_of(name)
    with torch.no_grad():
        case.model(**case.inputs)
    kept = [
        getattr(module, state) for module in case.model.modules() for state in POSITION_STATE if hasattr(module, state)
    ]
    prefix, _ = prefix_of(case)
    prefix.last_logits(TAILS)
    now = [
        getattr(module, state) for module in case.model.modules() for state in POSITION_STATE if hasattr(module, state)
    ]
    assert [one is other for one, other in zip(now, kept, strict=True)] == [True] * len(kept)
    assert kept


@pytest.mark.parametrize("name", [name for name in tiny.FAMILIES if name not in CAUSAL])
def test_the_families_that_are_left_out_are_those_where_it_is_not_exact(name):
    case = case_of(name)
    assert case.model.config.model_type in BIDIRECTIONAL
    prefix, length = prefix_of(case)
    assert not torch.allclose(prefix.last_logits(TAILS)[0], whole(case, length, TAILS[0]), atol=1e-2)


def test_no_other_family_is_left_out():
    assert {case_of(name).model.config.model_type for name in CAUSAL}.isdisjoint(BIDIRECTIONAL)
