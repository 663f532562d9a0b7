"""What config.json tells of a real model: its size, its precision, its layers. Nothing is downloaded for it.

The configurations are those of the hub's repositories, without keys that say what is transformers' default.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from sira_cli.models import presets
from sira_cli.models.inspection import inspect_model

SIGLIP_SO400M = {
    "hidden_size": 1152,
    "image_size": 384,
    "intermediate_size": 4304,
    "model_type": "siglip_vision_model",
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "patch_size": 14,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3-vl-8b": {
        "image_token_id": 151655,
        "model_type": "qwen3_vl",
        "text_config": {
            "dtype": "bfloat16",
            "head_dim": 128,
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "model_type": "qwen3_vl_text",
            "num_attention_heads": 32,
            "num_hidden_layers": 36,
            "num_key_value_heads": 8,
            "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
            "vocab_size": 151936,
        },
        "tie_word_embeddings": False,
        "vision_config": {
            "deepstack_visual_indexes": [8, 16, 24],
            "depth": 27,
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "model_type": "qwen3_vl",
            "num_heads": 16,
            "num_position_embeddings": 2304,
            "out_hidden_size": 4096,
            "patch_size": 16,
        },
    },
    "internvl3-8b": {
        "image_token_id": 151667,
        "model_type": "internvl",
        "text_config": {
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "model_type": "qwen2",
            "num_attention_heads": 28,
            "num_hidden_layers": 28,
            "num_key_value_heads": 4,
            "torch_dtype": "bfloat16",
            "vocab_size": 151674,
        },
        "torch_dtype": "bfloat16",
        "vision_config": {
            "attention_bias": True,
            "hidden_size": 1024,
            "image_size": [448, 448],
            "intermediate_size": 4096,
            "model_type": "internvl_vision",
            "num_attention_heads": 16,
            "num_hidden_layers": 24,
            "patch_size": [14, 14],
        },
    },
    "joycaption-beta-one": {
        "image_token_index": 128077,
        "model_type": "llava",
        "text_config": {
            "head_dim": 128,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "model_type": "llama",
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "torch_dtype": "bfloat16",
            "vocab_size": 128256,
        },
        "torch_dtype": "bfloat16",
        "vision_config": SIGLIP_SO400M,
        "vision_feature_select_strategy": "full",
    },
    "smolvlm2-2.2b": {
        "image_token_id": 49190,
        "model_type": "smolvlm",
        "scale_factor": 3,
        "text_config": {
            "head_dim": 64,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "model_type": "llama",
            "num_attention_heads": 32,
            "num_hidden_layers": 24,
            "num_key_value_heads": 32,
            "torch_dtype": "bfloat16",
            "vocab_size": 49280,
        },
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vision_config": {**SIGLIP_SO400M, "model_type": "smolvlm_vision"},
    },
    "gemma3-4b": {
        "image_token_index": 262144,
        "mm_tokens_per_image": 256,
        "model_type": "gemma3",
        "text_config": {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "model_type": "gemma3_text",
            "num_hidden_layers": 34,
        },
        "torch_dtype": "bfloat16",
        "vision_config": {**SIGLIP_SO400M, "image_size": 896, "vision_use_head": False},
    },
}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_size_is_that_of_the_preset(name, tmp_path):
    """Which is that of the files on the hub."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]))
    facts = inspect_model(str(tmp_path))
    assert round(facts.gigabytes, 1) == presets.find(name).download_gb
