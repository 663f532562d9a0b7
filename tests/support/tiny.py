"""Tiny random models of every supported family, built from configs: nothing is downloaded.

Each builder returns a model in float32 and the inputs of one prompt with one image. The text stack has
L = 6 layers. Weights are scaled up so that attention is far from uniform, the streams really differ and
greedy tokens vary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

from tests.support.tiny_parts import CLIP, IMAGE, PIXTRAL, SIGLIP, TEXT, VOCABULARY, Tiny, build, pixels, prompt
from tests.support.tiny_parts import LAYERS as LAYERS
from tests.support.tiny_parts import SUPPRESS as SUPPRESS
from tests.support.tiny_parts import qwen_inputs as qwen_inputs
from tests.support.tiny_parts import with_mask as with_mask
from tests.support.tiny_recent import gemma4, lfm2, qwen3_5


def llava(attention: str = "sdpa") -> Tiny:
    config = hf.LlavaConfig(
        vision_config=CLIP, text_config={**TEXT, "model_type": "llama"}, image_token_index=IMAGE, image_seq_length=16
    )
    model = build(config, hf.LlavaForConditionalGeneration, attention)
    return Tiny(model, with_mask(prompt(), pixel_values=pixels(1, 3, 32, 32)))


def llava_next() -> Tiny:
    config = hf.LlavaNextConfig(
        vision_config=CLIP,
        text_config={**TEXT, "model_type": "mistral", "sliding_window": None},
        image_token_index=IMAGE,
        image_grid_pinpoints=[[32, 64], [64, 32]],
        image_seq_length=16,
    )
    model = build(config, hf.LlavaNextForConditionalGeneration)
    ids = prompt(images=16 + 4 * 8 + 4)  # base image, two tiles in one row, a newline for each patch row
    return Tiny(model, with_mask(ids, pixel_values=pixels(1, 3, 3, 32, 32), image_sizes=torch.tensor([[32, 64]])))


def pixtral() -> Tiny:
    config = hf.LlavaConfig(
        vision_config={**PIXTRAL, "image_size": 32},
        text_config={**TEXT, "model_type": "mistral", "sliding_window": None, "head_dim": 16},
        image_token_index=IMAGE,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    model = build(config, hf.LlavaForConditionalGeneration)
    return Tiny(model, with_mask(prompt(), pixel_values=pixels(1, 3, 32, 32), image_sizes=torch.tensor([[32, 32]])))


def mistral3(version: int = 1) -> Tiny:
    text = {**TEXT, "model_type": "mistral", "sliding_window": None, "head_dim": 16}
    if version == 2:  # Ministral 3: queries are scaled by their position
        rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 8}
        rope.update(beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.3)
        text.update(model_type="ministral3", rope_parameters=rope)
    config = hf.Mistral3Config(
        vision_config={**PIXTRAL, "image_size": 64}, text_config=text, image_token_index=IMAGE, spatial_merge_size=2
    )
    model = build(config, hf.Mistral3ForConditionalGeneration)
    return Tiny(model, with_mask(prompt(), pixel_values=pixels(1, 3, 64, 64), image_sizes=torch.tensor([[64, 64]])))


def qwen(version: str) -> Tiny:
    rope: dict[str, Any] = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e4}
    text: dict[str, Any] = {**TEXT, "rope_parameters": rope}
    vision: dict[str, Any] = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 4,
        "out_hidden_size": 64,
        "patch_size": 8,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    config_class: Any
    boundaries: tuple[int, ...] = (1, 3, 5)
    if version == "2":
        config_class, model_class = hf.Qwen2VLConfig, hf.Qwen2VLForConditionalGeneration
        vision.update(embed_dim=32, hidden_size=64, mlp_ratio=2)
        del vision["intermediate_size"], vision["out_hidden_size"]
    elif version == "2.5":
        config_class, model_class = hf.Qwen2_5_VLConfig, hf.Qwen2_5_VLForConditionalGeneration
        vision.update(window_size=32, fullatt_block_indexes=[1])
    else:
        config_class, model_class = hf.Qwen3VLConfig, hf.Qwen3VLForConditionalGeneration
        text.update(head_dim=16, rope_parameters={**rope, "mrope_section": [4, 2, 2], "mrope_interleaved": True})
        vision.update(depth=3, deepstack_visual_indexes=[0, 1, 2], num_position_embeddings=64)
        boundaries = (1, 3)  # K = 5 would fork inside DeepStack: refused, tested apart
    config = config_class(
        text_config=text,
        vision_config=vision,
        image_token_id=IMAGE,
        video_token_id=101,
        vision_start_token_id=102,
        vision_end_token_id=103,
    )
    model = build(config, model_class)
    return Tiny(model, qwen_inputs(prompt()), {"mm_token_type_ids": 0}, boundaries)


def internvl() -> Tiny:
    vision = {
        "model_type": "internvl_vision",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": [64, 64],
        "patch_size": [8, 8],
    }
    config = hf.InternVLConfig(
        vision_config=vision, text_config={**TEXT, "model_type": "qwen2"}, image_token_id=IMAGE, image_seq_length=16
    )
    model = build(config, hf.InternVLForConditionalGeneration)
    return Tiny(model, with_mask(prompt(), pixel_values=pixels(1, 3, 64, 64)))


def idefics(name: str = "Idefics3") -> Tiny:
    vision = {
        "model_type": "idefics3_vision" if name == "Idefics3" else "smolvlm_vision",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 32,
        "patch_size": 4,
    }
    config = getattr(hf, f"{name}Config")(
        vision_config=vision,
        text_config={**TEXT, "model_type": "llama"},
        image_token_id=IMAGE,
        scale_factor=2,
        pad_token_id=0,
    )
    model = build(config, getattr(hf, f"{name}ForConditionalGeneration"))
    return Tiny(model, with_mask(prompt(), pixel_values=pixels(1, 1, 3, 32, 32)))


def gemma3(window: int = 12) -> Tiny:
    sliding, full = "sliding_attention", "full_attention"
    text = {
        **TEXT,
        "head_dim": 16,
        "sliding_window": window,  # shorter than the image, so that windows matter
        "layer_types": [sliding, sliding, full, sliding, sliding, full],
        "query_pre_attn_scalar": 16,
    }
    config = hf.Gemma3Config(
        vision_config=SIGLIP,
        text_config=text,
        image_token_index=IMAGE,
        mm_tokens_per_image=16,
        boi_token_index=102,
        eoi_token_index=103,
    )
    model = build(config, hf.Gemma3ForConditionalGeneration)
    ids = prompt()
    inputs = with_mask(ids, pixel_values=pixels(1, 3, 32, 32), token_type_ids=(ids == IMAGE).long())
    return Tiny(model, inputs, {"token_type_ids": 0})


def paligemma(version: int = 1) -> Tiny:
    text: dict[str, Any] = {**TEXT, "head_dim": 16, "model_type": "gemma"}
    if version == 2:
        text.update(model_type="gemma2", sliding_window=12, query_pre_attn_scalar=16)
    config = hf.PaliGemmaConfig(
        vision_config={**SIGLIP, "projection_dim": 64},
        text_config=text,
        image_token_index=IMAGE,
        projection_dim=64,
        hidden_size=64,
        vocab_size=VOCABULARY,
    )
    model = build(config, hf.PaliGemmaForConditionalGeneration, "eager" if version == 2 else "sdpa")
    ids = prompt(before=0)
    inputs = with_mask(ids, pixel_values=pixels(1, 3, 32, 32), token_type_ids=torch.zeros_like(ids))
    return Tiny(model, inputs, {"token_type_ids": 1})  # the prompt is a prefix, what follows is causal


FAMILIES: dict[str, Callable[[], Tiny]] = {
    "LLaVA-1.5": llava,
    "LLaVA-NeXT": llava_next,
    "Pixtral (LLaVA)": pixtral,
    "Mistral 3": mistral3,
    "Ministral 3": lambda: mistral3(2),
    "Qwen2-VL": lambda: qwen("2"),
    "Qwen2.5-VL": lambda: qwen("2.5"),
    "Qwen3-VL": lambda: qwen("3"),
    "Qwen3.5": lambda: qwen3_5(),
    "Qwen3.5 MoE": lambda: qwen3_5(experts=True),
    "LFM2-VL": lfm2,
    "InternVL": internvl,
    "Idefics3": idefics,
    "SmolVLM": lambda: idefics("SmolVLM"),
    "Gemma 3": gemma3,
    "Gemma 4": lambda: gemma4("31B"),
    "Gemma 4 MoE": lambda: gemma4("26B-A4B"),
    "Gemma 4 E": lambda: gemma4("E4B"),
    "PaliGemma": paligemma,
    "PaliGemma 2": lambda: paligemma(2),
}

# Where a test is not about a family: a plain stack, positions in three axes, features behind the first layers, states
# and convolutions in place of columns, windows, keys that layers share, a prompt that sees all of itself.
REPRESENTATIVES = ["LLaVA-1.5", "Qwen2.5-VL", "Qwen3-VL", "Qwen3.5", "LFM2-VL", "Gemma 3", "Gemma 4 E", "PaliGemma"]

# Families with layers that leave no columns of their own, and the reason by which what needs columns refuses them.
NO_COLUMNS = dict.fromkeys(("Qwen3.5", "Qwen3.5 MoE", "LFM2-VL"), "recurrent state") | {"Gemma 4 E": "share the keys"}
WITH_HEADS = [name for name in FAMILIES if NO_COLUMNS.get(name) != "recurrent state"]  # attention in every layer
COLUMNS = [name for name in FAMILIES if name not in NO_COLUMNS]
