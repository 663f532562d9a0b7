"""Static caches hold the two streams exactly, and their decoding steps leave nothing behind that changes in Python."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters
from transformers import CompileConfig, StaticCache
from transformers.cache_utils import StaticLayer

from sira_cli.core import reference
from sira_cli.core.arguments import CACHE
from sira_cli.core.config import SiraConfig
from sira_cli.core.fork import Step, attach
from sira_cli.core.static_cache import CF_ROWS, ReusedCache, StaticLateLayer
from tests.support import tiny
from tests.support.helpers import generate, generate_sira
from tests.support.prompts import gemma_prompts, llava_prompts

STEPS = 8


def same(steps: list[Step], full: torch.Tensor, cf: torch.Tensor) -> None:
    torch.testing.assert_close(torch.cat([step.full for step in steps]), full, atol=1e-4, rtol=0)
    torch.testing.assert_close(torch.cat([step.cf for step in steps]), cf, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("name", "k"),
    [(name, tiny.LAYERS // 2) for name in tiny.COLUMNS if name != "PaliGemma 2"]
    + [(name, k) for name in ("LLaVA-1.5", "Gemma 3") for k in (1, tiny.LAYERS - 1)],
)
def test_equals_the_reference(name: str, k: int):
    case = tiny.FAMILIES[name]()
    expected = reference.decode(case, k, 0.5, STEPS)
    settings = {"cache_implementation": "static", "max_new_tokens": STEPS}
    tokens, steps = generate_sira(case.model, case.inputs, SiraConfig(k=k), **settings)
    assert tokens[0].tolist() == expected.tokens
    same(steps, expected.full, expected.cf)


@pytest.mark.parametrize("window", [29, 33, 90])
def test_a_sliding_window_that_fills_up_while_decoding(window: int):
    """The prompt has 30 rows: windows that are full after the prompt, after some steps, never."""
    case = tiny.gemma3(window)
    expected = reference.decode(case, 3, 0.5, STEPS)
    tokens, steps = generate_sira(case.model, case.inputs, cache_implementation="static", max_new_tokens=STEPS)
    assert tokens[0].tolist() == expected.tokens
    same(steps, expected.full, expected.cf)


def test_beams_take_both_streams_along(llava: tiny.Tiny):
    settings = {"num_beams": 3, "max_new_tokens": STEPS}
    config = SiraConfig(k=3, alpha=1.0)
    expected, grown = generate_sira(llava.model, llava.inputs, config, **settings)
    tokens, steps = generate_sira(llava.model, llava.inputs, config, cache_implementation="static", **settings)
    assert torch.equal(tokens, expected)
    same(steps, *(torch.cat([getattr(step, name) for step in grown]) for name in ("full", "cf")))


def test_a_cache_serves_one_prompt_after_the_other_in_the_same_place(llava: tiny.Tiny):
    cache = ReusedCache(llava.model.config, 128, STEPS)
    places = set()
    for prompt in [*llava_prompts(), *reversed(llava_prompts())]:  # one, one and two images: S and T differ
        expected, expected_steps = generate_sira(llava.model, prompt, max_new_tokens=STEPS)
        cache.reset()
        tokens, steps = generate_sira(llava.model, prompt, **{CACHE: cache}, max_new_tokens=STEPS)
        assert torch.equal(tokens, expected)
        same(steps, *(torch.cat([getattr(step, name) for step in expected_steps]) for name in ("full", "cf")))
        late = cache.layers[-1]
        places.add((late, late.slots, late.full.keys.data_ptr(), late.cf.keys.data_ptr(), late.slots._live.data_ptr()))
    assert len(places) == 1
    assert [type(layer) for layer in cache.layers] == [StaticLayer] * 3 + [StaticLateLayer] * 3


def test_a_cache_serves_a_fork_with_another_k(llava: tiny.Tiny):
    cache = ReusedCache(llava.model.config, 128, STEPS)
    for k in (3, 2, 5):
        cache.reset()
        expected, _ = generate_sira(llava.model, llava.inputs, SiraConfig(k=k), max_new_tokens=STEPS)
        tokens, _ = generate_sira(llava.model, llava.inputs, SiraConfig(k=k), **{CACHE: cache}, max_new_tokens=STEPS)
        assert torch.equal(tokens, expected)
        assert [type(layer) for layer in cache.layers] == [StaticLayer] * (6 - k) + [StaticLateLayer] * k


def test_the_cf_stream_gets_rows_for_text_alone(llava: tiny.Tiny):
    text = int((~llava.image).sum())
    cache = StaticCache(llava.model.config, llava.image.shape[1] + STEPS)
    generate_sira(llava.model, llava.inputs, **{CACHE: cache}, max_new_tokens=STEPS)
    for layer in cache.layers[3:]:
        assert layer.cf.max_cache_len == CF_ROWS
        assert int(layer.cf.cumulative_length) == text + STEPS - 1  # the last token never becomes a row
        assert int(layer.get_seq_length()) == int(cache.get_seq_length()) == llava.image.shape[1] + STEPS - 1
    more = ReusedCache(llava.model.config, 256, CF_ROWS - text + 1)
    generate_sira(llava.model, llava.inputs, **{CACHE: more}, max_new_tokens=STEPS)
    assert more.layers[-1].cf.max_cache_len == 2 * CF_ROWS


def traced() -> CompileConfig:
    """Traced and guarded for real, run without a compiler; `fullgraph` refuses graph breaks."""
    torch.compiler.reset()
    counters.clear()
    config = CompileConfig(fullgraph=True, backend="eager", mode=None)
    config._compile_all_devices = True
    return config


@pytest.mark.parametrize(
    ("make", "prompts", "graphs"),
    [
        (tiny.llava, llava_prompts, 1),
        # Transformers counts the rows of sliding windows in Python.
        pytest.param(tiny.gemma3, gemma_prompts, 2, marks=pytest.mark.slow),
    ],
    ids=["llava", "gemma3"],
)
def test_one_graph_serves_all_steps_of_all_prompts(make, prompts, graphs):
    model, config = make().model, traced()
    cache = ReusedCache(model.config, 128, STEPS)
    for number, prompt in enumerate(prompts()):
        cache.reset()
        arguments = {CACHE: cache, "compile_config": config, "max_new_tokens": STEPS}
        with torch.compiler.set_stance("fail_on_recompile" if number else "default"), attach(model, SiraConfig(k=3)):
            tokens = generate(model, prompt, **arguments)
        assert counters["stats"]["unique_graphs"] == graphs
        assert torch.equal(tokens, generate_sira(model, prompt, max_new_tokens=STEPS)[0])


@pytest.mark.slow
def test_plain_decoding_and_the_fork_never_take_each_others_graph(llava: tiny.Tiny):
    """Though hooks are no guards in torch: the layers of their caches are of other types."""
    config = traced()
    expected, (sira, _) = generate(llava.model, llava.inputs), generate_sira(llava.model, llava.inputs)
    assert not torch.equal(expected, sira)
    plain, forked = StaticCache(llava.model.config, 64), StaticCache(llava.model.config, 64)
    for _ in range(2):
        plain.reset()
        tokens = generate(llava.model, llava.inputs, **{CACHE: plain}, compile_config=config)
        assert torch.equal(tokens, expected)
        forked.reset()
        with attach(llava.model, SiraConfig(k=3)):
            tokens = generate(llava.model, llava.inputs, **{CACHE: forked}, compile_config=config)
        assert torch.equal(tokens, sira)
    assert counters["stats"]["unique_graphs"] == 2
