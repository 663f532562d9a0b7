"""What the caches of both streams hold, and which rows of a prompt the last layers leave out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from transformers import DynamicCache

from sira_cli.core.arguments import CACHE
from sira_cli.core.cache import cut_back, full_stream
from sira_cli.core.config import SiraConfig
from sira_cli.core.families import find_backbone
from sira_cli.core.fork import Step, attach
from sira_cli.errors import AttachError, UnsupportedModelError
from tests.support import census, tiny
from tests.support.helpers import case_of, generate, generate_sira

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
def test_what_has_no_columns_needs_a_cache_that_knows_it_and_cannot_be_cut_back(name: str):
    case, cache = case_of(name), cache_for(case_of(name))
    with attach(case.model, SiraConfig(k=3)):
        with pytest.raises(UnsupportedModelError, match=r"have .*: .* DynamicCache\(config=model.config\)"):
            generate(case.model, case.inputs, **{CACHE: DynamicCache()})
        generate(case.model, case.inputs, **{CACHE: cache})
    assert cut_back(cache, torch.tensor([0]), 20) is None
    assert full_stream(cache, 0, 0, 20) is None


# --- the last layers finish only the rows that decide a token


@contextmanager
def rows_of(**modules: nn.Module) -> Iterator[dict[str, list[int]]]:
    """Yield how many rows reach each module, pass by pass. It sees what hooks that are there already leave."""
    seen: dict[str, list[int]] = {name: [] for name in modules}
    handles = [
        module.register_forward_pre_hook(lambda module, args, name=name: seen[name].append(args[0].shape[1]))
        for name, module in modules.items()
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def test_all_rows_get_keys_and_the_last_ones_all_else(family: tiny.Tiny):
    layer = [layer for layer in family.model.get_decoder().layers if hasattr(layer, "self_attn")][-1]
    # Experts have no projections for all rows, and keys that serve as values need no second one.
    named = {name: getattr(layer.self_attn, f"{name}_proj", None) for name in "qkvo"}
    named |= {name: getattr(getattr(layer, "mlp", None), f"{name}_proj", None) for name in ("up", "down")}
    projections = {name: module for name, module in named.items() if module is not None}
    with attach(family.model, SiraConfig(k=3)), rows_of(**projections) as seen:
        family.model(**family.inputs, use_cache=False)  # with a cache, layers that share keys leave out more
    rows = family.image.shape[1] + int((~family.image).sum())
    assert seen == {name: [rows] if name in "kv" else [2] for name in projections}


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_layers_that_share_keys_run_the_last_rows_only(k: int):
    """Layers 4 and 5 of 6 share: the fork is behind their first one, at it, before."""
    case = case_of("Gemma 4 E")
    layers, config = case.model.get_decoder().layers, SiraConfig(k=k)
    with attach(case.model, config), rows_of(**{str(index): layer.mlp for index, layer in enumerate(layers)}) as seen:
        generate(case.model, case.inputs, max_new_tokens=3)
    prompt, text = case.image.shape[1], int((~case.image).sum())
    for index in range(tiny.LAYERS):
        both = index >= tiny.LAYERS - k
        assert seen[str(index)] == [1 + both if index > 3 else prompt + text * both, *[1 + both] * 2]


@pytest.mark.parametrize("name", ["LLaVA-1.5", "Gemma 4 E"])
def test_hidden_states_that_are_asked_for_are_whole(name: str):
    """Also where layers share keys, whose rows are left out otherwise."""
    case, wanted = case_of(name), {"output_hidden_states": True, "use_cache": True}
    with torch.no_grad():
        plain = case.model(**case.inputs, **wanted).hidden_states
        with attach(case.model, SiraConfig(k=3)):
            forked = case.model(**case.inputs, **wanted).hidden_states
    for expected, found in zip(plain[:-1], forked[:-1], strict=True):
        torch.testing.assert_close(found[:, : case.image.shape[1]], expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(forked[-1][:1], plain[-1][:, -1:], atol=1e-4, rtol=1e-4)
