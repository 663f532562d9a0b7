"""What types need besides the sizes in `census`."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf

from tests.support.tiny_parts import CLIP, IMAGE, PIXTRAL, TEXT, pixels


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


LATENT = {
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "num_key_value_heads": 4,
    "head_dim": 8,
}

SLIDING = (
    "num_attention_heads",
    "num_key_value_heads",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "v_head_dim",
)
TOWER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}

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
    "kimi_k25": {
        "text": LATENT,
        "tower": {"pos_emb_height": 8, "pos_emb_width": 8},
        "whole": {"projection_hidden_size": 32},
        "picture": {"pixel_values": lambda: pixels(64, 3, 8, 8), "image_grid_thw": torch.tensor([[1, 8, 8]])},
    },
    "ernie4_5_vl_moe": {
        "text": {
            "moe_intermediate_size": [32, 48],
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [3, 3, 2]},
        },
        "whole": {"image_start_token_id": 102, "image_end_token_id": 103},
    },
    "granite4_vision": {
        "rows": 10,
        "tower": {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 4, "image_size": 32},
        "whole": {
            "image_grid_pinpoints": [[32, 32]],
            "downsample_rate": "1/2",
            "deepstack_layer_map": [(-3, 0), (-2, 3)],
            "spatial_target_layers": [1, 2, 4, 5],
            "projector_dropout": 0.0,
        },
        "parts": {
            "qformer_config": {
                "hidden_size": 64,
                "num_attention_heads": 1,
                "encoder_hidden_size": 64,
                "intermediate_size": 64,
                "num_hidden_layers": 1,
            }
        },
        "picture": {"pixel_values": lambda: pixels(1, 2, 3, 32, 32), "image_sizes": torch.tensor([[32, 32]])},
    },
    "llama4": {
        "rows": 16,
        "picture": {"pixel_values": lambda: pixels(4, 3, 32, 32)},
        "text": {
            "intermediate_size_mlp": 64,
            "attention_chunk_size": 16,
            "floor_scale": 4,
            "attn_scale": 0.5,
            "no_rope_layers": [1, 1, 0, 1, 1, 0],
            "layer_types": ["chunked_attention" if rope else "full_attention" for rope in (1, 1, 0, 1, 1, 0)],
            "moe_layers": [1, 3, 5],
        },
        "tower": {
            "vision_output_dim": 32,
            "projector_input_dim": 32,
            "projector_output_dim": 32,
            "intermediate_size": 128,
        },
    },
    "mistral4": {  # the text stack of `mistral3` models
        "class": "Mistral3ForConditionalGeneration",
        "given": {
            "text_config": {
                "model_type": "mistral4",
                "max_position_embeddings": 512,
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 1e4,
                    "factor": 64.0,
                    "partial_rotary_factor": 0.5,
                    "original_max_position_embeddings": 8,
                    "mscale_all_dim": 1.0,
                    "mscale": 1.0,
                    "llama_4_scaling_beta": 0.5,
                },
            },
            "vision_config": PIXTRAL,
            "image_token_index": IMAGE,
            "spatial_merge_size": 2,
        },
        "text": {**LATENT, "head_dim": 16},
        "picture": {"pixel_values": lambda: pixels(1, 3, 64, 64), "image_sizes": torch.tensor([[64, 64]])},
    },
    "dots3_note": {
        "text": {
            **LATENT,
            "layer_types": ["indexed_attention", *["indexed_attention", "sliding_attention"] * 2, "indexed_attention"],
            "index_topk": 6,
            "index_head_dim": 16,
            "index_n_heads": 16,  # few would often agree on no row at all, and which ones are then chosen is chance
            **{f"swa_{name}": LATENT.get(name, 4) for name in SLIDING},
            "swa_head_dim": 16,
            "sliding_window": 12,
            "shared_experts_intermediate_size": 32,
        },
        "tower": {"adapter_in_dim": 32, "adapter_out_dim": 64},
        "parts": {"audio_config": {"adapter_input_size": 32, "adapter_out_dim": 64}},
    },
    "chameleon": {
        "scale": 2.5,
        "given": {
            **TEXT,
            "vq_config": {
                "embed_dim": 16,
                "num_embeddings": 10,
                "latent_channels": 16,
                "resolution": 32,
                "base_channels": 32,
                "channel_multiplier": [1, 1, 1, 1],
                "num_res_blocks": 1,
            },
            "vocabulary_map": {
                "<image>": IMAGE,
                **{f"IMGIMG{letter}Z": 110 + index for index, letter in enumerate("ABCDEFGHIJ")},
            },
        },
    },
    "emu3": {
        "given": {
            "vq_config": {
                "codebook_size": 10,
                "embed_dim": 4,
                "latent_channels": 4,
                "base_channels": 32,
                "hidden_size": 32,
                "channel_multiplier": [1, 1],
                "num_res_blocks": 1,
                "attn_resolutions": [1],
            },
            "vocabulary_map": {
                "<image>": IMAGE,
                "<|extra_200|>": 130,
                **{f"<|visual token {index:06d}|>": 110 + index for index in range(20)},
            },
        },
        "picture": {"pixel_values": lambda: pixels(1, 3, 16, 16), "image_sizes": torch.tensor([[16, 16]])},
    },
    "deepseek_ocr2": {
        "text": {
            "mlp_layer_types": ["dense", *["sparse"] * 5],
            "num_experts_per_tok": 2,
            "num_key_value_heads": 4,
            "n_group": 1,
            "topk_group": 1,
        },
        "given": {
            "vision_config": {
                "sam_config": {
                    **TOWER,
                    "output_channels": 16,
                    "image_size": 64,
                    "patch_size": 8,
                    "window_size": 4,
                    "global_attn_indexes": [1],
                    "mlp_dim": 64,
                    "downsample_channels": [16, 32],
                },
                "encoder_config": {**TOWER, "intermediate_size": 64, "num_key_value_heads": 4, "vocab_size": 8},
            }
        },
        "picture": {"pixel_values": lambda: pixels(1, 3, 64, 64)},
    },
}
