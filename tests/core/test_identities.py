"""What must hold without any reference: the algebra of the fork."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import DynamicCache

from sira_cli.core.arguments import CACHE
from sira_cli.core.cache import LateLayer
from sira_cli.core.config import SiraConfig
from sira_cli.core.families import find_backbone
from sira_cli.core.fork import Step, attach
from sira_cli.core.image_tokens import ImageTokenFinder
from sira_cli.core.rules import plausible
from tests.support import tiny
from tests.support.helpers import batch_equals_singles, generate, generate_sira, hooks
from tests.support.prompts import family_prompts, gemma_prompts, llava_prompts, qwen_prompts


def test_alpha_zero_is_plain_generate(every_family: tiny.Tiny):
    family = every_family
    plain = family.model.generate(
        **family.inputs,
        max_new_tokens=6,
        do_sample=False,
        eos_token_id=None,
        suppress_tokens=tiny.SUPPRESS,
        return_dict_in_generate=True,
        output_logits=True,
    )
    tokens, steps = generate_sira(family.model, family.inputs, SiraConfig(k=3, alpha=0.0))
    assert torch.equal(tokens, plain.sequences[:, -6:])
    torch.testing.assert_close(torch.stack([step.full for step in steps]), torch.stack(plain.logits), atol=1e-5, rtol=0)


def test_a_stream_that_drops_nothing_equals_the_full_one(family: tiny.Tiny, monkeypatch):
    monkeypatch.setattr(ImageTokenFinder, "find", lambda self, ids: torch.zeros_like(ids, dtype=torch.bool))
    tokens, steps = generate_sira(family.model, family.inputs, SiraConfig(k=3, alpha=1.0))
    assert torch.equal(tokens, generate(family.model, family.inputs))
    for step in steps:
        torch.testing.assert_close(step.cf, step.full, atol=1e-5, rtol=0)


def test_cached_equals_uncached(family: tiny.Tiny):
    cached, cached_steps = generate_sira(family.model, family.inputs)
    uncached, uncached_steps = generate_sira(family.model, family.inputs, use_cache=False)
    assert torch.equal(cached, uncached)
    # A recurrent state is computed in chunks for a prompt and row by row in steps, which rounds in another way.
    state = any(mixer.recurrent for mixer in find_backbone(family.model).mixers)
    for one, other in zip(cached_steps, uncached_steps, strict=True):
        torch.testing.assert_close(one.contrast, other.contrast, atol=1e-4 if state else 5e-5, rtol=0)


@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize(
    ("make", "prompts"),
    [
        (tiny.llava, llava_prompts),
        (lambda: tiny.llava("eager"), llava_prompts),
        (lambda: tiny.qwen("2.5"), qwen_prompts),
        (tiny.gemma3, gemma_prompts),
        *((tiny.FAMILIES[name], name) for name in ("Qwen3.5", "LFM2-VL", "Gemma 4 E")),
    ],
    ids=["llava", "llava-eager", "qwen2.5-vl", "gemma3", "qwen3.5", "lfm2-vl", "gemma4-e"],
)
def test_a_left_padded_batch_equals_its_single_runs(make, prompts, k):
    """Padding decays no recurrent state, and fillers of the CF stream do not either."""
    case = make()
    if isinstance(prompts, str):
        batch_equals_singles(case.model, family_prompts(prompts, case, 3), k, 1e-4)
    else:
        batch_equals_singles(case.model, prompts(), k, 1e-5)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_the_shared_cache_is_one_and_the_late_cache_holds_text_rows_only(family: tiny.Tiny, k: int):
    if k not in family.boundaries:
        pytest.skip("the fork would lie inside DeepStack")
    prompt = family.inputs["input_ids"].shape[1]
    text = prompt - int(family.image.sum())
    cache = DynamicCache(config=family.model.config.get_text_config(decoder=True))
    shared = cache.layers[: tiny.LAYERS - k]
    mixers = find_backbone(family.model).mixers
    own_keys = [not mixer.recurrent and mixer.keys_from == layer for layer, mixer in enumerate(mixers)]
    lengths: list[tuple[set[int], ...]] = []

    def record(step: Step) -> None:
        early, late = cache.layers[: tiny.LAYERS - k], cache.layers[tiny.LAYERS - k :]
        assert all(now is then for now, then in zip(early, shared, strict=False))
        early = [layer for layer, has_keys in zip(early, own_keys, strict=False) if has_keys]
        late = [layer for layer, has_keys in zip(late, own_keys[tiny.LAYERS - k :], strict=False) if has_keys]
        full, cf = {layer.keys.shape[-2] for layer in late}, {layer.cf.keys.shape[-2] for layer in late}
        lengths.append(({layer.get_seq_length() for layer in early}, full, cf))

    with attach(family.model, SiraConfig(k=k), on_step=record):
        generate(family.model, family.inputs, **{CACHE: cache})
    early, late = any(own_keys[: tiny.LAYERS - k]), any(own_keys[tiny.LAYERS - k :])
    for t, (of_early, of_full, of_cf) in enumerate(lengths):
        assert of_early == ({prompt + t} if early else set())
        assert (of_full, of_cf) == (({prompt + t}, {text + t}) if late else (set(), set()))
    assert len(lengths) == 6


def test_a_cache_without_config_and_a_cache_used_again(llava: tiny.Tiny):
    cache = DynamicCache()  # its layers are made as they are needed
    with attach(llava.model, SiraConfig(k=3)):
        first = generate(llava.model, llava.inputs, **{CACHE: cache})
        cache.reset()
        again = generate(llava.model, llava.inputs, **{CACHE: cache})
    assert torch.equal(first, generate_sira(llava.model, llava.inputs)[0])
    assert torch.equal(again, first)


def test_two_models_at_once(llava: tiny.Tiny):
    other = tiny.qwen("2.5")
    expected = [generate_sira(case.model, case.inputs)[0] for case in (llava, other)]
    with attach(llava.model, SiraConfig(k=3)), attach(other.model, SiraConfig(k=3)):
        tokens = [generate(case.model, case.inputs) for case in (llava, other)]
    assert all(torch.equal(one, two) for one, two in zip(tokens, expected, strict=True))


def test_no_hook_remains(llava: tiny.Tiny):
    generate(llava.model, llava.inputs)  # transformers installs hooks of its own at the first forward
    before = hooks(llava.model)
    with attach(llava.model):
        assert hooks(llava.model) > before
        generate(llava.model, llava.inputs)
    assert hooks(llava.model) == before


def test_no_hook_remains_after_an_error_and_the_model_works_as_before(llava: tiny.Tiny):
    expected, before = generate(llava.model, llava.inputs), hooks(llava.model)

    def fail(step: Step) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), attach(llava.model, on_step=fail):
        generate(llava.model, llava.inputs)
    assert hooks(llava.model) == before
    assert all(layer.self_attn.config is llava.model.get_decoder().config for layer in llava.model.get_decoder().layers)
    assert torch.equal(generate(llava.model, llava.inputs), expected)
    generate_sira(llava.model, llava.inputs)  # and it can be attached again


@pytest.mark.parametrize("make", [tiny.llava, lambda: tiny.qwen("2.5"), tiny.gemma3, lambda: tiny.paligemma(2)])
def test_bfloat16_is_finite_and_contrasted_in_float32(make):
    case = make()
    model = case.model.to(torch.bfloat16)
    inputs = {
        name: value.to(torch.bfloat16) if value.is_floating_point() else value for name, value in case.inputs.items()
    }
    _, steps = generate_sira(model, inputs)
    for step in steps:
        assert step.full.dtype == step.cf.dtype == step.contrast.dtype == torch.float32
        assert step.full.isfinite().all()
        assert step.cf.isfinite().all()
        torch.testing.assert_close(step.contrast, 1.5 * step.full - 0.5 * step.cf, atol=0, rtol=0)
        # Of numbers with 8 bits of mantissa, a contrast in bfloat16 would land on bfloat16 numbers.
        assert not torch.equal(step.contrast, step.contrast.bfloat16().float())


@pytest.mark.parametrize("beta", [0.1, 0.9])
def test_beta_leaves_only_plausible_tokens(llava: tiny.Tiny, beta: float):
    tokens, steps = generate_sira(llava.model, llava.inputs, SiraConfig(k=3, alpha=3.0, beta=beta))
    for step, token in zip(steps, tokens[0].tolist(), strict=True):
        assert step.contrast.isfinite().all()  # on_step sees the contrast before the cut-off
        plausible = step.full[0] >= step.full[0].max() + math.log(beta)
        best = step.contrast[0].masked_fill(~plausible, -math.inf)
        best[tiny.SUPPRESS] = -math.inf
        assert token == int(best.argmax())


def test_the_likeliest_token_is_plausible_whatever_the_cut(llava: tiny.Tiny):
    """With beta = 1 it is the only one: the texts are greedy's. A token at the cut itself is left."""
    tokens, _ = generate_sira(llava.model, llava.inputs, SiraConfig(k=3, alpha=3.0, beta=1.0))
    assert torch.equal(tokens, generate(llava.model, llava.inputs))
    z = torch.tensor([[0.0, math.log(0.5), math.log(0.49)], [2.0, 2.0, 1.0]])
    for beta, kept in ((1.0, [[True, False, False], [True, True, False]]), (0.5, [[True, True, False]] * 2)):
        assert plausible(torch.ones(2, 3), z, beta).isfinite().tolist() == kept


def test_late_layers_report_the_full_stream_alone(llava: tiny.Tiny):
    cache = DynamicCache(config=llava.model.config)
    with attach(llava.model, SiraConfig(k=2)):
        generate(llava.model, llava.inputs, **{CACHE: cache})
    late = cache.layers[-1]
    assert isinstance(late, LateLayer)
    assert late.get_seq_length() == cache.get_seq_length() == cache.layers[0].keys.shape[-2]
    assert late.get_mask_sizes(1) == cache.layers[0].get_mask_sizes(1)
