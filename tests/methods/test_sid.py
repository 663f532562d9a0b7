"""SID, the method whose contrast stream is a fork with other rows: it equals its slow reference."""

from __future__ import annotations

import pytest
import torch

from sira_cli.core import fork
from sira_cli.core.arguments import CACHE
from sira_cli.core.config import SiraConfig
from sira_cli.errors import SettingsError, UnsupportedModelError
from sira_cli.methods.greedy_apc import GreedyApc
from sira_cli.methods.sid import Sid, SidAsPublished
from sira_cli.methods.sid_fork import SidFork
from tests.support import reference_methods as slow
from tests.support import tiny
from tests.support.decoding import attached, case_of, decoded
from tests.support.helpers import generate, hooks, left_pad
from tests.support.prompts import llava_prompts, qwen_prompts
from tests.support.tiny import Tiny

FAMILIES = ["LLaVA-1.5", "Qwen2.5-VL", "InternVL", "Gemma 4", "PaliGemma", "PaliGemma 2"]
SID = Sid(visible=5)
PLAIN = {"do_sample": False, "max_new_tokens": 6, "eos_token_id": None}


@pytest.mark.parametrize("name", FAMILIES)
def test_equals_its_reference(name: str):
    case = case_of(name)
    expected, choices = slow.sid(case, 5)
    assert len(set(map(frozenset, choices))) > 1  # else a choice fixed at the prompt would pass too
    tokens, scores = decoded(SID, case)
    assert tokens[0].tolist() == expected.tokens
    torch.testing.assert_close(scores[:, 0], expected.scores, atol=2e-4, rtol=1e-5)


@pytest.mark.parametrize("name", ["LLaVA-1.5", "Qwen2.5-VL", "PaliGemma"])
def test_a_stream_that_sees_all_image_tokens_is_the_full_one(name: str):
    case = case_of(name)
    with fork.attached(SidFork(case.model, SiraConfig(beta=0.1), lambda tokens: tokens)):
        output = case.model.generate(
            **case.inputs, **PLAIN, suppress_tokens=tiny.SUPPRESS, return_dict_in_generate=True, output_logits=True
        )
    tokens, scores = output.sequences[:, case.inputs["input_ids"].shape[1] :], torch.stack(output.logits)
    plain, plain_scores = decoded(GreedyApc(), case)
    assert torch.equal(tokens, plain)
    torch.testing.assert_close(scores, plain_scores, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_without_strength_it_is_greedy(name: str):
    case = case_of(name)
    assert torch.equal(decoded(Sid(0.0, visible=5), case)[0], generate(case.model, case.inputs))


@pytest.mark.parametrize(
    ("name", "prompts"), [("LLaVA-1.5", llava_prompts), ("Qwen2.5-VL", qwen_prompts)], ids=["llava", "qwen2.5-vl"]
)
def test_each_row_of_a_left_padded_batch_has_its_own_choice(name: str, prompts):
    """The published code takes the first row's for all."""
    model, singles, method = case_of(name).model, prompts(), Sid(visible=3)
    tokens, scores = decoded(method, Tiny(model, left_pad(singles)))
    for row, single in enumerate(singles):
        alone, alone_scores = decoded(method, Tiny(model, single))
        assert tokens[row].tolist() == alone[0].tolist()
        torch.testing.assert_close(scores[:, row], alone_scores[:, 0], atol=2e-4, rtol=1e-5)


def test_the_late_cache_holds_every_row_twice():
    case = case_of("LLaVA-1.5")
    with attached(SID, case):
        output = case.model.generate(**case.inputs, max_new_tokens=4, return_dict_in_generate=True, do_sample=False)
    rows = case.inputs["input_ids"].shape[1] + 3
    lengths = [layer.keys.shape[-2] for layer in output[CACHE].layers]
    assert lengths == [rows] * tiny.LAYERS
    assert [layer.cf.keys.shape[-2] for layer in output[CACHE].layers[2:]] == [rows] * (tiny.LAYERS - 2)


def test_it_takes_beams_processors_and_sampling():
    case = case_of("LLaVA-1.5")
    assert decoded(SID, case, num_beams=3)[0].shape == (1, 6)
    assert not torch.equal(decoded(SID, case, repetition_penalty=1.7)[0], decoded(SID, case)[0])
    drawn = []
    for seed in (1, 1):
        torch.manual_seed(seed)
        drawn.append(decoded(SID, case, do_sample=True, top_k=0)[0])
    assert torch.equal(*drawn)


def test_no_hook_remains_and_the_attention_is_what_it_was():
    case = case_of("LLaVA-1.5")
    plain, before = generate(case.model, case.inputs), hooks(case.model)
    with pytest.raises(UnsupportedModelError, match="leave out use_cache=False"), attached(SID, case):
        generate(case.model, case.inputs, use_cache=False)
    assert hooks(case.model) == before
    assert case.model.get_decoder().config._attn_implementation == "sdpa"
    assert torch.equal(generate(case.model, case.inputs), plain)


@pytest.mark.parametrize(("name", "reason"), [("Qwen3-VL", "DeepStack"), ("Gemma 3", "sliding window")])
def test_families_that_it_cannot_follow(name: str, reason: str):
    case = case_of(name)
    with pytest.raises(UnsupportedModelError, match=reason), attached(SID, case):
        pass


def test_how_many_tokens_are_visible():
    captions, questions = Sid().for_task("caption"), Sid().for_task("ask")
    assert (captions.visible, questions.visible) == (50, 100)
    assert Sid(visible=7).for_task("ask").visible == 7
    # More than the authors' number: theirs. No more: 50 or 100 of 576, rounded, and never all.
    expected = {
        576: (50, 100),
        101: (50, 100),
        100: (50, 17),
        64: (50, 11),
        51: (50, 9),
        50: (4, 9),
        2: (1, 1),
        1: (0, 0),
    }
    for tokens, visible in expected.items():
        assert (captions.visible_of(tokens), questions.visible_of(tokens)) == visible
        assert questions.for_picture(tokens) == Sid(visible=visible[1])
    assert Sid(visible=64).visible_of(65) == 64
    with pytest.raises(SettingsError, match="visible of method sid"):
        Sid(visible=-1)


def test_each_picture_of_a_batch_shows_a_share_of_its_own_tokens():
    """As if the authors' number were 144, which these pictures do not have: a quarter of their tokens."""
    method = SidAsPublished(visible=144)
    case, singles = case_of("Qwen2.5-VL"), qwen_prompts()
    model = case.model
    counts = [int(Tiny(model, single).image.sum()) for single in singles]
    assert len({round(count / 4) for count in counts}) > 1
    tokens, scores = decoded(method, Tiny(model, left_pad(singles)))
    for row, (single, count) in enumerate(zip(singles, counts, strict=True)):
        expected, _ = slow.sid(Tiny(model, single, case.grown), round(count / 4))
        assert tokens[row].tolist() == expected.tokens
        torch.testing.assert_close(scores[:, row], expected.scores, atol=2e-4, rtol=1e-5)


@pytest.mark.parametrize("visible", [16, 1000])
def test_a_stream_that_would_see_all_image_tokens_is_refused(visible: int):
    case = case_of("LLaVA-1.5")
    message = f"leaves {visible} image tokens visible, but this picture has 16: .* Set visible below 16"
    with pytest.raises(SettingsError, match=message):
        decoded(Sid(visible=visible), case)
    assert decoded(Sid(visible=15), case)[0].shape == (1, 6)
