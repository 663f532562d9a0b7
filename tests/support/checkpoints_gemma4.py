"""Gemma 4 on disk: one file for the processors of pictures and sound, and a template that can switch thinking on."""

from __future__ import annotations

from pathlib import Path

from tests.support.checkpoints_other import write_checkpoint


def write_gemma4(folder: Path) -> Path:
    """google/gemma-4-E4B-it: inputs per layer, late layers that share keys and values, no tower for sound here."""
    return write_checkpoint(
        folder,
        kind="gemma",
        first="<pad> <eos> <bos> <unk> <mask> <|turn> <turn|> <|channel> <channel|> <|think|>",
        last="<|image> <image|> <|image|> <|audio> <audio|> <|audio|> <|video|>",
        tokenizer="""{
            "add_bos_token": true, "add_eos_token": false, "bos_token": "<bos>", "eos_token": "<eos>",
            "extra_special_tokens": {
                "boi_token": "<|image>", "eoi_token": "<image|>", "image_token": "<|image|>",
                "boa_token": "<|audio>", "eoa_token": "<audio|>", "audio_token": "<|audio|>"
            },
            "model_max_length": 1000000000000000019884624838656, "pad_token": "<pad>",
            "processor_class": "Gemma4Processor", "tokenizer_class": "GemmaTokenizer", "unk_token": "<unk>"
        }""",
        config="""{
            "architectures": ["Gemma4ForConditionalGeneration"], "audio_config": null, "boi_token_id": "@<|image>",
            "eoi_token_id": "@<image|>", "image_token_id": "@<|image|>", "audio_token_id": "@<|audio|>",
            "video_token_id": "@<|video|>", "eos_token_id": [1, "@<turn|>"], "model_type": "gemma4",
            "text_config": {
                "head_dim": 16, "global_head_dim": 32, "model_type": "gemma4_text", "sliding_window": 12,
                "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": "@size", "num_kv_shared_layers": 2,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention",
                    "sliding_attention", "full_attention"],
                "vocab_size": "@size"
            },
            "torch_dtype": "bfloat16", "transformers_version": "5.5.0",
            "vision_config": {
                "head_dim": 16, "model_type": "gemma4_vision", "num_key_value_heads": 2, "patch_size": 16,
                "pooling_kernel_size": 3, "position_embedding_size": 256
            }
        }""",
        generation="""{
            "bos_token_id": 2, "do_sample": true, "eos_token_id": [1, "@<turn|>"], "pad_token_id": 0,
            "temperature": 1.0, "top_k": 64, "top_p": 0.95
        }""",
        processor="""{
            "image_processor": {
                "do_convert_rgb": true, "do_normalize": false, "do_rescale": true, "do_resize": true,
                "image_mean": [0.0, 0.0, 0.0], "image_processor_type": "Gemma4ImageProcessor",
                "image_std": [1.0, 1.0, 1.0], "max_soft_tokens": 70, "patch_size": 16, "pooling_kernel_size": 3,
                "resample": 3, "rescale_factor": 0.00392156862745098
            },
            "feature_extractor": {"feature_extractor_type": "Gemma4AudioFeatureExtractor", "sampling_rate": 16000},
            "image_seq_length": 70, "processor_class": "Gemma4Processor"
        }""",
        template="{{ bos_token }}{%- if enable_thinking is defined and enable_thinking -%}"
        "{{ '<|turn>system\n<|think|><turn|>\n' }}{%- endif -%}{%- for message in messages -%}"
        "{{ '<|turn>' + (message['role'] if message['role'] != 'assistant' else 'model') + '\n' }}"
        "{%- if message['content'] is string -%}{{ message['content'] | trim }}{%- else -%}"
        "{%- for item in message['content'] -%}{%- if item['type'] == 'image' -%}{{ '<|image|>' }}"
        "{%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}{%- endfor -%}{%- endif -%}"
        "{{ '<turn|>\n' }}{%- endfor -%}{%- if add_generation_prompt -%}{{ '<|turn>model\n' }}{%- endif -%}",
        template_file="chat_template.jinja",
        tied=True,
    )
