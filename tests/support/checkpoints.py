"""Checkpoints on disk in the files that the real ones have, with tiny random weights.

LLaVA-1.5 is the bundled model before its training. The Qwen families are written here: the same file
names, keys and classes as in `Qwen/Qwen2.5-VL-7B-Instruct` and its siblings.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from sira_cli.models.presets import BUNDLED_FOLDER
from tools import checkpoint

WORDS = """
a an and at behind beside bench bicycle bird black blue boat book bottle bowl bread bridge brown building bus cake
car cat chair child city clock cloud coat couch cup desk dog door field fence flower fork garden glass grass green
grey hat hill holding horse house in is kitchen lake lamp large light man mountain near next of old on orange over
pair park person picture plate red river road rock room sand sea shop sits sky small snow stands street sun table
that the there to train tree two under umbrella wall water white window with woman wooden yellow young
"""
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"]
SPECIALS += ["<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"]
# As in Qwen2.5-VL's chat_template.json, without tools and videos.
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n{% else %}"
    "{% for content in message['content'] %}{% if content['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% elif 'text' in content %}{{ content['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# The end of Qwen3.5's: without the switch, the answer begins inside a thought.
THINKING = (
    "{% if add_generation_prompt %}{% if enable_thinking is defined and enable_thinking is false %}"
    "<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}{% endif %}"
)
# The end of that of Qwen3-VL-Thinking, which has no switch.
ALWAYS_THINKING = "{% if add_generation_prompt %}<think>\n{% endif %}"
THOUGHTS = ["<think>", "</think>"]  # tokens of Qwen3, which are text to whoever skips special tokens
PRE_TOKENIZER = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def write_llava(folder: Path) -> Path:
    """LLaVA-1.5, in float32; what it says depends on picture and method."""
    tokenizer = hf.AutoTokenizer.from_pretrained(BUNDLED_FOLDER)
    model = checkpoint.make_model(tokenizer, seed=0)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.mul_(8.0)  # so that attention, and with it the contrast, is not flat
    spoken = [word for token, word in tokenizer.get_vocab().items() if token[:1] == "\u0120" and token[1:].isalpha()]
    mute = torch.ones(len(tokenizer), dtype=torch.bool).index_fill(0, torch.tensor(spoken), False)
    model.lm_head.weight.data[mute] = 0  # so that the random words are words
    checkpoint.save(model, tokenizer, folder, torch.float32)
    return folder


def write_qwen(folder: Path, version: str = "2.5", *, thinking: str = "", head: int = 16) -> Path:
    """Qwen2-VL ("2"), Qwen2.5-VL ("2.5"), Qwen3-VL ("3") or Qwen3.5 ("3.5"), whose template can switch thinking off."""
    folder.mkdir(parents=True)
    ids = _write_qwen_tokenizer(folder, THOUGHTS if version.startswith("3") else [])
    family = {"2": "Qwen2VL", "2.5": "Qwen2_5_VL", "3": "Qwen3VL", "3.5": "Qwen3_5"}[version]
    patch = 16 if version.startswith("3") else 14
    sections = [head // 8, 3 * head // 16, 3 * head // 16]
    text: dict[str, Any] = {
        "vocab_size": len(ids),
        "hidden_size": 4 * head,
        "intermediate_size": 8 * head,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "rope_parameters": {"rope_type": "default", "mrope_section": sections, "rope_theta": 1e6},
    }
    vision: dict[str, Any] = {"depth": 2, "num_heads": 4, "patch_size": patch, "spatial_merge_size": 2}
    if version == "2":
        vision.update(embed_dim=32, hidden_size=4 * head, mlp_ratio=2)
    elif version == "2.5":
        vision.update(hidden_size=32, intermediate_size=64, out_hidden_size=4 * head, fullatt_block_indexes=[1])
    else:
        text.update(head_dim=head, rope_parameters={**text["rope_parameters"], "mrope_interleaved": True})
        vision.update(hidden_size=32, intermediate_size=64, out_hidden_size=4 * head, num_position_embeddings=256)
        if version == "3":
            vision.update(deepstack_visual_indexes=[0, 1])
        else:
            text.update(
                linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8
            )
            text.update(layer_types=["linear_attention", "linear_attention", "full_attention"] * 2)
            text["rope_parameters"].update(mrope_section=[2, 1, 1], partial_rotary_factor=0.5)
    config = getattr(hf, f"{family}Config")(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    torch.manual_seed(0)
    model = getattr(hf, f"{family}ForConditionalGeneration")(config)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.mul_(4.0)
    model.save_pretrained(folder)
    # What the real one holds; `sira` takes the token ids from it and nothing else.
    _write(
        folder / "generation_config.json",
        {
            "bos_token_id": ids["<|endoftext|>"],
            "do_sample": True,
            "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
            "pad_token_id": ids["<|endoftext|>"],
            "repetition_penalty": 1.05,
            "temperature": 0.1,
            "top_k": 1,
        },
    )
    _write(
        folder / "preprocessor_config.json",
        {
            "min_pixels": 3136,
            "max_pixels": 50176,
            "patch_size": patch,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "image_mean": [0.48145466, 0.4578275, 0.40821073],
            "image_std": [0.26862954, 0.26130258, 0.27577711],
            "image_processor_type": "Qwen2VLImageProcessor",
            "processor_class": f"{family}Processor" if version != "3.5" else "Qwen3VLProcessor",
        },
    )
    if version == "3.5":
        (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE + (thinking or THINKING), encoding="utf-8")
    else:
        _write(folder / "chat_template.json", {"chat_template": CHAT_TEMPLATE + thinking})
    return folder


def _write_qwen_tokenizer(folder: Path, thoughts: list[str]) -> dict[str, int]:
    """tokenizer.json, vocab.json, merges.txt, tokenizer_config.json; returns the vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(PRE_TOKENIZER), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([f" {word}" for word in WORDS.split()], trainer)
    tokenizer.model.save(str(folder))  # vocab.json, merges.txt
    tokenizer.add_special_tokens(SPECIALS)
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in thoughts])
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = tokenizer.get_vocab()
    _write(
        folder / "tokenizer_config.json",
        {
            "add_bos_token": False,
            "add_prefix_space": False,
            "added_tokens_decoder": {
                str(ids[token]): {
                    "content": token,
                    "lstrip": False,
                    "normalized": False,
                    "rstrip": False,
                    "single_word": False,
                    "special": token in SPECIALS,
                }
                for token in [*SPECIALS, *thoughts]
            },
            "additional_special_tokens": SPECIALS[1:],
            "bos_token": None,
            "clean_up_tokenization_spaces": False,
            "eos_token": "<|im_end|>",
            "errors": "replace",
            "model_max_length": 131072,
            "pad_token": "<|endoftext|>",
            "split_special_tokens": False,
            "tokenizer_class": "Qwen2Tokenizer",
            "unk_token": None,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    return ids


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2), encoding="utf-8")
