"""A tiny random model of every image-text-to-text type of transformers, from its default config made small."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import transformers as hf
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from sira_cli.core import reference
from sira_cli.core.config import SiraConfig
from sira_cli.core.fork import Step, attach
from tests.support import census_own
from tests.support.tiny_parts import CLIP, IMAGE, TEXT, Tiny, build, pixels, prompt, with_mask

TYPES = {
    kind: name if isinstance(name, str) else name[0]
    for kind, name in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.items()
}

EXPERTS = dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4)
SMALL_TEXT = {
    **TEXT,
    **EXPERTS,
    "head_dim": 16,
    "num_experts_per_tok": 2,
    "moe_topk": 2,
    "moe_k": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "moe_num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "sliding_window": 12,
    "query_pre_attn_scalar": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "share_expert_dim": 32,
    "num_attention_groups": 2,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 200,
}
SMALL_TOWER = {
    "hidden_size": 32,
    "d_model": 32,
    "embed_dim": 32,
    "intermediate_size": 64,
    "ffn_dim": 64,
    "mlp_dim": 64,
    "depth": 2,
    "num_hidden_layers": 2,
    "encoder_layers": 2,
    "num_attention_heads": 4,
    "encoder_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_heads": 4,
    "head_dim": 8,
    "out_hidden_size": 64,
    "image_size": 32,
    "patch_size": 8,
    "fullatt_block_indexes": [1],
    "window_size": 32,
    "vision_feature_layer": -1,
    "codebook_size": 20,
    "num_position_embeddings": 64,
}
# The image token under the names that configs have for it.
PLACEHOLDERS = ("image_token_id", "image_token_index", "image_patch_id")


def small(config: Any, sizes: dict[str, Any], changes: dict[str, Any]) -> Any:
    """The same config with small sizes."""
    given = config.to_dict()
    layers = given.get("num_hidden_layers")
    for name, value in sizes.items():
        if (
            name in given
            and not isinstance(given[name], dict)
            and (given[name] is not None or name == "num_key_value_heads")
        ):
            given[name] = (
                [value] * len(given[name]) if isinstance(given[name], list) and not isinstance(value, list) else value
            )
    if isinstance(given.get("layer_types"), list):
        kinds = list(dict.fromkeys(given["layer_types"]))
        given["layer_types"] = [kinds[index % len(kinds)] for index in range(given["num_hidden_layers"])]
    for name, value in given.items():
        if isinstance(value, list) and layers is not None and len(value) == layers and name != "layer_types":
            given[name] = value[: given["num_hidden_layers"]]
    for name in ("transformers_version", "dtype", "architectures", "per_layer_config"):
        given.pop(name, None)
    for rope in (given.get("rope_parameters"), *(given.get("rope_parameters") or {}).values()):
        if isinstance(rope, dict) and rope.get("mrope_section"):
            rope["mrope_section"] = [4, 2, 2] if len(rope["mrope_section"]) == 3 else [2] * len(rope["mrope_section"])
    return type(config)(**{**given, **changes})


def model_of(
    kind: str,
    text: dict[str, Any],
    tower: dict[str, Any],
    whole: dict[str, Any],
    given: dict[str, Any],
    parts: dict[str, Any],
    attention: str = "sdpa",
    scale: float = 5.0,
    name: str | None = None,
) -> Any:
    """A tiny random model of a type, and changes of its sizes."""
    model_class = getattr(hf, name or TYPES[kind])
    config = model_class.config_class(**given)
    for name in config.sub_configs:
        part = getattr(config, name, None)
        if part is None:
            continue
        is_text = part is config.get_text_config(decoder=True)
        setattr(
            config,
            name,
            small(part, SMALL_TEXT if is_text else SMALL_TOWER, text if is_text else {**tower, **parts.get(name, {})}),
        )
    for name in PLACEHOLDERS:
        if hasattr(config, name):
            setattr(config, name, IMAGE)
    for name, value in {
        "video_token_id": 101,
        "video_token_index": 101,
        "vision_start_token_id": 102,
        "vision_end_token_id": 103,
        **whole,
    }.items():
        if name in whole or hasattr(config, name):
            setattr(config, name, value)
    return build(config, model_class, attention, scale)


def picture_inputs(model: Any, own: dict[str, Any] | None) -> dict[str, Any]:
    """One random picture, as the model's processor would hand it over: patches with their grid, or pixels."""
    if own is not None:
        return {name: value() if callable(value) else value for name, value in own.items()}
    if "image_grid_thw" not in inspect.signature(model.forward).parameters:
        return {"pixel_values": pixels(1, 3, 32, 32)}
    vision = model.config.vision_config
    width = 3 * getattr(vision, "temporal_patch_size", 1) * vision.patch_size**2
    return {"pixel_values": pixels(64, width), "image_grid_thw": torch.tensor([[1, 8, 8]])}


def image_rows(model: Any, picture: dict[str, Any]) -> int:
    """How many rows the model makes of a picture."""
    holder = model if hasattr(model, "get_image_features") else model.model
    with torch.no_grad():
        found = holder.get_image_features(**picture)
    found = getattr(found, "pooler_output", found)
    parts = found if isinstance(found, list | tuple) else [found]
    return sum(part.numel() // part.shape[-1] for part in parts)


def case_of(kind: str) -> Tiny:
    """A tiny model of a type, and a prompt with a picture through its own tower."""
    own = OWN.get(kind, {})
    model = model_of(
        kind,
        own.get("text", {}),
        own.get("tower", {}),
        own.get("whole", {}),
        own.get("given", {}),
        own.get("parts", {}),
        own.get("attention", "sdpa"),
        own.get("scale", 5.0),
        own.get("class"),
    )
    picture = picture_inputs(model, own.get("picture"))
    ids = prompt(own.get("rows") or image_rows(model, picture))
    grown = {}
    names = inspect.signature(model.forward).parameters
    inputs = with_mask(ids, **picture)
    for name in ("mm_token_type_ids", "token_type_ids", "moe_mm_token_type_ids"):
        if name in names:
            inputs[name], grown[name] = (ids == IMAGE).long(), 0
    first, last = (ids[0] == IMAGE).nonzero().flatten()[[0, -1]].tolist()
    ids[0, first - 1], ids[0, last + 1] = 102, 103
    return Tiny(model, inputs, grown)


def _rope(*sections: int, share: float = 1.0) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(sections), "partial_rotary_factor": share}
    return {"rope_parameters": rope}


GRID = {"pixel_values": lambda: pixels(64, 3 * 2 * 8 * 8), "image_grid_thw": torch.tensor([[1, 8, 8]])}
TILES = {"pixel_values": lambda: pixels(1, 3, 3, 32, 32), "image_sizes": torch.tensor([[32, 64]])}
PINPOINTS = {"image_grid_pinpoints": [[32, 64], [64, 32]]}
OMNI = {
    "vision_start_token_id": 102,
    "vision_end_token_id": 103,
    "audio_token_id": 104,
    "image_token_id": IMAGE,
    "video_token_id": 101,
}
STRIP = {"pixel_values": lambda: pixels(1, 3, 8, 8 * 64), "target_sizes": torch.tensor([[8, 8]], dtype=torch.int32)}
MINICPM: dict[str, Any] = {"picture": STRIP, "tower": {"insert_layer_id": 0}, "text": _rope(2, 1, 1, share=0.5)}
GOT: dict[str, Any] = {"attention": "eager"}


# What a type needs beside the sizes above.
def patches(width: int) -> dict[str, Any]:
    """8 x 8 patches of so many numbers, with their grid."""
    return {"pixel_values": lambda: pixels(64, width), "image_grid_thw": torch.tensor([[1, 8, 8]])}


def clip() -> Any:
    """Another tower that stands in for one of timm."""
    config = hf.CLIPVisionConfig(**CLIP)
    config.model_args = {"embed_dim": 32}
    return config


def resnet() -> Any:
    """A tower that stands in where a type's own needs timm: `[B, 32, 4, 4]`."""
    config = hf.ResNetConfig(
        embedding_size=16, hidden_sizes=[32], depths=[1], layer_type="basic", downsample_in_first_stage=True
    )
    config.hidden_size, config.vocab_size, config.vocab_offset, config.rms_norm_eps = 32, 16, 150, 1e-6
    return config


OWN: dict[str, dict[str, Any]] = {
    "aria": {"whole": {"projector_patch_to_query_dict": {16: 4}}},
    "cohere_compass": {
        "text": {
            "rope_parameters": {
                kind: {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
                for kind in ("full_attention", "sliding_attention")
            }
        }
    },
    "deepseek_vl_hybrid": {
        "picture": {
            "pixel_values": lambda: pixels(1, 3, 32, 32),
            "high_res_pixel_values": lambda: pixels(1, 3, 32, 32),
        },
        "parts": {"high_res_vision_config": {"global_attn_indexes": [1]}},
    },
    "fast_vlm": {
        "given": {"vision_config": resnet()},
        "whole": {"vision_feature_layer": -1},
        "attention": {"vision_config": "eager", "text_config": "sdpa"},
    },
    "fuyu": {"picture": {"pixel_values": lambda: pixels(1, 16, 2700)}, "rows": 16},
    "gemma4_unified": {
        "scale": 3.0,
        "given": {"vision_config": {"mm_embed_dim": 32, "mm_posemb_size": 16, "output_proj_dims": 32}},
        "picture": {
            "pixel_values": lambda: pixels(1, 16, 1728),
            "image_position_ids": torch.tensor([[[x, y] for y in range(4) for x in range(4)]]),
        },
    },
    "hunyuan_vl": {
        "text": {"head_dim": 16, "num_key_value_heads": 2, **_rope(2, 2, 2, 2)},
        "tower": {"num_key_value_heads": 4, "text_hidden_size": 64},
    },
    "molmo2": {
        "tower": {"num_position_embeddings": 16, "text_hidden_size": 64, "vision_feature_layer": [0, 1]},
        "picture": {
            "pixel_values": lambda: pixels(1, 16, 192),
            "image_token_pooling": torch.tensor([[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]),
            "image_grids": torch.tensor([[2, 2, 0, 0]]),
        },
        "whole": {"image_patch_id": IMAGE, "image_token_id": IMAGE},
    },
    "muse_glimmer": {"picture": GRID, "whole": {"out_hidden_size": 128, "projector_hidden_size": 64}},
    "muse_spark": {"picture": GRID, "whole": {"out_hidden_size": 128, "projector_hidden_size": 64}},
    "perception_lm": {"given": {"vision_config": clip()}, "picture": {"pixel_values": lambda: pixels(1, 1, 3, 32, 32)}},
    "glm46v": {"text": _rope(4, 2, 2)},
    "glm4v": {"text": _rope(4, 2, 2)},
    "glm4v_moe": {"text": _rope(2, 1, 1, share=0.5)},
    "glm_ocr": {"text": _rope(4, 2, 2)},
    "glmga": {"text": _rope(4, 2, 2)},
    "got_ocr2": GOT,
    "pp_chart2table": GOT,
    "granite_docling": {
        "picture": {
            "pixel_values": lambda: pixels(1, 1, 3, 64, 64),
            "pixel_attention_mask": torch.ones(1, 1, dtype=torch.bool),
        },
        "tower": {"image_size": 64},
    },
    "idefics2": {
        "parts": {
            "perceiver_config": {
                "hidden_size": 64,
                "resampler_n_latents": 8,
                "resampler_n_heads": 4,
                "resampler_head_dim": 16,
                "num_key_value_heads": 4,
            }
        },
        "picture": {"pixel_values": lambda: pixels(1, 1, 3, 32, 32)},
    },
    "lighton_ocr": {"picture": {"pixel_values": lambda: pixels(1, 3, 32, 32), "image_sizes": torch.tensor([[32, 32]])}},
    "llava_next_video": {"picture": TILES, "whole": PINPOINTS},
    "llava_onevision": {"picture": TILES, "whole": PINPOINTS},
    "minicpm_ocr": MINICPM,
    "minicpmv4_6": MINICPM,
    "minicpmv4_7": MINICPM,
    "minimax_m3_vl": {
        "text": {"dense_intermediate_size": 64, "shared_intermediate_size": 32, "rotary_dim": 8, "index_head_dim": 16},
        "whole": {"projector_hidden_size": 64, "merged_hidden_size": 256},
    },
    "paddleocr_vl": {"text": _rope(2, 3, 3), "picture": {**GRID, "pixel_values": lambda: pixels(64, 3, 8, 8)}},
    "qwen2_5_omni_thinker": {"whole": OMNI, "text": _rope(2, 3, 3)},
    "qwen3_omni_moe_thinker": {"whole": OMNI, "text": _rope(4, 2, 2)},
    "step3p7": {"text": {"sliding_window": 12}},
    "video_llama_3": {"picture": {**patches(192), "image_merge_sizes": torch.tensor([2])}},
    "vipllava": {"whole": {"vision_feature_layers": [-2, -2, -2, -1, -1]}},
    "janus": {
        "parts": {
            "vq_config": {
                "base_channels": 32,
                "latent_channels": 8,
                "num_embeddings": 16,
                "channel_multiplier": [1, 1],
                "projection_dim": 64,
                "image_token_embed_dim": 64,
            }
        },
        "tower": {"projection_dim": 64},
    },
    "ovis2": {"tower": {"vocab_size": 64}, "whole": {"hidden_size": 64, "vocab_size": 200}},
    **census_own.OWN,
}


def longer(case: Tiny, more: int) -> dict[str, Any]:
    """The same prompt with so many tokens more in front of it."""
    shape = case.inputs["input_ids"].shape
    inputs = {}
    for name, value in case.inputs.items():
        if value.shape == shape:
            value = torch.cat([value[:, :1].expand(-1, more), value], dim=1)
        inputs[name] = value
    inputs["input_ids"][:, :more] = prompt(0, more, 0, seed=1)
    return inputs


def without_cache(case: Tiny, config: SiraConfig, steps: int) -> tuple[list[int], list[Step]]:
    """Greedy tokens under SIRA, where each pass gets the whole text."""
    inputs, tokens, seen = dict(case.inputs), [], []
    with attach(case.model, config, on_step=seen.append):
        for _ in range(steps):
            logits = case.model(**inputs, use_cache=False).logits[0, -1]
            logits[case.silent] = -torch.inf
            tokens.append(int(logits.argmax()))
            inputs = reference.extend(inputs, tokens[-1], case.grown)
    return tokens, seen


def stacked(kind: str, batch: dict[str, Any], singles: list[dict[str, Any]]) -> dict[str, Any]:
    """Put pictures of a batch together as the type's processor does, where that is not along the first axis."""
    if kind.startswith("minicpm"):  # patches lie in a row
        batch["pixel_values"] = torch.cat([single["pixel_values"] for single in singles], dim=3)
    if kind == "molmo2":  # numbers of patches, counted on
        batch["image_token_pooling"] = torch.cat(
            [single["image_token_pooling"] + 16 * index for index, single in enumerate(singles)]
        )
    return batch


def without_weights(kind: str) -> Any:
    """The default model of a type on the meta device; None: its default config does not build."""
    model_class = getattr(hf, TYPES[kind])
    try:
        config = model_class.config_class()
        with torch.device("meta"):
            return model_class._from_config(config)
    except (AttributeError, ImportError, KeyError, TypeError, ValueError):
        return None
