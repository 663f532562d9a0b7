"""What the fork cannot follow exactly is refused, with the reason, and the model stays as it was."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import transformers as hf
from torch import distributed, nn

from sira_cli import attach as attach_method
from sira_cli.core.arguments import CACHE
from sira_cli.core.config import SiraConfig
from sira_cli.core.fork import attach
from sira_cli.errors import AttachError, ImageTokenError, SettingsError, UnsupportedModelError
from tests.support import tiny
from tests.support.helpers import Listener, generate, hooks


def mamba(model: Any) -> Any:
    sizes = {**tiny.TEXT, "num_hidden_layers": 4, "head_dim": 16, "mamba_n_heads": 4, "mamba_d_head": 32}
    return hf.BambaForCausalLM(hf.BambaConfig(**sizes, attn_layer_indices=[1]))


def two_mixers(model: Any) -> None:
    layer = model.get_decoder().layers[2]
    layer.again = copy.deepcopy(layer.self_attn)  # it reads the rows a second time


def in_peft(model: Any) -> nn.Module:
    """A model as peft wraps it, by the one name that is asked for."""
    outer = nn.Module()
    outer.get_base_model = lambda: model
    return outer


def a_compiled_layer(model: Any) -> None:
    layers = model.get_decoder().layers
    layers[4] = torch.compile(layers[4], backend="eager")


def compiled_in_place(model: Any) -> None:
    model.get_decoder().layers[4].compile(backend="eager")


COMPILED = r"is compiled, .* attach to the model as it was loaded"  # nothing is: the first call would do it


@pytest.mark.parametrize(
    ("change", "k", "error", "reason"),
    [
        (mamba, 1, UnsupportedModelError, "BambaDecoderLayer has neither `self_attn` nor a known state"),
        (two_mixers, 1, UnsupportedModelError, "LlamaDecoderLayer mixes rows in self_attn and again"),
        (lambda model: nn.Linear(2, 2), 1, UnsupportedModelError, "not a Hugging Face image-text-to-text model"),
        (lambda model: model.model, 1, UnsupportedModelError, "no output head: attach the whole model"),
        (
            lambda model: setattr(model.get_decoder().config, "_attn_implementation", "flash_attention_2"),
            *(1, UnsupportedModelError, "flash_attention_2.*'sdpa'"),
        ),
        (nn.DataParallel, 1, UnsupportedModelError, r"DataParallel wraps the model: attach `model\.module`"),
        (in_peft, 1, UnsupportedModelError, r"attach `model\.get_base_model\(\)`"),
        (lambda model: None, tiny.LAYERS, SettingsError, r"k must be 1\.\.5"),
        (lambda model: tiny.qwen("3").model, 4, SettingsError, r"DeepStack.*k must be at most 3"),
        (lambda model: torch.compile(model, backend="eager"), 1, UnsupportedModelError, COMPILED),
        (lambda model: model.compile(backend="eager"), 1, UnsupportedModelError, COMPILED),
        (a_compiled_layer, 1, UnsupportedModelError, COMPILED),
        (compiled_in_place, 1, UnsupportedModelError, COMPILED),
        (
            lambda model: setattr(model, "forward", torch.compile(model.forward, backend="eager")),
            *(1, UnsupportedModelError, COMPILED),
        ),
    ],
)
def test_what_cannot_be_attached(change, k, error, reason):
    """A LLaVA after a change; what it returns, if anything, takes its place."""
    model = tiny.llava().model
    new = change(model)
    model = model if new is None else new
    before = hooks(model)
    with pytest.raises(error, match=reason), attach(model, SiraConfig(k=k)):
        pass
    assert hooks(model) == before
    if reason == COMPILED:
        with pytest.raises(error, match=reason), attach_method(model, method="dola"):
            pass


def test_a_model_in_distributed_data_parallel():
    """The real class, in a group of one process."""
    model = tiny.llava().model
    model.lm_head.weight.requires_grad_(True)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(model)
        with pytest.raises(UnsupportedModelError, match=r"attach `model\.module`"), attach(wrapped):
            pass
        with attach(wrapped.module):
            pass
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize("compile_layer", [a_compiled_layer, compiled_in_place])
@pytest.mark.parametrize("method", ["sira", "dola"])
def test_layers_that_are_compiled_inside_the_block(method: str, compile_layer):
    """Compiled code need not call hooks, which are put on already."""
    case = tiny.llava()
    with attach_method(case.model, method=method):
        generate(case.model, case.inputs)
        compile_layer(case.model)
        with pytest.raises(UnsupportedModelError, match=COMPILED):
            generate(case.model, case.inputs)
        with pytest.raises(UnsupportedModelError, match=COMPILED):
            case.model(**case.inputs)


@pytest.mark.parametrize("attaching", [attach, attach_method])
def test_one_attach_serves_several_blocks_but_not_one_inside_another(llava: tiny.Tiny, attaching):
    plain, before = generate(llava.model, llava.inputs), hooks(llava.model)
    context, texts = attaching(llava.model, SiraConfig(k=3, alpha=3.0)), []
    for _ in range(2):
        with context as run:
            with pytest.raises(AttachError, match="attached to this model already"), context:
                pass
            texts.append(generate(llava.model, llava.inputs).tolist())
            assert run.k == 3
        assert hooks(llava.model) == before
    with pytest.raises(ZeroDivisionError), context:
        raise ZeroDivisionError
    assert texts[0] == texts[1] != plain.tolist()
    assert torch.equal(generate(llava.model, llava.inputs), plain)


def test_attaching_twice_and_calling_a_part(llava: tiny.Tiny):
    with attach(llava.model):
        before = hooks(llava.model)
        with pytest.raises(AttachError, match=r"already: .* take turns, with their own lock"), attach(llava.model):
            pass
        assert hooks(llava.model) == before
        for _ in range(2):  # also after a whole one
            with pytest.raises(AttachError, match="a part of the model was called by itself"):
                llava.model.model(**llava.inputs)
            generate(llava.model, llava.inputs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda args, more: ((args[0][:, 1:], *args[1:]), more), "as its first argument"),
        (lambda args, more: (args, more | {"weights_of_rows": torch.ones(args[0].shape[:2])}), "weights_of_rows, wh"),
        (lambda args, more: (args, {k: v for k, v in more.items() if k != "position_embeddings"}), "called without"),
    ],
)
def test_a_layer_that_is_called_in_another_way(llava: tiny.Tiny, change, message):
    """Foreign code around a layer, played by a hook that is there before ours. Unpacked rows would be full's only."""
    layer = llava.model.get_decoder().layers[-3]
    handle = layer.register_forward_pre_hook(lambda _, args, kwargs: change(args, kwargs), with_kwargs=True)
    try:
        with pytest.raises(UnsupportedModelError, match=message), attach(llava.model, SiraConfig(k=3)):
            generate(llava.model, llava.inputs)
    finally:
        handle.remove()


def packed() -> hf.DynamicCache:
    """A cache with a layer that holds something else, such as quantized numbers."""
    cache = hf.DynamicCache(config=tiny.llava().model.config)
    cache.layers[-1] = type("PackedLayer", (hf.cache_utils.DynamicLayer,), {})()
    return cache


@pytest.mark.parametrize(
    ("error", "message", "changes"),
    [
        (ImageTokenError, "no image token found in row 0", {"input_ids": tiny.prompt(0, 30, 0)}),
        (ImageTokenError, "ends with an image token", {"input_ids": tiny.prompt(before=14, after=0)}),
        (ImageTokenError, "pad them on the left", {"attention_mask": (torch.arange(30) < 28)[None].long()}),
        (ImageTokenError, "leave out guidance_scale", {"guidance_scale": 1.5}),
        (ImageTokenError, "leave out prefill_chunk_size", {"prefill_chunk_size": 8}),  # a piece ends in the picture
        (UnsupportedModelError, "chunked prefill", {"prefill_chunk_size": 24}),
        (UnsupportedModelError, "proposes several .* leave out prompt_lookup", {"prompt_lookup_num_tokens": 2}),
        (UnsupportedModelError, "several .* leave out assistant_model", {"assistant_model": tiny.llava().model}),
        (UnsupportedModelError, "a StaticCache is .* only one that grows", {"cache_implementation": "static"}),
        (UnsupportedModelError, "PackedLayer", {CACHE: packed()}),
    ],
)
def test_prompts_and_ways_of_generating(llava: tiny.Tiny, error, message, changes):
    """Afterwards the model gives what it gave before."""
    expected = generate(llava.model, llava.inputs)
    inputs = llava.inputs | {name: value for name, value in changes.items() if name in llava.inputs}
    settings = {name: value for name, value in changes.items() if name not in llava.inputs}
    with pytest.raises(error, match=message), attach(llava.model, SiraConfig(k=3)):
        generate(llava.model, inputs, **settings)
    assert "generate" not in vars(llava.model)
    assert torch.equal(generate(llava.model, llava.inputs), expected)


def test_ways_of_calling_the_model():
    case = tiny.llava()
    embeddings = case.model.get_input_embeddings()(case.inputs["input_ids"])
    with attach(case.model):
        with pytest.raises(UnsupportedModelError, match="without input_ids"):
            case.model(inputs_embeds=embeddings)
        with pytest.raises(UnsupportedModelError, match="return_dict=True"):
            case.model(**case.inputs, return_dict=False)
        case.model.train()
        enable = "activation_checkpointing_enable"  # until transformers 5.22 under the other name
        getattr(case.model, enable if hasattr(case.model, enable) else "gradient_checkpointing_enable")()
        with pytest.raises(UnsupportedModelError, match="gradient checkpointing runs layers a second"):
            case.model(**case.inputs, use_cache=False)


def test_caches_of_two_streams_and_of_one(llava: tiny.Tiny):
    """One of two is of no use for a conversation that goes on (nor outside: test_passes.py), and cannot be cropped."""
    cache, plain = (hf.DynamicCache(config=llava.model.config) for _ in range(2))
    llava.model(**llava.inputs, **{CACHE: plain})
    with attach(llava.model):
        generate(llava.model, llava.inputs, **{CACHE: cache})
        with pytest.raises(UnsupportedModelError, match="continued conversations"):
            llava.model(input_ids=torch.tensor([[5, 6, 7]]), **{CACHE: cache})
        with pytest.raises(AttachError, match="filled outside"):
            llava.model(input_ids=torch.tensor([[5]]), **{CACHE: plain})
    with pytest.raises(UnsupportedModelError, match="cannot be cropped"):
        cache.crop(-1)


@pytest.mark.parametrize("method", ["sira", "dola"])
def test_continuous_batching_is_refused_before_it_starts_a_thread(llava: tiny.Tiny, method):
    """Its thread would hide the error: after minutes, the texts would be empty."""
    with attach_method(llava.model, method=method):
        for begin in (
            lambda: generate(llava.model, llava.inputs, cache_implementation="paged"),
            lambda: llava.model.generate_batch(llava.inputs["input_ids"].tolist(), max_new_tokens=2),
        ):
            with pytest.raises(UnsupportedModelError, match=r"continuous batching .* call `generate` with a batch"):
                begin()
    assert "init_continuous_batching" not in vars(llava.model)


def test_a_model_that_is_copied_inside(llava: tiny.Tiny):
    with attach(llava.model):
        twin = copy.deepcopy(llava.model)
    with pytest.raises(AttachError, match="was copied inside `with attach"):
        generate(twin, llava.inputs)


def test_threads_inside_one_attach(llava: tiny.Tiny):
    """A thread begins a text while another one writes: one of them gets an error, and no text is wrong."""
    texts = []
    with attach(llava.model, SiraConfig(k=3)), ThreadPoolExecutor(1) as pool:
        alone = generate(llava.model, llava.inputs).tolist()

        def meanwhile(number: int) -> None:
            if number == 2:  # after the prompt itself comes the first token
                texts.append(pool.submit(generate, llava.model, llava.inputs).result().tolist())

        with pytest.raises(AttachError, match="take turns, with their own lock"):
            generate(llava.model, llava.inputs, streamer=Listener(meanwhile))
    assert texts == [alone]
