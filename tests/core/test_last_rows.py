"""The last layer finishes only the rows that decide a token: what is left out, and what must not be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import transformers as hf
from torch import nn
from transformers import DynamicCache

from sira_cli.core import reference
from sira_cli.core.arguments import CACHE
from sira_cli.core.config import SiraConfig
from sira_cli.core.families import find_backbone
from sira_cli.core.fork import attach
from tests.support import tiny
from tests.support.helpers import equal_streams, generate_sira, left_pad
from tests.support.prompts import qwen_prompts


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
    prompt = family.inputs["input_ids"].shape[1]
    text = prompt - int(family.image.sum())
    late = layers[-2] in list(family.model.get_decoder().layers)[-3:]
    assert before == {name: [prompt + text if late else prompt] for name in before}
    few = {name: [prompt + text] if name in "kv" else [2] for name in last}
    if family.model.get_decoder().config._attn_implementation == "eager":  # it may have to return all weights
        assert last == few | {"q": [prompt + text]}
        return
    assert last == few
    # Heads that share keys may be packed into rows.
    heads = layers[-1].self_attn.num_key_value_groups
    assert set(queries[-2:]) <= {1, heads}
    if late:
        assert set(queries[-4:-2]) == {prompt, text}


@pytest.mark.parametrize(
    "k", [1, 2, 3, 5]
)  # layers 4 and 5 of 6 share: the fork is behind their first one, at it, before
def test_layers_that_share_keys_run_the_last_rows_only(k: int):
    case = tiny.gemma4("E4B")
    layers = case.model.get_decoder().layers
    with (
        attach(case.model, SiraConfig(k=k)),
        rows_of(**{str(index): layer.mlp for index, layer in enumerate(layers)}) as seen,
    ):
        found = case.model.generate(**case.inputs, max_new_tokens=3, do_sample=False, eos_token_id=None)
    prompt, text = case.inputs["input_ids"].shape[1], int((~case.image).sum())
    both = {index: index >= 6 - k for index in range(6)}
    assert seen == {
        str(index): [(2 if both[index] else 1) if index > 3 else prompt + text * both[index], *[1 + both[index]] * 2]
        for index in range(6)
    }
    with attach(case.model, SiraConfig(k=k)):
        whole = case.model.generate(
            **case.inputs, max_new_tokens=3, do_sample=False, eos_token_id=None, use_cache=False
        )
    assert found.tolist() == whole.tolist()


def test_layers_that_share_keys_run_all_rows_where_their_outputs_are_asked_for():
    case = tiny.gemma4("E4B")
    with torch.no_grad(), attach(case.model, SiraConfig(k=3)):
        recorded = case.model(**case.inputs, use_cache=True, output_hidden_states=True)
        plain = case.model(**case.inputs, use_cache=True)
    prompt, text = case.inputs["input_ids"].shape[1], int((~case.image).sum())
    assert [hidden.shape[1] for hidden in recorded.hidden_states[4:-1]] == [prompt + text] * 2
    torch.testing.assert_close(recorded.logits, plain.logits, atol=1e-5, rtol=1e-5)


def test_steps_lose_no_row(llava: tiny.Tiny):
    layer = llava.model.get_decoder().layers[-1]
    with attach(llava.model, SiraConfig(k=3)), rows_of(**parts(layer)) as seen:
        llava.model.generate(**llava.inputs, max_new_tokens=4, do_sample=False, eos_token_id=None)
    assert {name: rows[1:] for name, rows in seen.items()} == {name: [2, 2, 2] for name in seen}


@pytest.mark.parametrize("k", [1, 3])
def test_the_cache_holds_what_the_plain_model_puts_there(family: tiny.Tiny, k: int):
    config = family.model.config.get_text_config(decoder=True)
    plain, forked = DynamicCache(config=config), DynamicCache(config=config)
    with torch.no_grad():
        family.model(**family.inputs, **{CACHE: plain}, use_cache=True)
        with attach(family.model, SiraConfig(k=k)):
            family.model(**family.inputs, **{CACHE: forked}, use_cache=True)
    mixer = find_backbone(family.model).mixers[-1]
    if mixer.keys_from < tiny.LAYERS - k:
        pytest.skip("the last layer reads the keys of a shared one")
    full, late = plain.layers[mixer.keys_from], forked.layers[mixer.keys_from]
    window = full.keys.shape[2]  # a sliding one keeps its newest rows only
    for name in ("keys", "values"):
        expected, found = getattr(full, name), getattr(late, name)
        torch.testing.assert_close(found[:, :, -window:], expected, atol=1e-5, rtol=1e-5)
        if k == 1:  # the CF stream begins as a copy of the text's rows
            text = found[:, :, ~family.image[0]]
            torch.testing.assert_close(getattr(late.cf, name), text, atol=1e-5, rtol=1e-5)


def test_rows_of_a_padded_batch_with_and_without_a_cache():
    model, singles = tiny.qwen("2.5").model, qwen_prompts()
    batch = left_pad(singles)
    found = {
        name: generate_sira(model, batch, SiraConfig(k=3), **settings)[1]
        for name, settings in {"growing": {}, "none": {"use_cache": False}}.items()
    }
    for row, single in enumerate(singles):
        steps = generate_sira(model, single, SiraConfig(k=3))[1]  # not padded: no mask
        case = tiny.Tiny(model, single, {"mm_token_type_ids": 0})
        expected = reference.decode(case, 3, 0.5, len(steps))
        for step, (full, cf) in enumerate(zip(expected.full, expected.cf, strict=True)):
            torch.testing.assert_close(steps[step].full[0], full, atol=1e-4, rtol=0)
            torch.testing.assert_close(steps[step].cf[0], cf, atol=1e-4, rtol=0)
            for name, each in found.items():
                torch.testing.assert_close(each[step].full[row], full, atol=1e-4, rtol=0, msg=name)
                torch.testing.assert_close(each[step].cf[row], cf, atol=1e-4, rtol=0, msg=name)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_hidden_states_and_attentions_that_are_asked_for_are_whole(attention: str):
    case = tiny.llava(attention)
    wanted = {"output_hidden_states": True, "output_attentions": attention == "eager"}
    with torch.no_grad():
        plain = case.model(**case.inputs, **wanted)
        with attach(case.model, SiraConfig(k=3)):
            forked = case.model(**case.inputs, **wanted)
    prompt = case.inputs["input_ids"].shape[1]
    for expected, found in zip(plain.hidden_states[:-1], forked.hidden_states[:-1], strict=True):
        torch.testing.assert_close(found[:, :prompt], expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(forked.hidden_states[-1][:1], plain.hidden_states[-1][:, -1:], atol=1e-4, rtol=1e-4)
    if attention == "eager":
        for expected, found in zip(plain.attentions, forked.attentions, strict=True):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def mixtral() -> tiny.Tiny:
    """LLaVA-1.5 on a text stack with experts."""
    text = {**tiny.TEXT, "model_type": "mixtral", "num_local_experts": 4, "sliding_window": None}
    config = hf.LlavaConfig(
        vision_config=tiny.CLIP, text_config=text, image_token_index=tiny.IMAGE, image_seq_length=16
    )
    model = tiny.build(config, hf.LlavaForConditionalGeneration)
    return tiny.Tiny(model, tiny.with_mask(tiny.prompt(), pixel_values=tiny.pixels(1, 3, 32, 32)))


def test_experts_get_all_rows():
    case = mixtral()
    expected = reference.decode(case, 3, 0.5, 4)
    last = case.model.get_decoder().layers[-1]
    tokens, steps = generate_sira(case.model, case.inputs, SiraConfig(k=3), max_new_tokens=4)
    assert tokens[0].tolist() == expected.tokens
    equal_streams(steps, expected)
    prompt = case.inputs["input_ids"].shape[1]
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
    rows = 2 * case.inputs["input_ids"].shape[1] - 16
    assert seen == {name: [rows] for name in seen}
