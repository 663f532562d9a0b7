"""Checkpoints on disk of the families that `tests.support.checkpoints` does not write, with tiny random weights.

The files are those of the hub repository that each writer names: file names, keys, classes, special
tokens, tensor names, number types, in the spelling of the transformers that wrote them (`torch_dtype`,
`rope_theta`, `image_token_index`). Sizes are tiny, vocabularies are cut down, and of the chat templates
remains what one picture and one question need: tests/data/checkpoints.yaml.
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
import yaml
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


def writer_of(key: str) -> Callable[[Path], Path]:
    """Return what writes the checkpoint that tests/data/checkpoints.yaml describes under a key."""

    def write(folder: Path) -> Path:
        return write_checkpoint(folder, **DESCRIPTIONS[key])

    write.__name__ = f"write_{key}"
    return write


def write_checkpoint(
    folder: Path,
    *,
    kind: str,
    tokenizer: dict[str, Any],
    config: dict[str, Any],
    generation: dict[str, Any],
    name: str | None = None,
    first: str = "",
    plain: str = "",
    last: str = "",
    image_processor: dict[str, Any] | None = None,
    processor: dict[str, Any] | None = None,
    template: str | None = None,
    template_file: str = "chat_template.json",
    tied: bool = False,
) -> Path:
    """Write all files. In the settings `"@<image>"` means the id of `<image>`, `"@size"` the vocabulary's."""
    folder.mkdir(parents=True)
    ids = write_tokenizer(folder, kind, tokenizer, first.split(), plain.split(), last.split())
    values = _with_ids(config, ids)
    values["text_config"] = {**TEXT, **values["text_config"]}
    values["vision_config"] = {**VISION, **values["vision_config"]}
    _write_model(folder, values, ids, tied)
    version = values["transformers_version"]
    generated = {"_from_model_config": True, **_with_ids(generation, ids), "transformers_version": version}
    _write(folder / "generation_config.json", generated)
    if image_processor is not None:
        _write(folder / "preprocessor_config.json", {**IMAGE, **image_processor})
    if processor is not None:
        _write(folder / "processor_config.json", processor)
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


DESCRIPTIONS: dict[str, dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[1] / "data/checkpoints.yaml").read_text(encoding="utf-8")
)
WRITERS = {description["name"]: writer_of(key) for key, description in DESCRIPTIONS.items() if "name" in description}
write_gemma4 = writer_of("gemma4")
