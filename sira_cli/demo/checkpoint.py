"""Write a tiny LLaVA-1.5 checkpoint with random weights, in the files that a real one has."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlavaConfig, LlavaForConditionalGeneration, PreTrainedTokenizerFast

from sira_cli.errors import SiraError
from sira_cli.hub import what_is_lacking

WORDS = """
a an and at behind beside bench bicycle bird black blue boat book bottle bowl bread bridge brown building bus cake
car cat chair child city clock cloud coat couch cup desk dog door field fence flower fork garden glass grass green
grey hat hill holding horse house in is kitchen lake lamp large light man mountain near next of old on orange over
pair park person picture plate red river road rock room sand sea shop sits sky small snow stands street sun table
that the there to train tree two under umbrella wall water white window with woman wooden yellow young
"""
# llava-hf's own template, shortened to what one picture and one question need.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'].upper() + ': ' }}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' ' }}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
IMAGE_SIZE, PATCH_SIZE = 112, 14


def make_checkpoint(folder: Path) -> Path:
    """`folder`, with the checkpoint in it; made at the first call, complete or not at all.

    Raises:
        SiraError: it cannot be written there.
    """
    if folder.is_dir() and what_is_lacking(folder) is None:
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            made = Path(scratch) / "checkpoint"
            write_checkpoint(made)
            if folder.is_dir() and what_is_lacking(folder) is not None:
                folder.rename(Path(scratch) / "damaged")
            with contextlib.suppress(OSError):  # another process was first
                made.rename(folder)
    except OSError as error:
        raise SiraError(
            f"the demo model cannot be written to {folder.parent} ({error.strerror or error}): "
            "set SIRA_HOME to a folder of yours"
        ) from error
    return folder


def write_checkpoint(folder: Path) -> None:
    """Write config.json, model.safetensors, tokenizer.json, preprocessor_config.json, chat_template.jinja, ..."""
    tokenizer = _tokenizer()
    tokenizer.save_pretrained(folder)
    config = LlavaConfig(
        vision_config={
            "model_type": "clip_vision_model",
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "image_size": IMAGE_SIZE,
            "patch_size": PATCH_SIZE,
            "projection_dim": 64,
        },
        text_config={
            "model_type": "llama",
            "vocab_size": len(tokenizer),
            "hidden_size": 64,
            "intermediate_size": 176,
            "num_hidden_layers": 8,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "max_position_embeddings": 4096,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        },
        image_token_index=tokenizer.get_vocab()["<image>"],
        image_seq_length=(IMAGE_SIZE // PATCH_SIZE) ** 2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: Any = LlavaForConditionalGeneration(config)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.data.mul_(8.0)  # so that attention, and with it the contrast, is not flat
        model.lm_head.weight.data[_unspeakable(tokenizer)] = 0  # so that the random words are words
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    _write_json(
        folder / "preprocessor_config.json",
        {
            "crop_size": {"height": IMAGE_SIZE, "width": IMAGE_SIZE},
            "do_center_crop": True,
            "do_convert_rgb": True,
            "do_normalize": True,
            "do_rescale": True,
            "do_resize": True,
            "image_mean": [0.48145466, 0.4578275, 0.40821073],
            "image_processor_type": "CLIPImageProcessor",
            "image_std": [0.26862954, 0.26130258, 0.27577711],
            "processor_class": "LlavaProcessor",
            "resample": 3,
            "rescale_factor": 0.00392156862745098,
            "size": {"shortest_edge": IMAGE_SIZE},
        },
    )
    _write_json(
        folder / "processor_config.json",
        {
            "image_token": "<image>",
            "num_additional_image_tokens": 1,
            "patch_size": PATCH_SIZE,
            "processor_class": "LlavaProcessor",
            "vision_feature_select_strategy": "default",
        },
    )
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def _tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer: it can spell anything, and has a token for each of `WORDS`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<unk>", "<s>", "</s>", "<pad>"]
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([f" {word}" for word in WORDS.split()] * 2, trainer)
    tokenizer.add_special_tokens([AddedToken("<image>", special=True, normalized=False)])
    begin = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", begin)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


def _unspeakable(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """Ids of everything but whole words."""
    words = {f"\u0120{word}" for word in WORDS.split()}  # U+0120 is how byte-level BPE writes a space
    return [token_id for token, token_id in tokenizer.get_vocab().items() if token not in words]


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
