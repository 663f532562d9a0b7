"""Kinds of layers that no family in the table has: the whole grid, many K at once."""

from __future__ import annotations

import functools

import pytest
import torch
from transformers import DynamicCache

from sira_cli.core import reference
from sira_cli.core.arguments import CACHE
from sira_cli.core.cache import cut_back, full_stream
from sira_cli.core.config import SiraConfig
from sira_cli.core.families import find_backbone
from sira_cli.core.fork import attach
from sira_cli.core.passes import next_token
from sira_cli.errors import AttachError, UnsupportedModelError
from sira_cli.methods.sid import Sid
from tests.support import census, tiny
from tests.support import reference_methods as slow
from tests.support.decoding import attached
from tests.support.helpers import batch_equals_singles, equal_streams, generate, generate_sira, hooks, left_pad

STEPS = 6  # Llama 4's prompt has 30 tokens and chunks have 16: a new one begins on the way

KINDS = {
    "llama4": "chunks of the text, and queries that are scaled by column",
    "mistral4": "compressed keys and values, and queries that are scaled by position",
    "granite4_vision": "image features before layers 0 to 5",
    "ernie4_5_vl_moe": "experts by the kind of token",
    "dots3_note": "indexers that choose keys, and windows over compressed ones",
}
KINDS = {kind: what for kind, what in KINDS.items() if kind in census.HERE}
indexers = pytest.mark.skipif("dots3_note" not in KINDS, reason="no type with indexers in this version")
COLUMNS = ("mistral4", "granite4_vision", "ernie4_5_vl_moe")


@functools.cache
def case_of(kind: str) -> tiny.Tiny:
    return census.case_of(kind)


@pytest.mark.parametrize("k", range(1, tiny.LAYERS))
@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_reference(kind: str, k: int):
    case = case_of(kind)
    expected = reference.decode(case, k, 0.5, STEPS)
    tokens, steps = generate_sira(case.model, case.inputs, SiraConfig(k=k))
    whole = census.without_cache(case, SiraConfig(k=k), STEPS)
    for found, seen in ((tokens[0].tolist(), steps), whole):
        assert found == expected.tokens
        equal_streams(seen, expected, 1e-5)
    assert float((expected.full - expected.cf).abs().max()) > 0.1


@pytest.mark.parametrize("kind", [*KINDS, "chameleon"])  # whose layers return a tuple
def test_many_values_of_k_in_one_pass(kind: str):
    case = case_of(kind)
    found = next_token(case.model, SiraConfig(), case.inputs, [1, 2, 4, 5])
    for k, logits in found.cf.items():
        expected = reference.counterfactual(case.model, case.inputs, case.image, k)
        torch.testing.assert_close(logits[0], expected, atol=1e-5, rtol=0)


@indexers
def test_the_cache_of_an_indexer():
    """It is emptied and used for another K; outside of the fork, or without its layers' kinds, it is refused."""
    case = case_of("dots3_note")
    cache = DynamicCache(config=case.model.config)
    for k in (3, 5, 1):
        expected, _ = generate_sira(case.model, case.inputs, SiraConfig(k=k))
        found, _ = generate_sira(case.model, case.inputs, SiraConfig(k=k), **{CACHE: cache})
        assert torch.equal(found, expected)
        assert cut_back(cache, torch.tensor([0]), 20) is None
        with pytest.raises(AttachError, match="cannot be used outside"):
            case.model(input_ids=torch.tensor([[5]]), **{CACHE: cache})
        cache.reset()
        assert cache.layers[5].cf.keys is None
    cache = DynamicCache(config=case.model.config)
    with pytest.raises(UnsupportedModelError, match=r"have an indexer: .* DynamicCache\(config=model.config\)"):
        generate_sira(case.model, case.inputs, **{CACHE: DynamicCache()})
    generate(case.model, case.inputs, **{CACHE: cache})
    cache.layers[1:] = []
    assert full_stream(cache, 0, 0, 20) is None  # without the indexer's keys it would be of no use


@indexers
def test_both_streams_of_an_indexer_follow_the_beams_and_are_never_cropped():
    case = case_of("dots3_note")
    cache = DynamicCache(config=case.model.config)
    generate_sira(case.model, left_pad([case.inputs, census.longer(case, 4)]), SiraConfig(k=1), **{CACHE: cache})
    layer = cache.layers[5]
    parts = [(layer, "keys"), (layer.cf, "keys"), (layer.cf, "values"), (layer.cf, "indexer_keys")]
    rows = [(getattr(*part)[0], getattr(*part)[1]) for part in parts]
    assert not any(torch.equal(first, second) for first, second in rows)
    for change, order in [
        (lambda: layer.reorder_cache(torch.tensor([1, 0])), [1, 0]),
        (lambda: layer.batch_repeat_interleave(2), [1, 1, 0, 0]),
        (lambda: layer.batch_select_indices(torch.tensor([1, 2])), [1, 0]),
    ]:
        change()
        for part, own in zip(parts, rows, strict=True):
            assert torch.equal(getattr(*part), torch.stack([own[row] for row in order]))
    with pytest.raises(UnsupportedModelError, match="cannot be cropped"):
        layer.crop(-1)


def with_half_a_picture(case: tiny.Tiny) -> dict[str, torch.Tensor]:
    ids = tiny.prompt(8)
    ids[0, 4], ids[0, 13] = 102, 103
    types = {name: (ids == tiny.IMAGE).long() for name in case.inputs if name.endswith("token_type_ids")}
    half = {"pixel_values": case.inputs["pixel_values"][:32], "image_grid_thw": torch.tensor([[1, 4, 8]])}
    return tiny.with_mask(ids, **half, **types)


@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize("kind", sorted({"dots3_note", "kimi_k25", "ernie4_5_vl_moe"} & census.HERE))
def test_pictures_of_two_sizes_in_a_batch(kind: str, k: int):
    """There the full stream has padding where the CF stream has none."""
    case = case_of(kind)
    singles = [case.inputs, with_half_a_picture(case)]
    singles = [{name: single[name] for name in singles[0]} for single in singles]
    batch_equals_singles(case.model, singles, k, 1e-5)


@pytest.mark.parametrize("kind", sorted({"mistral4", "dots3_note"} & census.HERE))
def test_beams_in_a_padded_batch(kind: str):
    case = case_of(kind)
    singles = [case.inputs, census.longer(case, 4)]
    for k in (1, 5):
        with attach(case.model, SiraConfig(k=k)):
            batch = generate(case.model, left_pad(singles), num_beams=3)
            expected = [generate(case.model, single, num_beams=3, use_cache=False) for single in singles]
            assert torch.equal(batch, torch.cat(expected))


@pytest.mark.parametrize("kind", COLUMNS)
def test_sid_equals_its_reference(kind: str):
    """Its CF stream holds image rows, too."""
    case = case_of(kind)
    expected, _ = slow.sid(case, 5)
    with attached(Sid(visible=5), case):
        assert generate(case.model, case.inputs)[0].tolist() == expected.tokens


def test_tokens_that_a_model_rules_out_stay_out():
    """Chameleon gives tokens of pictures the smallest number that there is."""
    case = case_of("chameleon")
    _, steps = generate_sira(case.model, case.inputs, SiraConfig(k=3, alpha=3.0))
    for step in steps:
        assert step.full[0, 110] == torch.finfo(torch.float32).min
        assert step.contrast[0, 110:120].max() < -1e29
        assert step.contrast.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_is_given_back(kind: str):
    """Also Llama 4's own scaling of queries."""
    case = case_of(kind)
    before, own_hooks = generate(case.model, case.inputs), hooks(case.model)
    own = [getattr(mixer.module, "attn_temperature_tuning", None) for mixer in find_backbone(case.model).mixers]
    with attach(case.model, SiraConfig(k=4)):
        generate(case.model, case.inputs)
    assert hooks(case.model) == own_hooks
    assert torch.equal(generate(case.model, case.inputs), before)
    assert own == [getattr(mixer.module, "attn_temperature_tuning", None) for mixer in find_backbone(case.model).mixers]
