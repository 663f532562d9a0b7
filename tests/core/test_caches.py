"""What the caches of both streams hold and are good for later, and what the last layers of a prompt leave out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from sira_cli.core.arguments import CACHE
from sira_cli.core.cache import cut_back, full_stream
from sira_cli.core.config import SiraConfig
from sira_cli.core.families import find_backbone
from sira_cli.core.fork import Step, attach
from sira_cli.errors import AttachError, UnsupportedModelError
from tests.support import census, tiny
from tests.support.decoding import case_of
from tests.support.helpers import compared, generate, generate_sira, left_pad

indexers = pytest.mark.skipif("dots3_note" not in census.HERE, reason="no type with indexers in this version")


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


EMPTIED = ["LLaVA-1.5", "Qwen3.5", "LFM2-VL", "Gemma 4 E", "Gemma 4", *sorted({"dots3_note"} & census.HERE)]


@pytest.mark.parametrize("name", EMPTIED)
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


@pytest.mark.parametrize("name", ["Qwen3.5", "LFM2-VL", *sorted({"dots3_note"} & census.HERE)])
def test_what_has_no_columns_needs_a_cache_that_knows_it_and_cannot_be_cut_back(name: str):
    case, cache = case_of(name), cache_for(case_of(name))
    with attach(case.model, SiraConfig(k=3)):
        with pytest.raises(UnsupportedModelError, match=r"have .*: .* DynamicCache\(config=model.config\)"):
            generate(case.model, case.inputs, **{CACHE: DynamicCache()})
        generate(case.model, case.inputs, **{CACHE: cache})
    assert cut_back(cache, torch.tensor([0]), 20) is None
    assert full_stream(cache, 0, 0, 20) is None


def test_a_layer_that_holds_more_than_keys_and_values_is_not_cut_back():
    cache = DynamicCache()
    cache.layers = [type("Indexed", (DynamicLayer,), {})()]  # as MiniMax M3's, whose index would be lost
    cache.update(torch.ones(1, 1, 4, 2), torch.ones(1, 1, 4, 2), 0)
    assert cut_back(cache, torch.tensor([0]), 2) is None


@indexers
def test_both_streams_of_an_indexer_follow_the_beams_and_are_never_cropped():
    case = case_of("dots3_note")
    cache = cache_for(case)
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


@pytest.mark.parametrize("k", [1, 3])
def test_the_cache_holds_what_the_plain_model_puts_there(family: tiny.Tiny, k: int):
    plain, forked = cache_for(family), cache_for(family)
    with torch.no_grad():
        family.model(**family.inputs, **{CACHE: plain}, use_cache=True)
        with attach(family.model, SiraConfig(k=k)):
            family.model(**family.inputs, **{CACHE: forked}, use_cache=True)
    mixer = find_backbone(family.model).mixers[-1]
    if mixer.keys_from < tiny.LAYERS - k:
        pytest.skip("the last layer reads the keys of a shared one")
    full, late = plain.layers[mixer.keys_from], forked.layers[mixer.keys_from]
    window = full.keys.shape[2]  # a sliding one keeps its newest rows only
    assert late.get_mask_sizes(1)[0] >= window
    for name in ("keys", "values"):
        expected, found = getattr(full, name), getattr(late, name)
        torch.testing.assert_close(found[:, :, -window:], expected, atol=1e-5, rtol=1e-5)
        if k == 1:  # the CF stream begins as a copy of the text's rows
            text = found[:, :, ~family.image[0]]
            torch.testing.assert_close(getattr(late.cf, name), text, atol=1e-5, rtol=1e-5)


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


def parts(layer: nn.Module) -> dict[str, nn.Module]:
    """The layer's projections: experts have none for all rows, and keys that serve as values need no second one."""
    attention, mlp = layer.self_attn, getattr(layer, "mlp", None)
    found = {name: getattr(attention, f"{name}_proj", None) for name in "qkvo"}
    found |= {name: getattr(mlp, f"{name}_proj", None) for name in ("up", "down")}
    return {name: module for name, module in found.items() if module is not None}


def test_all_rows_get_keys_and_the_last_ones_all_else(family: tiny.Tiny, monkeypatch):
    layers = [layer for layer in family.model.get_decoder().layers if hasattr(layer, "self_attn")]
    kernel, queries = torch.nn.functional.scaled_dot_product_attention, []

    def count(query, *args, **kwargs):
        queries.append(query.shape[2])
        return kernel(query, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", count)
    with (
        attach(family.model, SiraConfig(k=3)),
        rows_of(**parts(layers[-1])) as last,
        rows_of(**parts(layers[-2])) as before,
    ):
        family.model(**family.inputs, use_cache=False)  # with a cache, layers that share keys leave out more
    prompt, text = family.image.shape[1], int((~family.image).sum())
    late = layers[-2] in list(family.model.get_decoder().layers)[-3:]
    assert before == {name: [prompt + text if late else prompt] for name in before}
    assert last == {name: [prompt + text] if name in "kv" else [2] for name in last}
    # Heads that share keys may be packed into rows.
    assert set(queries[-2:]) <= {1, layers[-1].self_attn.num_key_value_groups}
    assert not late or set(queries[-4:-2]) == {prompt, text}


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


def test_layers_that_share_keys_run_all_rows_where_their_outputs_are_asked_for():
    case = case_of("Gemma 4 E")
    with torch.no_grad(), attach(case.model, SiraConfig(k=3)):
        recorded = case.model(**case.inputs, use_cache=True, output_hidden_states=True)
        plain = case.model(**case.inputs, use_cache=True)
    rows = case.image.shape[1] + int((~case.image).sum())
    assert [hidden.shape[1] for hidden in recorded.hidden_states[4:-1]] == [rows] * 2
    torch.testing.assert_close(recorded.logits, plain.logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_hidden_states_and_attentions_that_are_asked_for_are_whole(attention: str):
    case = tiny.llava(attention)
    wanted = {"output_hidden_states": True, "output_attentions": attention == "eager"}
    with torch.no_grad():
        plain = case.model(**case.inputs, **wanted)
        with attach(case.model, SiraConfig(k=3)):
            forked = case.model(**case.inputs, **wanted)
    prompt = case.image.shape[1]
    for expected, found in zip(plain.hidden_states[:-1], forked.hidden_states[:-1], strict=True):
        torch.testing.assert_close(found[:, :prompt], expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(forked.hidden_states[-1][:1], plain.hidden_states[-1][:, -1:], atol=1e-4, rtol=1e-4)
    for expected, found in zip(plain.attentions or (), forked.attentions or (), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_experts_get_all_rows():
    case = tiny.llava(text={**tiny.TEXT, "model_type": "mixtral", "num_local_experts": 4, "sliding_window": None})
    compared(case, SiraConfig(k=3), steps=4)
    last, prompt = case.model.get_decoder().layers[-1], case.image.shape[1]
    with attach(case.model, SiraConfig(k=3)), rows_of(experts=last.mlp, o=last.self_attn.o_proj) as seen:
        case.model(**case.inputs)
    assert seen == {"experts": [2 * prompt - 16], "o": [2]}


def test_a_family_that_was_not_tested_runs_whole(monkeypatch):
    case = tiny.llava()
    monkeypatch.setattr("sira_cli.core.families.TESTED", set())
    layer = case.model.get_decoder().layers[-1]
    with pytest.warns(match="not among the"), attach(case.model, SiraConfig(k=3)):  # noqa: SIM117 # hooks come first
        with rows_of(**parts(layer)) as seen:
            case.model(**case.inputs)
    assert seen == {name: [2 * case.image.shape[1] - 16] for name in seen}
