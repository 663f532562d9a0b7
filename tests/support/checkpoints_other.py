"""Checkpoints on disk of the families that `tests.support.checkpoints` does not write, with tiny random weights.

The files are those of the hub repository that each writer names: file names, keys, classes, special
tokens, tensor names, number types, in the spelling of the transformers that wrote them (`torch_dtype`,
`rope_theta`, `image_token_index`). Sizes are tiny, vocabularies are cut down, and of the chat templates
remains what one picture and one question need.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForImageTextToText

from tests.support.checkpoints import WORDS

# Sizes, the same for all; they take the place of the real ones.
TEXT = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 6, "num_attention_heads": 4}
TEXT["num_key_value_heads"] = 2
VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
IMAGE = {"do_normalize": True, "do_rescale": True, "do_resize": True, "rescale_factor": 0.00392156862745098}
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")


def write_llava_next(folder: Path) -> Path:
    """llava-hf/llava-v1.6-mistral-7b-hf."""
    return write_checkpoint(
        folder,
        kind="llama",
        first="<unk> <s> </s>",
        last="<image> <pad>",
        tokenizer="""{
            "add_bos_token": true, "add_eos_token": false, "bos_token": "<s>", "eos_token": "</s>",
            "extra_special_tokens": {"image_token": "<image>"}, "legacy": true,
            "model_max_length": 1000000000000000019884624838656, "pad_token": "<pad>", "padding_side": "left",
            "processor_class": "LlavaNextProcessor", "tokenizer_class": "LlamaTokenizer", "unk_token": "<unk>",
            "use_default_system_prompt": false
        }""",
        config="""{
            "architectures": ["LlavaNextForConditionalGeneration"], "ignore_index": -100,
            "image_grid_pinpoints": [[56, 112], [112, 56], [112, 112], [168, 56], [56, 168]],
            "image_seq_length": 16, "image_token_index": "@<image>", "model_type": "llava_next",
            "projector_hidden_act": "gelu",
            "text_config": {
                "_name_or_path": "mistralai/Mistral-7B-Instruct-v0.2", "architectures": ["MistralForCausalLM"],
                "max_position_embeddings": 32768, "model_type": "mistral", "rms_norm_eps": 1e-05,
                "rope_theta": 1000000.0, "sliding_window": null, "torch_dtype": "bfloat16", "vocab_size": "@size"
            },
            "tie_word_embeddings": false, "torch_dtype": "float16", "transformers_version": "4.39.0.dev0",
            "use_image_newline_parameter": true,
            "vision_config": {
                "image_size": 56, "model_type": "clip_vision_model", "patch_size": 14, "projection_dim": 32,
                "vocab_size": 32000
            },
            "vision_feature_layer": -2, "vision_feature_select_strategy": "default", "vocab_size": "@size"
        }""",
        generation="""{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": "@<pad>"}""",
        image_processor="""{
            "aspect_ratio_setting": "anyres", "crop_size": {"height": 56, "width": 56}, "do_center_crop": true,
            "do_convert_rgb": true, "do_pad": true,
            "image_grid_pinpoints": [[56, 112], [112, 56], [112, 112], [168, 56], [56, 168]],
            "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_processor_type": "LlavaNextImageProcessor",
            "image_std": [0.26862954, 0.26130258, 0.27577711], "processor_class": "LlavaNextProcessor",
            "resample": 3, "size": {"shortest_edge": 56}
        }""",
        processor="""{
            "image_token": "<image>", "num_additional_image_tokens": 1, "patch_size": 14,
            "processor_class": "LlavaNextProcessor", "vision_feature_select_strategy": "default"
        }""",
        template="{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' }}"
        "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
        "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] }}"
        "{% endfor %}{{' [/INST]' }}{% endif %}{% endfor %}",
    )


def write_joycaption(folder: Path) -> Path:
    """fancyfeast/llama-joycaption-beta-one-hf-llava: LLaVA on Llama 3.1; contents of its messages are plain text."""
    return write_checkpoint(
        folder,
        kind="llama3",
        last="<|begin_of_text|> <|end_of_text|> <|finetune_right_pad_id|> <|start_header_id|> <|end_header_id|> "
        "<|eot_id|> <|reserved_special_token_69|> <|reserved_special_token_70|> <|reserved_special_token_71|>",
        tokenizer="""{
            "bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "model_max_length": 131072,
            "pad_token": "<|finetune_right_pad_id|>", "processor_class": "LlavaProcessor",
            "tokenizer_class": "PreTrainedTokenizerFast"
        }""",
        config="""{
            "architectures": ["LlavaForConditionalGeneration"], "ignore_index": -100, "image_seq_length": 16,
            "image_token_index": "@<|reserved_special_token_69|>", "model_type": "llava",
            "projector_hidden_act": "gelu",
            "text_config": {
                "architectures": ["LlamaForCausalLM"], "bos_token_id": "@<|begin_of_text|>",
                "max_position_embeddings": 131072, "model_type": "llama", "rms_norm_eps": 1e-05,
                "rope_scaling": {
                    "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                    "original_max_position_embeddings": 8192, "rope_type": "llama3"
                },
                "rope_theta": 500000.0, "torch_dtype": "bfloat16", "vocab_size": "@size"
            },
            "torch_dtype": "bfloat16", "transformers_version": "4.44.2",
            "vision_config": {
                "hidden_act": "gelu_pytorch_tanh", "image_size": 56, "layer_norm_eps": 1e-06,
                "model_type": "siglip_vision_model", "patch_size": 14
            },
            "vision_feature_layer": -2, "vision_feature_select_strategy": "full"
        }""",
        generation="""{
            "bos_token_id": "@<|begin_of_text|>", "eos_token_id": ["@<|end_of_text|>", "@<|eot_id|>"],
            "pad_token_id": "@<|finetune_right_pad_id|>"
        }""",
        image_processor="""{
            "do_convert_rgb": null, "image_mean": [0.5, 0.5, 0.5], "image_processor_type": "SiglipImageProcessor",
            "image_std": [0.5, 0.5, 0.5], "processor_class": "LlavaProcessor", "resample": 2,
            "size": {"height": 56, "width": 56}
        }""",
        processor="""{
            "image_token": "<|reserved_special_token_69|>", "num_additional_image_tokens": 0, "patch_size": 14,
            "processor_class": "LlavaProcessor", "vision_feature_select_strategy": "full"
        }""",
        template="{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content'] | trim %}"
        "{%- set messages = messages[1:] %}{%- else %}{%- set system_message = '' %}{%- endif %}"
        "{{- '<|start_header_id|>system<|end_header_id|>\n\nToday Date: 26 July 2024\n\n' }}{{- system_message }}"
        "{{- '<|eot_id|>' }}{%- for message in messages %}{{- '<|start_header_id|>' + message['role'] + "
        "'<|end_header_id|>\n\n<|reserved_special_token_70|><|reserved_special_token_69|>"
        "<|reserved_special_token_71|>' + message['content'].replace('<|reserved_special_token_69|>', '').lstrip() + "
        "'<|eot_id|>' }}{%- endfor %}{%- if add_generation_prompt %}"
        "{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}",
    )


def write_pixtral(folder: Path) -> Path:
    """mistral-community/pixtral-12b: a `llava` model with Pixtral's vision tower and processor."""
    return write_checkpoint(
        folder,
        kind="tekken",
        first=TEKKEN,
        tokenizer="""{
            "bos_token": "<s>", "eos_token": "</s>", "model_max_length": 1000000000000000019884624838656,
            "pad_token": "<pad>", "processor_class": "PixtralProcessor",
            "tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"
        }""",
        config="""{
            "architectures": ["LlavaForConditionalGeneration"], "ignore_index": -100, "image_seq_length": 1,
            "image_token_index": "@[IMG]", "model_type": "llava", "projector_hidden_act": "gelu",
            "text_config": {
                "head_dim": 16, "is_composition": true, "max_position_embeddings": 1024000, "model_type": "mistral",
                "rms_norm_eps": 1e-05, "rope_theta": 1000000000.0, "sliding_window": null, "vocab_size": "@size"
            },
            "torch_dtype": "bfloat16", "transformers_version": "4.45.0.dev0",
            "vision_config": {
                "head_dim": 8, "image_size": 160, "is_composition": true, "model_type": "pixtral", "patch_size": 16,
                "rope_theta": 10000.0, "tie_word_embeddings": false
            },
            "vision_feature_layer": -1, "vision_feature_select_strategy": "full"
        }""",
        generation="""{"bos_token_id": 1, "eos_token_id": 2}""",
        image_processor="""{
            "do_convert_rgb": true, "image_mean": [0.48145466, 0.4578275, 0.40821073],
            "image_processor_type": "PixtralImageProcessor", "image_std": [0.26862954, 0.26130258, 0.27577711],
            "patch_size": {"height": 16, "width": 16}, "processor_class": "PixtralProcessor", "resample": 3,
            "size": {"longest_edge": 160}
        }""",
        processor="""{
            "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]", "image_token": "[IMG]",
            "patch_size": 16, "processor_class": "PixtralProcessor"
        }""",
        template="{{- bos_token }}{%- for message in messages %}{%- if message['role'] == 'user' %}{{- '[INST]' }}"
        "{%- for chunk in message['content'] %}{%- if chunk['type'] == 'text' %}{{- chunk['text'] }}"
        "{%- elif chunk['type'] == 'image' %}{{- '[IMG]' }}{%- endif %}{%- endfor %}{{- '[/INST]' }}{%- endif %}"
        "{%- endfor %}",
    )


def write_mistral3(folder: Path) -> Path:
    """mistralai/Mistral-Small-3.1-24B-Instruct-2503."""
    return write_checkpoint(
        folder,
        kind="tekken",
        first=TEKKEN,
        tokenizer="""{
            "add_bos_token": true, "add_eos_token": false, "bos_token": "<s>", "eos_token": "</s>", "legacy": true,
            "model_max_length": 1000000000000000019884624838656, "pad_token": "<pad>",
            "processor_class": "PixtralProcessor", "tokenizer_class": "LlamaTokenizerFast", "unk_token": "<unk>",
            "use_default_system_prompt": false
        }""",
        config="""{
            "architectures": ["Mistral3ForConditionalGeneration"], "image_token_index": "@[IMG]",
            "model_type": "mistral3", "multimodal_projector_bias": false, "projector_hidden_act": "gelu",
            "spatial_merge_size": 2,
            "text_config": {
                "attention_dropout": 0.0, "head_dim": 16, "hidden_act": "silu", "initializer_range": 0.02,
                "max_position_embeddings": 131072, "model_type": "mistral", "rms_norm_eps": 1e-05,
                "rope_theta": 1000000000.0, "sliding_window": null, "use_cache": true, "vocab_size": "@size"
            },
            "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0",
            "vision_config": {
                "attention_dropout": 0.0, "head_dim": 8, "hidden_act": "silu", "image_size": 140,
                "initializer_range": 0.02, "model_type": "pixtral", "num_channels": 3, "patch_size": 14,
                "rope_theta": 10000.0
            },
            "vision_feature_layer": -1
        }""",
        generation="""{"bos_token_id": 1, "eos_token_id": 2}""",
        image_processor="""{
            "do_convert_rgb": true, "image_mean": [0.48145466, 0.4578275, 0.40821073],
            "image_processor_type": "PixtralImageProcessor", "image_std": [0.26862954, 0.26130258, 0.27577711],
            "patch_size": 14, "processor_class": "PixtralProcessor", "resample": 3, "size": {"longest_edge": 140}
        }""",
        processor="""{
            "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]", "image_token": "[IMG]",
            "patch_size": 14, "processor_class": "PixtralProcessor", "spatial_merge_size": 2
        }""",
        template="{%- set today = strftime_now('%Y-%m-%d') %}\n"
        "{%- set default_system_message = 'You see pictures.\n\nThe current date is ' + today + '.' %}\n\n"
        "{{- bos_token }}\n\n{{- '[SYSTEM_PROMPT]' + default_system_message + '[/SYSTEM_PROMPT]' }}\n\n"
        "{%- for message in messages %}\n    {%- if message['role'] == 'user' %}\n        {{- '[INST]' }}\n"
        "        {%- for block in message['content'] %}\n            {%- if block['type'] == 'text' %}\n"
        "                {{- block['text'] }}\n            {%- elif block['type'] in ['image', 'image_url'] %}\n"
        "                {{- '[IMG]' }}\n            {%- endif %}\n        {%- endfor %}\n"
        "        {{- '[/INST]' }}\n    {%- endif %}\n{%- endfor %}",
    )


TEKKEN = (
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS] "
    "[IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]"
)


def write_internvl(folder: Path) -> Path:
    """OpenGVLab/InternVL3-8B-hf; the -1B has the same files."""
    return write_checkpoint(
        folder,
        kind="qwen",
        last="<|endoftext|> <|im_start|> <|im_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> "
        "<|video_pad|> <img> </img> <IMG_CONTEXT> <quad> </quad> <ref> </ref> <box> </box> <video>",
        tokenizer="""{
            "add_bos_token": false, "add_prefix_space": false,
            "additional_special_tokens": ["<img>", "</img>", "<IMG_CONTEXT>", "<quad>", "</quad>", "<ref>"],
            "bos_token": null, "eos_token": "<|im_end|>", "errors": "replace",
            "extra_special_tokens": {
                "context_image_token": "<IMG_CONTEXT>", "end_image_token": "</img>", "start_image_token": "<img>",
                "video_token": "<video>"
            },
            "model_max_length": 8192, "pad_token": "<|endoftext|>", "processor_class": "InternVLProcessor",
            "return_token_type_ids": false, "split_special_tokens": false, "tokenizer_class": "Qwen2Tokenizer",
            "unk_token": null
        }""",
        # The real vision tower has `initializer_range` 1e-10: no random numbers to test with.
        config="""{
            "architectures": ["InternVLForConditionalGeneration"], "downsample_ratio": 0.5, "image_seq_length": 4,
            "image_token_id": "@<IMG_CONTEXT>", "model_type": "internvl", "projector_hidden_act": "gelu",
            "text_config": {
                "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": "@<|endoftext|>",
                "eos_token_id": "@<|im_end|>", "hidden_act": "silu", "initializer_range": 0.02,
                "max_position_embeddings": 32768, "max_window_layers": 70, "model_type": "qwen2",
                "rms_norm_eps": 1e-06, "rope_scaling": {"factor": 2.0, "rope_type": "dynamic", "type": "dynamic"},
                "rope_theta": 1000000.0, "sliding_window": null, "torch_dtype": "bfloat16", "use_cache": true,
                "use_sliding_window": false, "vocab_size": "@size"
            },
            "torch_dtype": "bfloat16", "transformers_version": "4.52.0.dev0",
            "vision_config": {
                "architectures": ["InternVisionModel"], "attention_bias": true, "attention_dropout": 0.0,
                "dropout": 0.0, "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "image_size": [56, 56],
                "initializer_factor": 0.1, "initializer_range": 0.02, "layer_norm_eps": 1e-06,
                "layer_scale_init_value": 0.1, "model_type": "internvl_vision", "norm_type": "layer_norm",
                "num_channels": 3, "patch_size": [14, 14], "projection_dropout": 0.0, "torch_dtype": "bfloat16",
                "use_absolute_position_embeddings": true, "use_mask_token": false, "use_mean_pooling": true,
                "use_qk_norm": false
            },
            "vision_feature_layer": -1, "vision_feature_select_strategy": "default"
        }""",
        generation="""{"bos_token_id": "@<|endoftext|>", "eos_token_id": "@<|im_end|>"}""",
        image_processor="""{
            "crop_size": null, "crop_to_patches": false, "data_format": "channels_first", "default_to_square": true,
            "device": null, "do_center_crop": null, "do_convert_rgb": true, "image_mean": [0.485, 0.456, 0.406],
            "image_processor_type": "GotOcr2ImageProcessorFast", "image_std": [0.229, 0.224, 0.225],
            "input_data_format": null, "max_patches": 12, "min_patches": 1, "processor_class": "InternVLProcessor",
            "resample": 3, "return_tensors": null, "size": {"height": 56, "width": 56}
        }""",
        video_processor="""{
            "crop_size": null, "data_format": "channels_first", "default_to_square": true, "device": null,
            "do_center_crop": null, "do_convert_rgb": true, "image_mean": [0.485, 0.456, 0.406],
            "image_std": [0.229, 0.224, 0.225], "input_data_format": null, "processor_class": "InternVLProcessor",
            "resample": 3, "return_tensors": null, "size": {"height": 56, "width": 56},
            "video_processor_type": "InternVLVideoProcessor"
        }""",
        processor="""{"image_seq_length": 4, "processor_class": "InternVLProcessor"}""",
        template_file="chat_template.jinja",
        template="{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n'}}"
        "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
        "{% for content in message['content'] %}{% if content['type'] == 'image' %}{{ '<IMG_CONTEXT>\n' }}"
        "{% elif content['type'] == 'text' %}{{ content['text'] }}{% endif %}{% endfor %}{% endif %}"
        "{{'<|im_end|>\n'}}{% endfor %}{% if add_generation_prompt %}{{'<|im_start|>assistant\n' }}{% endif %}",
    )


def write_idefics3(folder: Path) -> Path:
    """HuggingFaceM4/Idefics3-8B-Llama3. Its tile markers `<row_1_col_1>` are plain text."""
    return write_checkpoint(
        folder,
        kind="llama3",
        last="<|begin_of_text|> <|end_of_text|> <|finetune_right_pad_id|> <|eom_id|> <|eot_id|> "
        "<fake_token_around_image> <image> <end_of_utterance>",
        tokenizer="""{
            "additional_special_tokens": ["<fake_token_around_image>", "<image>", "<end_of_utterance>"],
            "bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>",
            "model_input_names": ["input_ids", "attention_mask"], "model_max_length": 131072,
            "pad_token": "<|finetune_right_pad_id|>", "processor_class": "Idefics3Processor",
            "tokenizer_class": "PreTrainedTokenizerFast", "truncation_side": "left"
        }""",
        config="""{
            "architectures": ["Idefics3ForConditionalGeneration"], "image_token_id": "@<image>",
            "model_type": "idefics3", "scale_factor": 2,
            "text_config": {
                "bos_token_id": "@<|begin_of_text|>",
                "eos_token_id": ["@<|end_of_text|>", "@<|eom_id|>", "@<|eot_id|>"],
                "max_position_embeddings": 131072, "model_type": "llama",
                "pad_token_id": "@<|finetune_right_pad_id|>", "rms_norm_eps": 1e-05,
                "rope_scaling": {
                    "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                    "original_max_position_embeddings": 8192, "rope_type": "llama3"
                },
                "rope_theta": 500000.0, "torch_dtype": "bfloat16", "vocab_size": "@size"
            },
            "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.46.0.dev0",
            "use_cache": true,
            "vision_config": {
                "image_size": 56, "model_type": "idefics3", "patch_size": 14, "tie_word_embeddings": false
            },
            "vocab_size": "@size"
        }""",
        generation="""{
            "bos_token_id": "@<|begin_of_text|>",
            "eos_token_id": ["@<|end_of_text|>", "@<|eom_id|>", "@<|eot_id|>", "@<end_of_utterance>"],
            "pad_token_id": "@<|finetune_right_pad_id|>"
        }""",
        image_processor="""{
            "do_convert_rgb": true, "do_image_splitting": true, "do_pad": true, "image_mean": [0.5, 0.5, 0.5],
            "image_processor_type": "Idefics3ImageProcessor", "image_std": [0.5, 0.5, 0.5],
            "max_image_size": {"longest_edge": 56}, "processor_class": "Idefics3Processor", "resample": 1,
            "size": {"longest_edge": 224}
        }""",
        processor="""{"image_seq_len": 4, "processor_class": "Idefics3Processor"}""",
        template="<|begin_of_text|>" + IDEFICS_TEMPLATE,
    )


IDEFICS_TEMPLATE = (
    "{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)


def write_smolvlm(folder: Path) -> Path:
    """HuggingFaceTB/SmolVLM2-2.2B-Instruct. Its tile markers are tokens."""
    markers = " ".join(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7))
    return write_checkpoint(
        folder,
        kind="gpt2",
        first="<|endoftext|> <|im_start|> <|im_end|>",
        last=f"<global-img> {markers} <fake_token_around_image> <image> <end_of_utterance>",
        tokenizer="""{
            "add_prefix_space": false,
            "additional_special_tokens": ["<fake_token_around_image>", "<image>", "<end_of_utterance>"],
            "bos_token": "<|im_start|>", "eos_token": "<end_of_utterance>",
            "extra_special_tokens": {
                "end_of_utterance_token": "<end_of_utterance>", "fake_image_token": "<fake_token_around_image>",
                "global_image_token": "<global-img>", "image_token": "<image>"
            },
            "legacy": false, "model_max_length": 8192, "pad_token": "<|im_end|>",
            "processor_class": "SmolVLMProcessor", "tokenizer_class": "GPT2Tokenizer", "truncation_side": "left",
            "unk_token": "<|endoftext|>", "vocab_size": 49152
        }""",
        config="""{
            "architectures": ["SmolVLMForConditionalGeneration"], "image_token_id": "@<image>",
            "model_type": "smolvlm", "pad_token_id": 128002, "scale_factor": 3,
            "text_config": {
                "_flash_attn_2_enabled": true, "architectures": ["VLlama3ForCausalLM"], "head_dim": 16,
                "is_llama_config": true, "max_position_embeddings": 8192, "model_type": "llama",
                "neftune_noise_alpha": 0.0, "pad_token_id": 2, "pixel_shuffle_factor": 3, "qk_layer_norms": false,
                "rms_norm_eps": 1e-05, "rope_interleaved": false, "rope_theta": 130000, "torch_dtype": "bfloat16",
                "use_resampler": false, "vocab_size": "@size"
            },
            "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.47.1",
            "use_cache": false, "use_reentrant_checkpointing": false,
            "vision_config": {
                "image_size": 84, "max_image_size": {"longest_edge": 84}, "model_type": "smolvlm_vision",
                "patch_size": 14, "size": {"longest_edge": 420}, "tie_word_embeddings": false,
                "use_base_siglip": true
            },
            "vocab_size": "@size"
        }""",
        generation="""{"bos_token_id": 1, "eos_token_id": "@<end_of_utterance>", "pad_token_id": 2}""",
        image_processor="""{
            "do_convert_rgb": true, "do_image_splitting": true, "do_pad": true, "image_mean": [0.5, 0.5, 0.5],
            "image_processor_type": "SmolVLMImageProcessor", "image_std": [0.5, 0.5, 0.5],
            "max_image_size": {"longest_edge": 84}, "processor_class": "SmolVLMProcessor", "resample": 1,
            "size": {"longest_edge": 336},
            "video_sampling": {"fps": 1, "max_frames": 64, "video_size": {"longest_edge": 84}}
        }""",
        processor="""{"image_seq_len": 4, "processor_class": "SmolVLMProcessor"}""",
        template="<|im_start|>" + IDEFICS_TEMPLATE,
    )


def write_gemma3(folder: Path) -> Path:
    """google/gemma-3-4b-it. Sliding windows are shorter than the image, so that they matter."""
    return write_checkpoint(
        folder,
        kind="gemma",
        first="<pad> <eos> <bos> <unk> <mask> <start_of_turn> <end_of_turn>",
        last="<start_of_image> <end_of_image> <image_soft_token>",
        tokenizer="""{
            "add_bos_token": true, "add_eos_token": false, "bos_token": "<bos>", "eos_token": "<eos>",
            "extra_special_tokens": {
                "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"
            },
            "model_max_length": 1000000000000000019884624838656, "pad_token": "<pad>",
            "processor_class": "Gemma3Processor", "sp_model_kwargs": null, "spaces_between_special_tokens": false,
            "tokenizer_class": "GemmaTokenizer", "unk_token": "<unk>", "use_default_system_prompt": false
        }""",
        config="""{
            "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": "@<start_of_image>",
            "eoi_token_index": "@<end_of_image>", "eos_token_id": [1, "@<end_of_turn>"],
            "image_token_index": "@<image_soft_token>", "initializer_range": 0.02, "mm_tokens_per_image": 16,
            "model_type": "gemma3",
            "text_config": {
                "head_dim": 16, "model_type": "gemma3_text", "query_pre_attn_scalar": 16,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 12, "vocab_size": "@size"
            },
            "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0",
            "vision_config": {
                "image_size": 112, "model_type": "siglip_vision_model", "patch_size": 14, "vision_use_head": false
            }
        }""",
        generation="""{
            "bos_token_id": 2, "cache_implementation": "hybrid", "do_sample": true,
            "eos_token_id": [1, "@<end_of_turn>"], "pad_token_id": 0, "top_k": 64, "top_p": 0.95
        }""",
        image_processor="""{
            "do_convert_rgb": null, "do_pan_and_scan": null, "image_mean": [0.5, 0.5, 0.5],
            "image_processor_type": "Gemma3ImageProcessor", "image_seq_length": 16, "image_std": [0.5, 0.5, 0.5],
            "pan_and_scan_max_num_crops": null, "pan_and_scan_min_crop_size": null,
            "pan_and_scan_min_ratio_to_activate": null, "processor_class": "Gemma3Processor", "resample": 2,
            "size": {"height": 112, "width": 112}
        }""",
        processor="""{"image_seq_length": 16, "processor_class": "Gemma3Processor"}""",
        template="{{ bos_token }}\n{%- for message in messages -%}\n"
        "    {{ '<start_of_turn>' + message['role'] + '\n' }}\n"
        "    {%- for item in message['content'] -%}\n        {%- if item['type'] == 'image' -%}\n"
        "            {{ '<start_of_image>' }}\n        {%- elif item['type'] == 'text' -%}\n"
        "            {{ item['text'] | trim }}\n        {%- endif -%}\n    {%- endfor -%}\n"
        "    {{ '<end_of_turn>\n' }}\n{%- endfor -%}\n"
        "{%- if add_generation_prompt -%}\n    {{'<start_of_turn>model\n'}}\n{%- endif -%}\n",
        tied=True,
    )


def write_paligemma(folder: Path) -> Path:
    """google/paligemma-3b-mix-224. It has no chat template and no processor_config.json."""
    return _write_paligemma(
        folder,
        config="""{
            "_vocab_size": "@<image>", "architectures": ["PaliGemmaForConditionalGeneration"], "bos_token_id": 2,
            "eos_token_id": 1, "hidden_size": 64, "ignore_index": -100, "image_token_index": "@<image>",
            "model_type": "paligemma", "pad_token_id": 0, "projection_dim": 64,
            "text_config": {
                "head_dim": 16, "model_type": "gemma", "num_image_tokens": 16, "num_key_value_heads": 1,
                "torch_dtype": "float32", "vocab_size": "@size"
            },
            "torch_dtype": "float32", "transformers_version": "4.42.0.dev0",
            "vision_config": {
                "image_size": 56, "model_type": "siglip_vision_model", "num_image_tokens": 16, "patch_size": 14,
                "projection_dim": 64, "projector_hidden_act": "gelu_fast", "vision_use_head": false
            }
        }""",
        generation="""{"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}""",
    )


def write_paligemma2(folder: Path) -> Path:
    """google/paligemma2-3b-mix-224. As PaliGemma, with soft-capped scores and sliding windows."""
    return _write_paligemma(
        folder,
        config="""{
            "_vocab_size": "@<image>", "architectures": ["PaliGemmaForConditionalGeneration"], "bos_token_id": 2,
            "eos_token_id": 1, "hidden_size": 64, "ignore_index": -100, "image_token_index": "@<image>",
            "model_type": "paligemma", "pad_token_id": 0, "projection_dim": 64,
            "text_config": {
                "architectures": ["Gemma2ForCausalLM"], "attn_logit_softcapping": 50.0,
                "cache_implementation": "hybrid", "eos_token_id": [1, 107], "final_logit_softcapping": 30.0,
                "head_dim": 16, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
                "model_type": "gemma2", "num_image_tokens": 16, "query_pre_attn_scalar": 16, "sliding_window": 12,
                "torch_dtype": "bfloat16", "vocab_size": "@size"
            },
            "torch_dtype": "bfloat16", "transformers_version": "4.46.0.dev0",
            "vision_config": {
                "image_size": 56, "model_type": "siglip_vision_model", "num_image_tokens": 16, "patch_size": 14,
                "projection_dim": 64, "projector_hidden_act": "gelu_fast", "torch_dtype": "bfloat16",
                "vision_use_head": false
            }
        }""",
        generation="""{
            "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": 1, "pad_token_id": 0
        }""",
    )


def _write_paligemma(folder: Path, config: str, generation: str) -> Path:
    places = " ".join([*(f"<loc{i:0>4}>" for i in range(1024)), *(f"<seg{i:0>3}>" for i in range(128))])
    return write_checkpoint(
        folder,
        kind="gemma",
        first="<pad> <eos> <bos> <unk> <mask>",
        plain=places,
        last="<image>",
        tokenizer="""{
            "add_bos_token": true, "add_eos_token": false, "additional_special_tokens": ["<image>"],
            "bos_token": "<bos>", "eos_token": "<eos>", "model_max_length": 1000000000000000019884624838656,
            "pad_token": "<pad>", "processor_class": "PaliGemmaProcessor", "sp_model_kwargs": {},
            "spaces_between_special_tokens": false, "tokenizer_class": "GemmaTokenizer", "unk_token": "<unk>",
            "use_default_system_prompt": false
        }""",
        config=config,
        generation=generation,
        image_processor="""{
            "do_convert_rgb": null, "image_mean": [0.5, 0.5, 0.5], "image_processor_type": "SiglipImageProcessor",
            "image_seq_length": 16, "image_std": [0.5, 0.5, 0.5], "processor_class": "PaliGemmaProcessor",
            "resample": 3, "size": {"height": 56, "width": 56}
        }""",
        tied=True,
    )


def write_checkpoint(
    folder: Path,
    *,
    kind: str,
    first: str = "",
    plain: str = "",
    last: str = "",
    tokenizer: str,
    config: str,
    generation: str,
    image_processor: str | None = None,
    processor: str | None = None,
    video_processor: str | None = None,
    template: str | None = None,
    template_file: str = "chat_template.json",
    tied: bool = False,
) -> Path:
    """Write all files. In the JSON texts `"@<image>"` means the id of `<image>`, `"@size"` the vocabulary's.

    Args:
        folder: made here.
        kind: of tokenizer; see `write_tokenizer`.
        first: special tokens with the lowest ids.
        plain: added tokens that are not special, behind the words.
        last: special tokens behind everything.
        tokenizer: tokenizer_config.json, without `added_tokens_decoder`.
        config: config.json, without the sizes of its parts.
        generation: generation_config.json.
        image_processor: preprocessor_config.json; None: processor_config.json holds it.
        processor: processor_config.json.
        video_processor: video_preprocessor_config.json.
        template: chat template.
        template_file: where it is.
        tied: the checkpoint holds no output matrix of its own.
    """
    folder.mkdir(parents=True)
    ids = write_tokenizer(folder, kind, json.loads(tokenizer), first.split(), plain.split(), last.split())
    values = _with_ids(json.loads(config), ids)
    values["text_config"] = {**TEXT, **values["text_config"]}
    values["vision_config"] = {**VISION, **values["vision_config"]}
    _write_model(folder, values, ids, tied)
    version = values["transformers_version"]
    generation_values = _with_ids(json.loads(generation), ids)
    _write(
        folder / "generation_config.json",
        {"_from_model_config": True, **generation_values, "transformers_version": version},
    )
    if image_processor is not None:
        _write(folder / "preprocessor_config.json", {**IMAGE, **json.loads(image_processor)})
    if processor is not None:
        _write(folder / "processor_config.json", json.loads(processor))
    if video_processor is not None:
        _write(folder / "video_preprocessor_config.json", {**IMAGE, **json.loads(video_processor)})
    if template is not None and template_file.endswith(".jinja"):
        (folder / template_file).write_text(template, encoding="utf-8")
    elif template is not None:
        _write(folder / template_file, {"chat_template": template})
    return folder


def _with_ids(value: Any, ids: dict[str, int]) -> Any:
    if isinstance(value, dict):
        return {key: _with_ids(part, ids) for key, part in value.items()}
    if isinstance(value, list):
        return [_with_ids(part, ids) for part in value]
    if value == "@size":
        return -(-len(ids) // 64) * 64  # more rows than tokens, as in most real ones
    return ids[value[1:]] if isinstance(value, str) and value.startswith("@") else value


def write_tokenizer(
    folder: Path,
    kind: str,
    settings: dict[str, Any],
    first: list[str],
    plain: list[str],
    last: list[str],
    places: dict[str, int] | None = None,
) -> dict[str, int]:
    """tokenizer.json, tokenizer_config.json, special_tokens_map.json; returns the vocabulary.

    `llama` and `gemma` have SentencePiece's pieces with byte fallback, the other kinds byte-level BPE. Ids of tokens
    are counted up, but for those that have `places`.
    """
    pieces = kind in ("llama", "gemma")
    words, merges = _learned(pieces)
    fallback = [f"<0x{byte:02X}>" for byte in range(256)] if pieces else []
    vocabulary = dict(places or {})
    free = (index for index in itertools.count() if index not in (places or {}).values())
    for token in [*first, *fallback, *words]:
        if token not in vocabulary:
            vocabulary[token] = next(free)
    unknown = "<unk>" if pieces else None
    tokenizer = Tokenizer(
        models.BPE(vocabulary, list(merges), unk_token=unknown, fuse_unk=pieces, byte_fallback=pieces)
    )
    if pieces:
        space = normalizers.Replace(" ", "▁")
        decoder = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        if kind == "llama":
            tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), space])
            decoder.append(decoders.Strip(" ", 1, 0))
        else:
            tokenizer.normalizer = space
            tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        tokenizer.decoder = decoders.Sequence(decoder)
    else:
        if kind == "gpt2":
            split: Any = pre_tokenizers.Digits(individual_digits=True)
        else:
            split = pre_tokenizers.Split(Regex(QWEN_SPLIT if kind == "qwen" else LLAMA3_SPLIT), "isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "gpt2")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
        tokenizer.decoder = decoders.ByteLevel()
        if kind == "qwen":
            tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in first])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in plain])
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in last])
    ids = tokenizer.get_vocab()
    if kind not in ("gpt2", "qwen"):
        begin = settings["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A", special_tokens=[(begin, ids[begin])]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    added = {
        str(ids[token]): {"content": token, **flags, "special": token not in plain} for token in [*first, *plain, *last]
    }
    named = settings.get("extra_special_tokens", {})
    _write(
        folder / "tokenizer_config.json",
        {"added_tokens_decoder": added, "clean_up_tokenization_spaces": False, **settings, **named},
    )
    roles = ("bos_token", "eos_token", "pad_token", "unk_token", "additional_special_tokens")
    used = {role: settings[role] for role in roles if settings.get(role)}
    _write(folder / "special_tokens_map.json", {**used, **named})
    return ids


@functools.cache
def _learned(pieces: bool) -> tuple[list[str], list[tuple[str, str]]]:
    """Tokens and merges of a BPE model that has a token for each of `WORDS`."""
    tokenizer = Tokenizer(models.BPE())
    if pieces:
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        alphabet = ["▁", "\n", *(chr(code) for code in range(33, 127))]
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([f" {word}" for word in WORDS.split()], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocabulary: dict[str, int] = model["vocab"]
    return sorted(vocabulary, key=lambda token: vocabulary[token]), [(left, right) for left, right in model["merges"]]


def _write_model(folder: Path, config: dict[str, Any], ids: dict[str, int], tied: bool) -> None:
    """config.json, and in model.safetensors the weights of a model that it describes."""
    _write(folder / "config.json", config)
    full = AutoConfig.from_pretrained(folder)
    full.tie_word_embeddings = tied  # some real ones are silent about it, and hold an output matrix of their own
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: Any = AutoModelForImageTextToText.from_config(full, dtype=getattr(torch, config["torch_dtype"]))
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.mul_(4.0)  # so that attention, and with it the contrast, is not flat
    output = model.get_output_embeddings().weight.data
    output[silent(ids, len(output), tied)] = 0
    model.save_pretrained(folder)
    _write(folder / "config.json", config)
    if config["vision_config"]["model_type"] in ("clip_vision_model", "siglip_vision_model"):
        # transformers 5 saves all names as the hub has them, but for these.
        weights = load_file(folder / "model.safetensors")
        renamed = {re.sub(r"^vision_tower\.", "vision_tower.vision_model.", name): weights[name] for name in weights}
        save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})


def silent(ids: dict[str, int], size: int, tied: bool) -> torch.Tensor:
    """Return which rows of an output matrix are to be 0, so that there is a text, and no end token comes before it."""
    spoken = {f"{space}{word}" for word in WORDS.split() for space in "▁Ġ"}
    if tied:
        spoken = {*_learned(True)[0]} - {"▁", "\n"}
    rows = torch.ones(size, dtype=torch.bool)
    rows[[index for token, index in ids.items() if token in spoken]] = False
    return rows


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


WRITERS: dict[str, Callable[[Path], Path]] = {
    "LLaVA-NeXT": write_llava_next,
    "JoyCaption (LLaVA)": write_joycaption,
    "Pixtral (LLaVA)": write_pixtral,
    "Mistral 3": write_mistral3,
    "InternVL": write_internvl,
    "Idefics3": write_idefics3,
    "SmolVLM": write_smolvlm,
    "Gemma 3": write_gemma3,
    "PaliGemma": write_paligemma,
    "PaliGemma 2": write_paligemma2,
}
