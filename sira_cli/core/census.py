"""Every image-text-to-text type of transformers 5.19 to 5.24: equal to the reference, refused (why), or not settled.

tests/core/test_census.py holds each line against a tiny model of the type. A type that is in no table here was added by
another version of transformers: it is judged by its structure, and runs with a warning.
"""

from __future__ import annotations

# Types that equal the reference with a picture through their own tower, besides those in `families.FAMILIES`.
# `mistral4` is a text stack, inside Mistral 3's class; `shieldgemma2` has Gemma 3's class.
# fmt: off
EXACT = (
    "apertus1p5", "aria", "aya_vision", "chameleon", "cohere2_vision", "cohere_compass", "cosmos3_edge", "cosmos3_omni",
    "deepseek_ocr2", "deepseek_vl", "deepseek_vl_hybrid", "dots3_note", "emu3", "ernie4_5_vl_moe", "exaone4_5",
    "fast_vlm", "fuyu", "gemma4_unified", "glm46v", "glm4v", "glm4v_moe", "glm_ocr", "glmga", "got_ocr2",
    "granite4_vision", "granite_docling", "hunyuan_vl", "hyperclovax_vision_v2", "idefics2", "janus", "kimi_k25",
    "lfm3_vl", "lighton_ocr", "llama4", "llava_next_video", "llava_onevision", "minicpm_ocr", "minicpmv4_6",
    "minicpmv4_7", "minimax_m3_vl", "mistral4", "molmo2", "muse_glimmer", "muse_spark", "ovis2", "paddleocr_vl",
    "perception_lm", "pp_chart2table", "qianfan_ocr", "qwen2_5_omni_thinker", "qwen3_omni_moe_thinker", "qwen3_vl_moe",
    "shieldgemma2", "step3p7", "video_llama_3", "video_llava", "vipllava",
)
# fmt: on

_CROSS = "it reads the image through cross-attention: there are no image tokens to drop"
_ENCODER = "it is an encoder-decoder: its decoder never holds the image tokens"
_CHOSEN = "some of its layers attend to rows that earlier ones have chosen (sparse indexers)"
_BRIDGE = "its language model comes with other names of layers and norms than the fork hooks (OPT, T5)"
_INKLING = "its text stack has layers of type hybrid (convolutions inside its attention)"
_MARKED = "it marks image positions by a mask, not by an image token"

# Types that the fork does not follow, and why.
REFUSED = {
    "blip": _CROSS,
    "blip-2": _BRIDGE,
    "diffusion_gemma": "it writes blocks of text by diffusion, so there is no next token to decide",
    "evolla": "it reads proteins through cross-attention, not images",
    "florence2": _ENCODER,
    "git": "it puts pictures before the text without image tokens",
    "glm5_next": _CHOSEN,
    "hy_v4_vl": _CHOSEN,
    "idefics": _CROSS,
    "inkling2": _INKLING,
    "inkling2_loop": _INKLING,
    "inkling_mm_model": _INKLING,
    "instructblip": _BRIDGE,
    "instructblipvideo": _BRIDGE,
    "kosmos-2": _MARKED,
    "kosmos-2.5": _MARKED,
    "mistral_large4": _CHOSEN,
    "mllama": _CROSS,
    "nemotron_h_omni": "its text stack has Mamba layers",
    "pi0": "it predicts actions, not text",
    "pix2struct": _ENCODER,
    "pp_formulanet": _ENCODER,
    "qwen4_exp": "its text stack has layers of type indexed_attention (sparse indexers)",
    "t5gemma2": _ENCODER,
    "udop": _ENCODER,
    "unlimited_ocr": "its text stack has layers of type reference_sliding_attention",
    "vision-encoder-decoder": _ENCODER,
}

# Types whose own code fails under a version of transformers, with or without a fork, and why.
BROKEN = {("llama4", "5.24.0"): "its outputs lack `image_outputs`"}

# Types whose pictures `generate` mixes up for beams and several returned texts, with or without a fork, and versions.
MIXED_BEAMS = {(kind, version) for kind in ("qwen3_5", "qwen3_5_moe") for version in ("5.19", "5.20")}

# Types of a known structure that could not be compared in full, and why.
UNSETTLED = {"gemma3n": "its picture tower needs timm; the text stack alone is exact"}

# Text stacks that equal the reference inside `llava`, which takes any.
# fmt: off
STACKS = (
    "afmoe", "apertus", "arcee", "aria_text", "bitnet", "cohere", "cohere2", "cohere2_moe", "cwm", "ernie4_5",
    "ernie4_5_moe", "exaone4", "exaone_moe", "flex_olmo", "flint", "gemma", "gemma2", "gemma3_text",
    "gemma4_unified_text", "glm", "glm4", "glm4_moe", "gpt_oss", "granite", "granite_swa", "granitemoe",
    "granitemoe_swa", "granitemoeshared", "helium", "hy_v3", "hyperclovax", "internlm3", "iquestcoder", "jais2",
    "kolibri1", "laguna", "lfm2", "lfm3", "llama", "llama4_text", "mellum", "mimo_v2_flash", "minimax_m2",
    "minimax_m3_vl_text", "ministral3", "mistral", "mixtral", "nemotron", "olmo", "olmo2", "olmo3", "olmo_hybrid",
    "olmoe", "persimmon", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_5_moe_text",
    "qwen3_5_text", "qwen3_moe", "qwen3_next", "seed_oss", "smollm3", "solar_open", "stablelm", "starcoder2",
    "vaultgemma",
)
# Further text stacks, of the exact types that have them.
OWN_STACKS = (
    "apertus1p5_text", "cohere_compass_text", "cosmos3_edge_text", "deepseek_ocr2_text", "deepseek_v3",
    "dots3_note_text", "emu3_text_model", "ernie4_5_vl_moe_text", "gemma4_text", "glm4v_moe_text", "glm4v_text",
    "glm_ocr_text", "granite4_vision_text", "granite_docling_text", "hunyuan_vl_text", "mistral4", "molmo2_text",
    "muse_glimmer_text", "muse_spark_text", "paddleocr_vl_text", "qwen2_5_omni_text", "qwen2_5_vl_text",
    "qwen2_vl_text", "qwen3_omni_moe_text", "qwen3_vl_moe_text", "qwen3_vl_text", "step3p5",
)
# fmt: on

_OWN_MASK = "its attention has a mask of its own on top of the causal one"
# Text stacks that the fork does not follow, and why; those with other structures are refused by their structure.
REFUSED_STACKS = {
    "beam": _OWN_MASK,
    "diffllama": "its attention splits values after the cache",
    "doge": _OWN_MASK,
    "nanochat": "it also applies its final norm to the embeddings",
}
