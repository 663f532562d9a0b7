"""Tiny random models of every supported family, built from configs: nothing is downloaded.

Each builder returns a model in float32 and the inputs of one prompt with one image. The text stack has
L = 6 layers. Weights are scaled up so that attention is far from uniform, the streams really differ and
greedy tokens vary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
import transformers as hf
from torch import Tensor

IMAGE = 100  # image token id; never generated in the tests (see `SUPPRESS`)
LAYERS = 6
SUPPRESS = [IMAGE, 101, 102, 103]
VOCABULARY = 200

TEXT: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128}
TEXT |= {"num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2}
TEXT |= {"max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
PATCHES = {"image_size": 32, "patch_size": 8}
CLIP = {**VISION, **PATCHES, "model_type": "clip_vision_model", "num_hidden_layers": 3, "projection_dim": 32}
SIGLIP = {**VISION, **PATCHES, "model_type": "siglip_vision_model", "vision_use_head": False}
PIXTRAL = {**VISION, "model_type": "pixtral", "num_attention_heads": 2, "patch_size": 8, "head_dim": 16}
SLIDING, FULL = "sliding_attention", "full_attention"
MISTRAL = {**TEXT, "model_type": "mistral", "sliding_window": None}
MARKERS = {"video_token_id": 101, "vision_start_token_id": 102, "vision_end_token_id": 103}
QWEN_VISION = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4, "out_hidden_size": 64}
QWEN_VISION |= {"patch_size": 8, "spatial_merge_size": 2, "temporal_patch_size": 2}


@dataclass(frozen=True)
class Tiny:
    """A family's model and one prompt.

    `grown` is the value that per-token inputs (token types) take for generated tokens.
    """

    model: Any
    inputs: dict[str, Tensor]
    grown: dict[str, int] = field(default_factory=dict)
    boundaries: tuple[int, ...] = (1, LAYERS // 2, LAYERS - 1)  # K to test
    image_token: int = IMAGE
    silent: ClassVar[list[int]] = SUPPRESS

    @property
    def image(self) -> Tensor:
        return self.inputs["input_ids"] == self.image_token


def prompt(images: int = 16, before: int = 5, after: int = 9, seed: int = 0) -> Tensor:
    """`[1, S]` random text with `images` image tokens behind `before` text tokens."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 90, (1, before + images + after), generator=generator)
    ids[:, before : before + images] = IMAGE
    return ids


def pixels(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def build(config: Any, model_class: Any, attention: str = "sdpa", scale: float = 7.0) -> Any:
    config._attn_implementation = attention
    torch.manual_seed(0)
    model = model_class(config).eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        if parameter.ndim > 1:
            parameter.mul_(scale)
    model.generation_config.pad_token_id = 0
    return model


def qwen_inputs(ids: Tensor, grid: tuple[int, int, int] = (1, 8, 8), seed: int = 0) -> dict[str, Tensor]:
    """Markers around the image, patches for `grid`, token types as the processor gives them."""
    first, last = (ids[0] == IMAGE).nonzero().flatten()[[0, -1]].tolist()
    ids[0, first - 1], ids[0, last + 1] = 102, 103
    picture = {
        "pixel_values": pixels(grid[1] * grid[2], 3 * 2 * 8 * 8, seed=seed),
        "image_grid_thw": torch.tensor([grid]),
    }
    return with_mask(ids, **picture, mm_token_type_ids=(ids == IMAGE).int())


def with_mask(ids: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **inputs}


def llava(attention: str = "sdpa", text: dict[str, Any] | None = None, **more: Any) -> Tiny:
    own = {**TEXT, "model_type": "llama"} if text is None else text
    config = hf.LlavaConfig(vision_config=CLIP, text_config=own, image_token_index=IMAGE, image_seq_length=16)
    model = build(config, hf.LlavaForConditionalGeneration, attention, **more)
    return Tiny(model, with_mask(prompt(), pixel_values=pixels(1, 3, 32, 32)))


def llava_next() -> Tiny:
    tiles = {"image_grid_pinpoints": [[32, 64], [64, 32]], "image_seq_length": 16}
    config = hf.LlavaNextConfig(vision_config=CLIP, text_config=MISTRAL, image_token_index=IMAGE, **tiles)
    model = build(config, hf.LlavaNextForConditionalGeneration)
    ids = prompt(images=16 + 4 * 8 + 4)  # base image, two tiles in one row, a newline for each patch row
    return Tiny(model, with_mask(ids, pixel_values=pixels(1, 3, 3, 32, 32), image_sizes=torch.tensor([[32, 64]])))


def pixtral() -> Tiny:
    vision, text = {**PIXTRAL, "image_size": 32}, {**MISTRAL, "head_dim": 16}
    features = {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"}
    config = hf.LlavaConfig(vision_config=vision, text_config=text, image_token_index=IMAGE, **features)
    model = build(config, hf.LlavaForConditionalGeneration)
    return Tiny(model, with_mask(prompt(), pixel_values=pixels(1, 3, 32, 32), image_sizes=torch.tensor([[32, 32]])))


def mistral3(version: int = 1) -> Tiny:
    vision, text = {**PIXTRAL, "image_size": 64}, {**MISTRAL, "head_dim": 16}
    if version == 2:  # Ministral 3: queries are scaled by their position
        rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 8}
        rope.update(beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.3)
        text.update(model_type="ministral3", rope_parameters=rope)
    config = hf.Mistral3Config(vision_config=vision, text_config=text, image_token_index=IMAGE, spatial_merge_size=2)
    model = build(config, hf.Mistral3ForConditionalGeneration)
    return Tiny(model, with_mask(prompt(), pixel_values=pixels(1, 3, 64, 64), image_sizes=torch.tensor([[64, 64]])))


def qwen(version: str) -> Tiny:
    rope: dict[str, Any] = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e4}
    text: dict[str, Any] = {**TEXT, "rope_parameters": rope}
    vision: dict[str, Any] = dict(QWEN_VISION)
    if version == "2":
        vision.update(embed_dim=32, hidden_size=64, mlp_ratio=2)
        del vision["intermediate_size"], vision["out_hidden_size"]
    elif version == "2.5":
        vision.update(window_size=32, fullatt_block_indexes=[1])
    else:
        text.update(head_dim=16, rope_parameters={**rope, "mrope_section": [4, 2, 2], "mrope_interleaved": True})
        vision.update(depth=3, deepstack_visual_indexes=[0, 1, 2], num_position_embeddings=64)
    name = {"2": "Qwen2VL", "2.5": "Qwen2_5_VL", "3": "Qwen3VL"}[version]
    config = getattr(hf, f"{name}Config")(text_config=text, vision_config=vision, image_token_id=IMAGE, **MARKERS)
    model = build(config, getattr(hf, f"{name}ForConditionalGeneration"))
    boundaries = (1, 3) if version == "3" else (1, 3, 5)  # K = 5 would fork inside DeepStack: refused, tested apart
    return Tiny(model, qwen_inputs(prompt()), {"mm_token_type_ids": 0}, boundaries)


def qwen3_5(name: str = "Qwen3_5") -> Tiny:
    """Build a model with gated delta rules: `Qwen3_5`, or with experts `Qwen3_5Moe`."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    rope |= {"mrope_section": [2, 1, 1], "mrope_interleaved": True}
    sizes = {"num_key_heads": 2, "num_value_heads": 4, "key_head_dim": 8, "value_head_dim": 8}
    text = {**TEXT, "head_dim": 16, "rope_parameters": rope} | {f"linear_{part}": size for part, size in sizes.items()}
    text["layer_types"] = ["linear_attention", "linear_attention", FULL] * 2
    if name == "Qwen3_5Moe":
        text |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
        text |= {"shared_expert_intermediate_size": 32}
    vision = {**QWEN_VISION, "num_position_embeddings": 64}
    config = getattr(hf, f"{name}Config")(text_config=text, vision_config=vision, image_token_id=IMAGE, **MARKERS)
    # with 7, steps and chunks of the model's own differ by 1e-4
    model = build(config, getattr(hf, f"{name}ForConditionalGeneration"), scale=5.0)
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith("A_log"):  # new ones forget a row within a few: dropping it would change nothing
            parameter.copy_(torch.linspace(-5.0, -2.0, len(parameter)))
    return Tiny(model, qwen_inputs(prompt(seed=6)), {"mm_token_type_ids": 0})


def lfm2() -> Tiny:
    text = {**TEXT, "model_type": "lfm2", "layer_types": ["conv", "conv", FULL] * 2, "conv_L_cache": 3}
    text["block_auto_adjust_ff_dim"] = False
    vision = {**VISION, "model_type": "siglip2_vision_model", "patch_size": 4, "num_patches": 64}
    sizes = {"projector_hidden_size": 64, "downsample_factor": 2}
    config = hf.Lfm2VlConfig(text_config=text, vision_config=vision, image_token_id=IMAGE, **sizes)
    model = build(config, hf.Lfm2VlForConditionalGeneration, scale=5.0)
    picture = {"pixel_values": pixels(1, 64, 3 * 4 * 4), "spatial_shapes": torch.tensor([[8, 8]])}
    return Tiny(model, with_mask(prompt(), **picture, pixel_attention_mask=torch.ones(1, 64, dtype=torch.long)))


def internvl() -> Tiny:
    vision = {**VISION, "model_type": "internvl_vision", "image_size": [64, 64], "patch_size": [8, 8]}
    text = {**TEXT, "model_type": "qwen2"}
    config = hf.InternVLConfig(vision_config=vision, text_config=text, image_token_id=IMAGE, image_seq_length=16)
    model = build(config, hf.InternVLForConditionalGeneration)
    return Tiny(model, with_mask(prompt(), pixel_values=pixels(1, 3, 64, 64)))


def idefics(name: str = "Idefics3") -> Tiny:
    vision = {**VISION, "model_type": f"{name.lower()}_vision", "image_size": 32, "patch_size": 4}
    more = {"image_token_id": IMAGE, "scale_factor": 2, "pad_token_id": 0}
    text = {**TEXT, "model_type": "llama"}
    config = getattr(hf, f"{name}Config")(vision_config=vision, text_config=text, **more)
    model = build(config, getattr(hf, f"{name}ForConditionalGeneration"))
    return Tiny(model, with_mask(prompt(), pixel_values=pixels(1, 1, 3, 32, 32)))


def gemma3() -> Tiny:
    text = {**TEXT, "head_dim": 16, "query_pre_attn_scalar": 16, "layer_types": [SLIDING, SLIDING, FULL] * 2}
    text["sliding_window"] = 12  # shorter than the image, so that windows matter
    tokens = {"mm_tokens_per_image": 16, "boi_token_index": 102, "eoi_token_index": 103}
    config = hf.Gemma3Config(vision_config=SIGLIP, text_config=text, image_token_index=IMAGE, **tokens)
    model, ids = build(config, hf.Gemma3ForConditionalGeneration), prompt()
    projection = model.model.multi_modal_projector.mm_input_projection_weight
    projection.copy_(pixels(*projection.shape))  # a new one is all zeros, so that no picture differs from another
    kinds = (ids == IMAGE).long()
    return Tiny(model, with_mask(ids, pixel_values=pixels(1, 3, 32, 32), token_type_ids=kinds), {"token_type_ids": 0})


def gemma4(size: str) -> Tiny:
    """Build a Gemma 4: "E4B" has per-layer inputs and shared keys and values, "26B-A4B" experts, "31B" neither."""
    text: dict[str, Any] = {**TEXT, "head_dim": 16, "global_head_dim": 32, "layer_types": [SLIDING, FULL] * 3}
    text |= {"sliding_window": 12, "hidden_size_per_layer_input": 0}  # a window as in `gemma3`
    if size == "E4B":
        text.update(hidden_size_per_layer_input=8, vocab_size_per_layer_input=VOCABULARY, num_kv_shared_layers=2)
    else:
        text.update(attention_k_eq_v=True, num_global_key_value_heads=1, use_bidirectional_attention="vision")
    if size == "26B-A4B":
        text.update(enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=32)
    vision = {**VISION, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "patch_size": 4}
    vision |= {"pooling_kernel_size": 2, "position_embedding_size": 64}
    tokens = {"video_token_id": 101, "boi_token_id": 102, "eoi_token_id": 103, "audio_token_id": 104}
    config = hf.Gemma4Config(text_config=text, vision_config=vision, image_token_id=IMAGE, **tokens)
    model, ids = build(config, hf.Gemma4ForConditionalGeneration), prompt()
    places = torch.tensor([[x, y] for y in range(8) for x in range(8)])[None]  # 8 x 8 patches, pooled to 16 tokens
    picture = {"pixel_values": pixels(1, 64, 3 * 4 * 4).sigmoid(), "image_position_ids": places}
    inputs = with_mask(ids, **picture, mm_token_type_ids=(ids == IMAGE).long())
    return Tiny(model, inputs, {"mm_token_type_ids": 0})


def paligemma(version: int = 1) -> Tiny:
    text: dict[str, Any] = {**TEXT, "head_dim": 16, "model_type": "gemma"}
    if version == 2:
        text.update(model_type="gemma2", sliding_window=12, query_pre_attn_scalar=16)
    vision = {**SIGLIP, "projection_dim": 64}
    sizes = {"projection_dim": 64, "hidden_size": 64, "vocab_size": VOCABULARY}
    config = hf.PaliGemmaConfig(vision_config=vision, text_config=text, image_token_index=IMAGE, **sizes)
    model = build(config, hf.PaliGemmaForConditionalGeneration, "eager" if version == 2 else "sdpa")
    ids = prompt(before=0)
    inputs = with_mask(ids, pixel_values=pixels(1, 3, 32, 32), token_type_ids=torch.zeros_like(ids))
    return Tiny(model, inputs, {"token_type_ids": 1})  # the prompt is a prefix, what follows is causal


FAMILIES: dict[str, Callable[[], Tiny]] = {
    "LLaVA-1.5": llava,
    "LLaVA-NeXT": llava_next,
    "Pixtral (LLaVA)": pixtral,
    "Mistral 3": mistral3,
    "Ministral 3": partial(mistral3, 2),
    "Qwen2-VL": partial(qwen, "2"),
    "Qwen2.5-VL": partial(qwen, "2.5"),
    "Qwen3-VL": partial(qwen, "3"),
    "Qwen3.5": qwen3_5,
    "Qwen3.5 MoE": partial(qwen3_5, "Qwen3_5Moe"),
    "LFM2-VL": lfm2,
    "InternVL": internvl,
    "Idefics3": idefics,
    "SmolVLM": partial(idefics, "SmolVLM"),
    "Gemma 3": gemma3,
    "Gemma 4": partial(gemma4, "31B"),
    "Gemma 4 MoE": partial(gemma4, "26B-A4B"),
    "Gemma 4 E": partial(gemma4, "E4B"),
    "PaliGemma": paligemma,
    "PaliGemma 2": partial(paligemma, 2),
}

# Where a test is not about a family: a plain stack, positions in three axes, features behind the first layers, states
# and convolutions in place of columns, windows, keys that layers share, a prompt that sees all of itself.
REPRESENTATIVES = ["LLaVA-1.5", "Qwen2.5-VL", "Qwen3-VL", "Qwen3.5", "LFM2-VL", "Gemma 3", "Gemma 4 E", "PaliGemma"]

STATES = ["Qwen3.5", "Qwen3.5 MoE", "LFM2-VL"]  # families with layers that keep a state
WITH_HEADS = [name for name in FAMILIES if name not in STATES]  # attention in every layer
COLUMNS = [name for name in WITH_HEADS if name != "Gemma 4 E"]  # every layer has columns of its own
