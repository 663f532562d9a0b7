"""Passes over known rows equal uncached forwards: forced texts, every K from one prefill, texts behind a picture.

At the end: what the caches of both streams hold, and which rows of a prompt the last layers leave out.
"""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from transformers import DynamicCache

from sira_cli.core import passes, reference
from sira_cli.core.arguments import CACHE
from sira_cli.core.cache import cut_back, full_stream
from sira_cli.core.config import SiraConfig
from sira_cli.core.families import find_backbone, position_state
from sira_cli.core.fork import Step, attach
from sira_cli.core.passes import BIDIRECTIONAL, TAILS_AT_ONCE, ImagePrefix, next_token, score
from sira_cli.errors import AttachError, ImageTokenError, SettingsError, UnsupportedModelError
from tests.support import census, tiny
from tests.support.helpers import case_of, equal_streams, family_prompts, generate, generate_sira, hooks, left_pad

# --- forced texts

TEXT = [11, 57, 33, 7, 42]


FORCED = [(name, rows, [TEXT]) for name in tiny.REPRESENTATIVES for rows in (2, 16)]
BATCHED = ["LLaVA-1.5", "Qwen2.5-VL", "Gemma 3", "PaliGemma", "InternVL"]
FORCED += [(name, 16, [TEXT[:1], TEXT, TEXT[2:4]]) for name in BATCHED]


def slow(case: tiny.Tiny, k: int, text: list[int]) -> reference.Reference:
    return reference.decode(case, k, 0.5, len(text), follow=text)


@pytest.mark.parametrize(("name", "rows", "texts"), FORCED)
def test_forced_texts_equal_an_uncached_forward(name: str, rows: int, texts: list[list[int]], monkeypatch):
    monkeypatch.setattr(passes, "ROWS_AT_ONCE", rows)
    case = case_of(name)
    steps = list(score(case.model, SiraConfig(k=3, alpha=0.7), left_pad([case.inputs] * len(texts)), texts))
    assert len(steps) == len(TEXT)
    for row, text in enumerate(texts):
        expected, own = slow(case, 3, text), steps[-len(text) :]
        equal_streams(own, expected, row=row)
        contrast = 1.7 * expected.full - 0.7 * expected.cf
        torch.testing.assert_close(torch.stack([step.contrast[row] for step in own]), contrast, atol=3e-4, rtol=0)


@pytest.mark.parametrize("cap", [None, 2.0])
def test_what_a_model_does_after_its_head(cap: float | None):
    """A soft cap is followed; PaliGemma 2 leaves the cap of its config out until transformers 5.22."""
    case = tiny.paligemma(2)
    case.model.config.text_config.final_logit_softcapping = cap
    equal_streams(score(case.model, SiraConfig(k=4), case.inputs, [TEXT]), slow(case, 4, TEXT))


def test_what_cannot_be_forced_is_refused(llava: tiny.Tiny):
    with pytest.raises(ValueError, match="expected 1 texts with tokens"):
        next(score(llava.model, SiraConfig(k=3), llava.inputs, [[]]))

    model = tiny.llava().model
    model.register_forward_hook(lambda model, args, output: setattr(output, "logits", output.logits * 2))
    with pytest.raises(UnsupportedModelError, match="does more after its final norm"):
        list(score(model, SiraConfig(k=3), llava.inputs, [TEXT]))


# --- every K from one prefill


ALONE = [(name, False) for name in (*tiny.REPRESENTATIVES, *census.KINDS, "chameleon")]  # whose layers return a tuple
PADDED = [(name, True) for name in ("LLaVA-1.5", "eager", "Qwen2.5-VL", "Qwen3.5", "LFM2-VL", "Gemma 4 E")]


@pytest.mark.parametrize(("name", "padded"), ALONE + PADDED)
def test_every_k_equals_algorithm_1(name: str, padded: bool):
    case, family = (tiny.llava("eager"), "LLaVA-1.5") if name == "eager" else (case_of(name), name)
    singles, ks = (family_prompts(family, case), [2, 5, 3, 2]) if padded else ([case.inputs], case.boundaries)
    full, cf = next_token(case.model, SiraConfig(), left_pad(singles) if padded else case.inputs, ks)
    assert list(cf) == sorted({*ks}, reverse=True)
    for row, single in enumerate(singles):
        plain = case.model(**single, use_cache=False).logits[0, -1]
        torch.testing.assert_close(full[row], plain, atol=1e-4 if padded else 1e-5, rtol=0)
        for k, z_cf in cf.items():
            expected = reference.counterfactual(case.model, single, single["input_ids"] == tiny.IMAGE, k)
            torch.testing.assert_close(z_cf[row], expected, atol=1e-4, rtol=0)
    assert all((one - other).abs().max() > 0.01 for one, other in itertools.pairwise([full, *cf.values()]))


def test_what_passes_leave_behind_and_many_k_refuse(llava: tiny.Tiny):
    llava.model(**llava.inputs)  # transformers puts hooks of its own on, once
    before = hooks(llava.model)
    next_token(llava.model, SiraConfig(), llava.inputs, [3])
    list(score(llava.model, SiraConfig(k=3), llava.inputs, [TEXT]))
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


# --- caches

INDEXERS = sorted({"dots3_note"} & census.HERE)


def cache_for(case: tiny.Tiny) -> DynamicCache:
    return DynamicCache(config=case.model.config.get_text_config(decoder=True))


@pytest.mark.parametrize("k", [1, 3, 5])
def test_the_shared_cache_is_one_and_the_late_cache_holds_text_rows_only(family: tiny.Tiny, k: int):
    if k not in family.boundaries:
        pytest.skip("the fork would lie inside DeepStack")
    prompt, text = family.image.shape[1], int((~family.image).sum())
    cache, mixers, b = cache_for(family), find_backbone(family.model).mixers, tiny.LAYERS - k
    shared = cache.layers[:b]
    own_keys = [not mixer.recurrent and mixer.keys_from == layer for layer, mixer in enumerate(mixers)]
    lengths: list[tuple[set[int], ...]] = []

    def record(step: Step) -> None:
        assert all(now is then for now, then in zip(cache.layers, shared, strict=False))
        kept = [layer for layer, has_keys in zip(cache.layers, own_keys, strict=False) if has_keys]
        early, late = kept[: sum(own_keys[:b])], kept[sum(own_keys[:b]) :]
        of_late = [(layer.get_seq_length(), layer.keys.shape[-2], layer.cf.keys.shape[-2]) for layer in late]
        lengths.append(({layer.get_seq_length() for layer in early}, {*of_late}))

    with attach(family.model, SiraConfig(k=k), on_step=record):
        generate(family.model, family.inputs, **{CACHE: cache})
    for t, (early, late) in enumerate(lengths):
        assert early == ({prompt + t} if any(own_keys[:b]) else set())
        assert late == ({(prompt + t, prompt + t, text + t)} if any(own_keys[b:]) else set())
    assert len(lengths) == 6


@pytest.mark.parametrize("name", ["LLaVA-1.5", "Qwen3.5", "LFM2-VL", "Gemma 4 E", "Gemma 4", *INDEXERS])
def test_a_cache_that_was_emptied_is_as_good_as_new(name: str):
    """Also for another K: its layers were of both streams, and are then of one; without a fork they are refused."""
    case = case_of(name)
    cache = DynamicCache() if name == "LLaVA-1.5" else cache_for(case)  # its layers are made as they are needed
    for k in (3, 5, 1):
        expected, _ = generate_sira(case.model, case.inputs, SiraConfig(k=k))
        found, _ = generate_sira(case.model, case.inputs, SiraConfig(k=k), **{CACHE: cache})
        assert torch.equal(found, expected)
        cache.reset()
    generate_sira(case.model, case.inputs, SiraConfig(k=3), **{CACHE: cache})
    with pytest.raises(AttachError, match="cannot be used outside"):
        case.model(input_ids=torch.tensor([[5]]), **{CACHE: cache})
    cache.reset()
    with pytest.raises(AttachError, match="cannot be used outside"):
        generate(case.model, case.inputs, **{CACHE: cache})


@pytest.mark.parametrize("name", ["Qwen3.5", "LFM2-VL", *INDEXERS])
def test_a_state_without_columns_cannot_be_cut_back(name: str):
    case, cache = case_of(name), cache_for(case_of(name))
    with attach(case.model, SiraConfig(k=3)):
        with pytest.raises(UnsupportedModelError, match=r"have .*: .* DynamicCache\(config=model.config\)"):
            generate(case.model, case.inputs, **{CACHE: DynamicCache()})
        generate(case.model, case.inputs, **{CACHE: cache})
    assert cut_back(cache, torch.tensor([0]), 20) is None
    assert full_stream(cache, 0, 0, 20) is None


def test_in_the_last_layer_all_rows_get_keys_and_the_last_ones_all_else():
    case, seen = tiny.llava(), list[int]()
    layer = case.model.get_decoder().layers[-1]
    with attach(case.model, SiraConfig(k=3)):
        for module in (layer.self_attn.k_proj, layer.self_attn.o_proj, layer.mlp.up_proj):  # sees what our hooks leave
            module.register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[1]))
        case.model(**case.inputs)
    assert seen == [case.image.shape[1] + int((~case.image).sum()), 2, 2]
