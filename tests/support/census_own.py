"""What some of the newer types need besides the sizes in `census`."""

from __future__ import annotations

from typing import Any

import torch

from tests.support.tiny_parts import IMAGE, PIXTRAL, TEXT, pixels

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
            "no_rope_layers": [1, 1, 0, 1, 0, 1],
            "layer_types": ["chunked_attention" if rope else "full_attention" for rope in (1, 1, 0, 1, 0, 1)],
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
