"""The bundled model's checkpoint: an ordinary LLaVA-1.5 in miniature, in the files that a real one has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlavaConfig, LlavaForConditionalGeneration, PreTrainedTokenizerFast

from tools.language import corpus

# llava-hf's own template, shortened to one picture and one question.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'].upper() + ': ' }}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' ' }}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
IMAGE_SIDE, PATCH_SIDE = 96, 12  # pixels
IMAGE_TOKENS = (IMAGE_SIDE // PATCH_SIDE) ** 2
IMAGE_MEAN = (0.48145466, 0.4578275, 0.40821073)
IMAGE_STD = (0.26862954, 0.26130258, 0.27577711)
WIDTH = 192
LAYERS = 8  # of the decoder


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Make a byte-level BPE tokenizer: it can spell anything, and has a token for each word of the little world."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        min_frequency=2,
        special_tokens=["<unk>", "<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [f"USER: \n{text} ASSISTANT: {text}" for text in corpus(seed=0, size=2000)]
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken("<image>", special=True, normalized=False)])
    begin = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", begin)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


def first_token(tokenizer: Any, word: str) -> int:
    """Return the first token of a word inside a sentence."""
    token: int = tokenizer(f" {word}", add_special_tokens=False).input_ids[0]
    return token


def make_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Any:
    """Make the untrained model, in float32: CLIP tower of 4 layers, projector, Llama decoder."""
    config = LlavaConfig(
        vision_config={
            "model_type": "clip_vision_model",
            "hidden_size": WIDTH,
            "intermediate_size": 4 * WIDTH,
            "hidden_act": "gelu",  # one kernel, where CLIP's quick_gelu is three
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "image_size": IMAGE_SIDE,
            "patch_size": PATCH_SIDE,
            "projection_dim": WIDTH,
        },
        text_config={
            "model_type": "llama",
            "vocab_size": len(tokenizer),
            "hidden_size": WIDTH,
            "intermediate_size": 448,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 3,  # of 64, the smallest that vLLM takes on a CPU
            "num_key_value_heads": 3,
            "max_position_embeddings": 1024,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        },
        image_token_index=tokenizer.get_vocab()["<image>"],
        image_seq_length=IMAGE_TOKENS,
        vision_feature_layer=-1,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlavaForConditionalGeneration(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model


def save(model: Any, tokenizer: PreTrainedTokenizerFast, folder: Path, dtype: torch.dtype = torch.float16) -> None:
    """Write config.json, model.safetensors, tokenizer.json, preprocessor_config.json, chat_template.jinja, ..."""
    tokenizer.save_pretrained(folder)
    model.to(dtype).save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    short, full = "vision_tower.", "vision_tower.vision_model."  # in full in released checkpoints; transformers varies
    named = {name.replace(full, short, 1).replace(short, full, 1): tensor for name, tensor in tensors.items()}
    save_file(named, folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(
        folder / "preprocessor_config.json",
        {
            "crop_size": {"height": IMAGE_SIDE, "width": IMAGE_SIDE},
            "do_center_crop": True,
            "do_convert_rgb": True,
            "do_normalize": True,
            "do_rescale": True,
            "do_resize": True,
            "image_mean": IMAGE_MEAN,
            "image_processor_type": "CLIPImageProcessor",
            "image_std": IMAGE_STD,
            "processor_class": "LlavaProcessor",
            "resample": 3,
            "rescale_factor": 1 / 255,
            "size": {"shortest_edge": IMAGE_SIDE},
        },
    )
    _write_json(
        folder / "processor_config.json",
        {
            "image_token": "<image>",
            "num_additional_image_tokens": 1,
            "patch_size": PATCH_SIDE,
            "processor_class": "LlavaProcessor",
            "vision_feature_select_strategy": "default",
        },
    )
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
