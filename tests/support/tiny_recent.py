"""Tiny random models with recurrent layers, per-layer inputs, or keys and values that layers share."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf

from tests.support.tiny_parts import IMAGE, TEXT, Tiny, build, pixels, prompt, qwen_inputs, with_mask

QWEN_VISION = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 4,
    "out_hidden_size": 64,
    "patch_size": 8,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "num_position_embeddings": 64,
}
GATED_DELTA = {
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"] * 2,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def qwen3_5(experts: bool = False) -> Tiny:
    text: dict[str, Any] = {**TEXT, **GATED_DELTA}
    if experts:
        text.update(EXPERTS, shared_expert_intermediate_size=32)
    config_class, model_class = (
        (hf.Qwen3_5MoeConfig, hf.Qwen3_5MoeForConditionalGeneration)
        if experts
        else (hf.Qwen3_5Config, hf.Qwen3_5ForConditionalGeneration)
    )
    config = config_class(
        text_config=text,
        vision_config=QWEN_VISION,
        image_token_id=IMAGE,
        video_token_id=101,
        vision_start_token_id=102,
        vision_end_token_id=103,
    )
    model = build(config, model_class, scale=5.0)  # with 7, steps and chunks of the model's own differ by 1e-4
    for name, parameter in model.named_parameters():
        if name.endswith("A_log"):  # new ones forget a row within a few others: dropping it would change nothing
            parameter.copy_(torch.linspace(-5.0, -2.0, len(parameter)))
    return Tiny(model, qwen_inputs(prompt(seed=6)), {"mm_token_type_ids": 0})


def gemma4(size: str) -> Tiny:
    """Build a Gemma 4: "E4B" has per-layer inputs and shared keys and values, "26B-A4B" experts, "31B" neither."""
    sliding, full = "sliding_attention", "full_attention"
    text: dict[str, Any] = {
        **TEXT,
        "head_dim": 16,
        "global_head_dim": 32,
        "sliding_window": 12,  # shorter than the image, so that windows matter
        "layer_types": [sliding, full, sliding, full, sliding, full],
        "hidden_size_per_layer_input": 0,
    }
    if size == "E4B":
        text.update(
            hidden_size_per_layer_input=8, vocab_size_per_layer_input=TEXT["vocab_size"], num_kv_shared_layers=2
        )
    else:
        text.update(attention_k_eq_v=True, num_global_key_value_heads=1, use_bidirectional_attention="vision")
    if size == "26B-A4B":
        text.update(enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=32)
    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "patch_size": 4,
        "pooling_kernel_size": 2,
        "position_embedding_size": 64,
    }
    config = hf.Gemma4Config(
        text_config=text,
        vision_config=vision,
        image_token_id=IMAGE,
        video_token_id=101,
        boi_token_id=102,
        eoi_token_id=103,
        audio_token_id=104,
    )
    model = build(config, hf.Gemma4ForConditionalGeneration)
    ids = prompt()
    places = torch.tensor([[x, y] for y in range(8) for x in range(8)])[None]  # 8 x 8 patches, pooled to 16 tokens
    inputs = with_mask(
        ids,
        pixel_values=pixels(1, 64, 3 * 4 * 4).sigmoid(),
        image_position_ids=places,
        mm_token_type_ids=(ids == IMAGE).long(),
    )
    return Tiny(model, inputs, {"mm_token_type_ids": 0})


def lfm2() -> Tiny:
    text = {
        **TEXT,
        "model_type": "lfm2",
        "layer_types": ["conv", "conv", "full_attention"] * 2,
        "conv_L_cache": 3,
        "block_auto_adjust_ff_dim": False,
    }
    vision = {
        "model_type": "siglip2_vision_model",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "patch_size": 4,
        "num_patches": 64,
    }
    config = hf.Lfm2VlConfig(
        text_config=text, vision_config=vision, image_token_id=IMAGE, projector_hidden_size=64, downsample_factor=2
    )
    model = build(config, hf.Lfm2VlForConditionalGeneration, scale=5.0)
    inputs = with_mask(
        prompt(),
        pixel_values=pixels(1, 64, 3 * 4 * 4),
        spatial_shapes=torch.tensor([[8, 8]]),
        pixel_attention_mask=torch.ones(1, 64, dtype=torch.long),
    )
    return Tiny(model, inputs)
