"""What the fork cannot follow exactly is refused, with the reason, and the model stays as it was."""

from __future__ import annotations

import copy
import warnings
from threading import Thread
from typing import Any

import pytest
import torch
import transformers as hf
from transformers.generation.streamers import BaseStreamer

from sira_cli import attach as attach_method
from sira_cli.cli.terminal.console import set_verbosity
from sira_cli.core.arguments import CACHE
from sira_cli.core.config import SiraConfig
from sira_cli.core.fork import attach
from sira_cli.core.image_tokens import ImageTokens
from sira_cli.errors import (
    AttachError,
    ImageTokenError,
    SettingsError,
    SiraError,
    UnsupportedModelError,
    UntestedModelWarning,
)
from sira_cli.methods.sid_fork import attach_sid
from tests.support import tiny
from tests.support.helpers import generate, hooks

SMALL = {**tiny.TEXT, "num_hidden_layers": 4, "head_dim": 16}


def mllama() -> Any:
    text = {**SMALL, "cross_attention_layers": [1], "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    del text["head_dim"]
    vision = {"hidden_size": 32, "attention_heads": 2, "num_hidden_layers": 2, "num_global_layers": 1}
    vision.update(
        intermediate_size=64, image_size=32, patch_size=8, intermediate_layers_indices=[0], vision_output_dim=64
    )
    return hf.MllamaForConditionalGeneration(hf.MllamaConfig(vision_config=vision, text_config=text))


def encoder_decoder() -> Any:
    text = {"vocab_size": 200, "d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 64}
    text.update(encoder_attention_heads=2, decoder_attention_heads=2, decoder_ffn_dim=64)
    return hf.BartForConditionalGeneration(hf.BartConfig(**text))


def mamba() -> Any:
    return hf.BambaForCausalLM(hf.BambaConfig(**SMALL, mamba_n_heads=4, mamba_d_head=32, attn_layer_indices=[1]))


def two_mixers() -> Any:
    """A layer that reads its rows a second time, by another module."""
    case = tiny.llava()
    layers = case.model.get_decoder().layers
    layers[2].again = copy.deepcopy(layers[2].self_attn)
    return case.model


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (mamba, "BambaDecoderLayer has neither `self_attn` nor a known state"),
        (two_mixers, "LlamaDecoderLayer mixes rows in self_attn and again"),
        (mllama, "cross-attention"),
        (encoder_decoder, "encoder-decoder"),
        (lambda: torch.nn.Linear(2, 2), "not a Hugging Face image-text-to-text model"),
    ],
)
def test_architectures(make, reason):
    model = make()
    before = hooks(model)
    with pytest.raises(UnsupportedModelError, match=reason), attach(model):
        pass
    assert hooks(model) == before


@pytest.mark.parametrize("attention", ["flash_attention_2", "flex_attention"])
def test_attention_without_a_4d_mask(attention: str):
    model = tiny.llava().model
    model.get_decoder().config._attn_implementation = attention
    with pytest.raises(UnsupportedModelError, match=f"{attention}.*attn_implementation='sdpa'"), attach(model):
        pass


@pytest.mark.parametrize("k", [tiny.LAYERS, 40])
def test_k_out_of_range(llava: tiny.Tiny, k: int):
    with pytest.raises(SettingsError, match=r"k must be 1\.\.5"), attach(llava.model, SiraConfig(k=k)):
        pass


def test_a_fork_inside_deepstack():
    model = tiny.qwen("3").model
    with pytest.raises(SettingsError, match=r"DeepStack.*k must be at most 3"), attach(model, SiraConfig(k=4)):
        pass


def test_attaching_twice(llava: tiny.Tiny):
    with attach(llava.model):
        before = hooks(llava.model)
        with pytest.raises(AttachError, match="attached to this model already"), attach(llava.model):
            pass
        assert hooks(llava.model) == before


def test_a_part_of_a_model(llava: tiny.Tiny):
    with (
        pytest.raises(UnsupportedModelError, match="no output head: attach the whole model"),
        attach(llava.model.model),
    ):
        pass
    with attach(llava.model):
        with pytest.raises(AttachError, match="a part of the model was called by itself"):
            llava.model.model(**llava.inputs)
        generate(llava.model, llava.inputs)
        with pytest.raises(AttachError, match="a part of the model was called by itself"):
            llava.model.model(**llava.inputs)


def test_a_layer_that_is_called_in_another_way(llava: tiny.Tiny):
    """Foreign code around a layer, played by a hook that is there before ours."""
    layer = llava.model.get_decoder().layers[-3]
    for change, message in [
        (lambda args, kwargs: ((args[0][:, 1:], *args[1:]), kwargs), "as its first argument"),
        (
            lambda args, kwargs: (args, {k: v for k, v in kwargs.items() if k != "position_embeddings"}),
            "called without",
        ),
    ]:
        handle = layer.register_forward_pre_hook(lambda _, a, k, c=change: c(a, k), with_kwargs=True)
        try:
            with pytest.raises(UnsupportedModelError, match=message), attach(llava.model, SiraConfig(k=3)):
                generate(llava.model, llava.inputs)
        finally:
            handle.remove()


def refused(case: tiny.Tiny, error: type[SiraError], message: str, **changes: Any) -> None:
    """Generation under `attach` raises; afterwards the model gives what it gave before."""
    expected = generate(case.model, case.inputs)
    inputs = {**case.inputs, **{name: value for name, value in changes.items() if name in case.inputs}}
    settings = {name: value for name, value in changes.items() if name not in case.inputs}
    with pytest.raises(error, match=message), attach(case.model, SiraConfig(k=3)):
        generate(case.model, inputs, **settings)
    assert torch.equal(generate(case.model, case.inputs), expected)


def test_a_prompt_without_image(llava: tiny.Tiny):
    text = {"input_ids": tiny.prompt(images=0), "attention_mask": torch.ones(1, 14).long()}
    with pytest.raises(ImageTokenError, match="no image token found in row 0"), attach(llava.model):
        generate(llava.model, text)


ENDS_IN_ITS_PICTURE = {"input_ids": tiny.prompt(after=0), "attention_mask": torch.ones(1, 21).long()}


@pytest.mark.parametrize(
    ("error", "message", "changes"),
    [
        (ImageTokenError, "ends with an image token", ENDS_IN_ITS_PICTURE),
        (ImageTokenError, "pad them on the left", {"attention_mask": (torch.arange(30) < 28)[None].long()}),
        (ImageTokenError, "leave out guidance_scale", {"guidance_scale": 1.5}),
        (ImageTokenError, "leave out prefill_chunk_size", {"prefill_chunk_size": 8}),  # a piece ends in the picture
        (UnsupportedModelError, "chunked prefill", {"prefill_chunk_size": 24}),
        (
            UnsupportedModelError,
            "prompt lookup proposes several tokens .* leave out prompt_lookup_num_tokens",
            {"prompt_lookup_num_tokens": 2},
        ),
        (
            UnsupportedModelError,
            "another model propose several tokens.* leave out assistant_model",
            {"assistant_model": tiny.llava().model},
        ),
    ],
)
def test_prompts_and_ways_of_generating(llava: tiny.Tiny, error, message, changes):
    refused(llava, error, message, **changes)
    assert "generate" not in vars(llava.model)


def test_ways_of_calling_the_model(llava: tiny.Tiny):
    embeddings = llava.model.get_input_embeddings()(llava.inputs["input_ids"])
    for message, call in [
        ("without input_ids", {"inputs_embeds": embeddings}),
        ("return_dict=True", {**llava.inputs, "return_dict": False}),
    ]:
        with pytest.raises(UnsupportedModelError, match=message), attach(llava.model):
            llava.model(**call)


def test_a_cache_of_two_streams(llava: tiny.Tiny):
    """It is of no use outside, nor for a conversation that goes on, and cannot be cropped."""
    cache = hf.DynamicCache(config=llava.model.config)
    with attach(llava.model):
        generate(llava.model, llava.inputs, **{CACHE: cache})
        with pytest.raises(UnsupportedModelError, match="continued conversations"):
            llava.model(input_ids=torch.tensor([[5, 6, 7]]), **{CACHE: cache})
    with pytest.raises(AttachError, match="cannot be used outside"):
        llava.model(input_ids=torch.tensor([[5]]), **{CACHE: cache})
    with pytest.raises(UnsupportedModelError, match="cannot be cropped"):
        cache.crop(-1)


def test_a_cache_filled_outside(llava: tiny.Tiny):
    cache = hf.DynamicCache(config=llava.model.config)
    llava.model(**llava.inputs, **{CACHE: cache})
    longer = {
        "input_ids": torch.cat([llava.inputs["input_ids"], torch.tensor([[5]])], dim=1),
        "attention_mask": torch.ones(1, 31).long(),
    }
    with pytest.raises(AttachError, match="filled outside"), attach(llava.model):
        generate(llava.model, longer, **{CACHE: cache})


def test_static_caches(llava: tiny.Tiny):
    message = r"a StaticCache is not supported, only one that grows .* leave out cache_implementation"
    refused(llava, UnsupportedModelError, message, cache_implementation="static")
    with (
        pytest.raises(UnsupportedModelError, match=message),
        attach_sid(llava.model, ImageTokens(), alpha=0.5, beta=0.1, visible=4),
    ):
        generate(llava.model, llava.inputs, cache_implementation="static")


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


@pytest.mark.parametrize(
    "compiled",
    [
        lambda model: torch.compile(model, backend="eager"),
        lambda model: model.compile(backend="eager") or model,
        lambda model: model.get_decoder().layers[4].compile(backend="eager") or model,
        lambda model: setattr(model, "forward", torch.compile(model.forward, backend="eager")) or model,
    ],
    ids=["wrapped", "itself", "a layer", "its forward"],
)
@pytest.mark.parametrize("method", ["sira", "dola"])
def test_compiled_models(compiled, method):
    """Nothing is compiled: the first call would do it."""
    model = compiled(tiny.llava().model)
    with (
        pytest.raises(UnsupportedModelError, match=r"is compiled, .* attach to the model as it was loaded"),
        attach_method(model, method=method),
    ):
        pass


def test_quantized_layers(llava: tiny.Tiny):
    cache = hf.DynamicCache(config=llava.model.config)
    cache.layers[-1] = type("PackedLayer", (hf.cache_utils.DynamicLayer,), {})()
    before = list(cache.layers)
    refused(llava, UnsupportedModelError, "PackedLayer", **{CACHE: cache})
    assert cache.layers == before


def test_gradient_checkpointing():
    case = tiny.llava()
    case.model.train()
    enable = "activation_checkpointing_enable"  # until transformers 5.22 under the other name
    getattr(case.model, enable if hasattr(case.model, enable) else "gradient_checkpointing_enable")()
    with attach(case.model), pytest.raises(UnsupportedModelError, match="gradient checkpointing runs layers a second"):
        case.model(**case.inputs, use_cache=False)


def test_a_model_that_is_copied_inside(llava: tiny.Tiny):
    expected = generate(llava.model, llava.inputs)
    with attach(llava.model):
        twin = copy.deepcopy(llava.model)
        inside = generate(llava.model, llava.inputs)
    with pytest.raises(AttachError, match="was copied inside `with attach"):
        generate(twin, llava.inputs)
    assert not torch.equal(inside, expected)
    assert torch.equal(generate(llava.model, llava.inputs), expected)


def test_threads_inside_one_attach(llava: tiny.Tiny):
    """A thread begins a text while another one writes: one of them gets an error, and no text is wrong."""
    texts, errors = [], []
    with attach(llava.model, SiraConfig(k=3)):
        alone = generate(llava.model, llava.inputs)[0].tolist()

        def write() -> None:
            try:
                texts.append(generate(llava.model, llava.inputs)[0].tolist())
            except SiraError as error:
                errors.append(error)

        class Meanwhile(BaseStreamer):
            calls = 0

            def put(self, value: torch.Tensor) -> None:
                self.calls += 1
                if self.calls == 2:  # after the prompt itself comes the first token
                    other = Thread(target=write)
                    other.start()
                    other.join()

            def end(self) -> None:
                pass

        with pytest.raises(AttachError, match="take turns, with their own lock"):
            generate(llava.model, llava.inputs, streamer=Meanwhile())
    assert (texts, errors) == ([alone], [])


def test_a_type_that_was_not_tried_warns(capsys, monkeypatch):
    """Such as one that a newer transformers adds; its structure is right."""
    monkeypatch.setattr(hf.VipLlavaConfig, "model_type", "vipllava_next")
    config = hf.VipLlavaConfig(
        vision_config={**tiny.CLIP, "num_hidden_layers": 12},
        text_config={**tiny.TEXT, "model_type": "llama"},
        image_token_index=tiny.IMAGE,
    )
    model = tiny.build(config, hf.VipLlavaForConditionalGeneration)
    with (
        pytest.warns(UntestedModelWarning, match=r"VipLlava.*vipllava_next is not among the 100 types tried"),
        attach(model),
    ):
        pass

    with warnings.catch_warnings():  # on the command line once, not with every picture
        set_verbosity(False, 0)
        model = tiny.build(config, hf.VipLlavaForConditionalGeneration)
        for _ in range(3):
            with attach(model):
                pass
    assert capsys.readouterr().err.count("warning: VipLlava") == 1
