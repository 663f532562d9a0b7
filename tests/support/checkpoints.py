"""Checkpoints on disk in the files that the real ones have, with small random weights.

LLaVA-1.5 is the bundled model before its training. The others are in the files of the hub repository that each names:
keys, classes, special tokens, tensor names, number types, in the spelling of the transformers that wrote them
(`torch_dtype`, `rope_theta`, `image_token_index`). Sizes are tiny, vocabularies are cut down, and of the chat templates
remains what one picture and one question need: tests/data/checkpoints.yaml.

Those of the shipped presets are in the layout of the hub, several files of weights included (tests/data/layouts): only
the widths are shrunk, and the tokenizers know few words.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers as hf
import yaml
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from sira_cli.analysis.bench import random_models, shape_names
from sira_cli.models import presets
from tools import checkpoint

WORDS = """
a an and at behind beside bench bicycle bird black blue boat book bottle bowl bread bridge brown building bus cake
car cat chair child city clock cloud coat couch cup desk dog door field fence flower fork garden glass grass green
grey hat hill holding horse house in is kitchen lake lamp large light man mountain near next of old on orange over
pair park person picture plate red river road rock room sand sea shop sits sky small snow stands street sun table
that the there to train tree two under umbrella wall water white window with woman wooden yellow young
"""
DATA = Path(__file__).parents[1] / "data"
DESCRIPTIONS: dict[str, dict[str, Any]] = yaml.safe_load((DATA / "checkpoints.yaml").read_text(encoding="utf-8"))
SIZES: dict[str, Any] = yaml.safe_load((DATA / "sizes.yaml").read_text(encoding="utf-8"))
LAYOUTS = sorted(path.stem for path in (DATA / "layouts").glob("*.yaml"))
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
# The end of Qwen3.5's template: without the switch, the answer begins inside a thought. Qwen3-VL-Thinking's has none.
THINKING = (
    "{% if add_generation_prompt %}{% if enable_thinking is defined and enable_thinking is false %}"
    "<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}{% endif %}"
)
ALWAYS_THINKING = "{% if add_generation_prompt %}<think>\n{% endif %}"


def write_llava(folder: Path) -> Path:
    """LLaVA-1.5, in float32; what it says depends on picture and method."""
    tokenizer = hf.AutoTokenizer.from_pretrained(presets.BUNDLED_FOLDER)
    model = checkpoint.make_model(tokenizer, seed=0)
    _scale(model, 8.0)
    spoken = [word for token, word in tokenizer.get_vocab().items() if token[:1] == "\u0120" and token[1:].isalpha()]
    mute = torch.ones(len(tokenizer), dtype=torch.bool).index_fill(0, torch.tensor(spoken), False)
    model.lm_head.weight.data[mute] = 0  # so that the random words are words
    checkpoint.save(model, tokenizer, folder, torch.float32)
    return folder


def _scale(model: Any, factor: float) -> None:
    """So that attention, and with it the contrast, is not flat."""
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.mul_(factor)


def write_qwen(folder: Path, version: str = "2.5", *, thinking: str = "", head: int = 16, linear: int = 8) -> Path:
    """Qwen2-VL ("2"), Qwen2.5-VL ("2.5"), Qwen3-VL ("3") or Qwen3.5 ("3.5"), whose template can switch thinking off.

    `head`, `linear`: the width of heads, and of those in linear layers.
    """
    folder.mkdir(parents=True)
    known = DESCRIPTIONS["qwen"]
    thoughts = ["<think>", "</think>"] * version.startswith("3")  # text to whoever skips special tokens
    settings = {**known["tokenizer"], "chat_template": known["template"]}
    ids = write_tokenizer(folder, "qwen", settings, [[], thoughts, known["special"].split()], {})
    family, new = {"2": "Qwen2VL", "2.5": "Qwen2_5_VL", "3": "Qwen3VL", "3.5": "Qwen3_5"}[version], version[0] == "3"
    patch, width = 16 if new else 14, 4 * head
    text: dict[str, Any] = TEXT | {"hidden_size": width, "intermediate_size": 2 * width, "vocab_size": len(ids)}
    text |= {"max_position_embeddings": 4096, "bos_token_id": ids["<|endoftext|>"], "eos_token_id": ids["<|im_end|>"]}
    text |= {"head_dim": head} if new else {}
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e6} | ({"mrope_interleaved": True} if new else {})
    rope["mrope_section"] = [head // 8, 3 * head // 16, 3 * head // 16]
    vision: dict[str, Any] = {"depth": 2, "num_heads": 4, "patch_size": patch, "spatial_merge_size": 2}
    if version == "2":
        vision |= {"embed_dim": 32, "hidden_size": width, "mlp_ratio": 2}
    else:
        vision |= {"hidden_size": 32, "intermediate_size": 64, "out_hidden_size": width}
        vision |= {"num_position_embeddings": 256} if new else {"fullatt_block_indexes": [1]}
    if version == "3":
        vision |= {"deepstack_visual_indexes": [0, 1]}
    if version == "3.5":
        sizes = {"num_key_heads": 2, "num_value_heads": 4, "key_head_dim": linear, "value_head_dim": linear}
        text |= {f"linear_{name}": size for name, size in sizes.items()}
        text |= {"layer_types": ["linear_attention", "linear_attention", "full_attention"] * 2}
        rope |= {"mrope_section": [head // 8, head // 16, head // 16], "partial_rotary_factor": 0.5}
    text["rope_parameters"] = rope
    config = getattr(hf, f"{family}Config")(text_config=text, vision_config=vision, **_with_ids(known["tokens"], ids))
    torch.manual_seed(0)
    model = getattr(hf, f"{family}ForConditionalGeneration")(config)
    _scale(model, 4.0)
    model.save_pretrained(folder)
    # What the real one holds; `sira` takes the token ids from it and nothing else.
    _write(folder / "generation_config.json", _with_ids(known["generation"], ids))
    processor = {"patch_size": patch, "processor_class": f"{'Qwen3VL' if version == '3.5' else family}Processor"}
    _write(folder / "preprocessor_config.json", known["image_processor"] | processor)
    if version == "3.5":
        template = known["template"] + (thinking or THINKING)
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    else:
        _write(folder / "chat_template.json", {"chat_template": known["template"] + thinking})
    return folder


def write_checkpoint(folder: Path, **known: Any) -> Path:
    """Write all files of a description, in which `"@<image>"` is the id of `<image>`, `"@size"` that of the vocabulary.

    `first`, `plain` and `last` are its added tokens: special ones, others, and special ones behind them.
    """
    folder.mkdir(parents=True)
    added = [known.get(place, "").split() for place in ("first", "plain", "last")]
    ids = write_tokenizer(folder, known["kind"], known["tokenizer"], added, {})
    values = _with_ids(known["config"], ids)
    values["text_config"] = {**TEXT, **values["text_config"]}
    values["vision_config"] = {**VISION, **values["vision_config"]}
    version = {"transformers_version": values["transformers_version"]}
    generation = {"_from_model_config": True, **_with_ids(known["generation"], ids), **version}
    _write(folder / "config.json", values)
    _write_model(folder, ids, known.get("tied", False))
    _write(folder / "generation_config.json", generation)
    if "image_processor" in known:
        _write(folder / "preprocessor_config.json", {**IMAGE, **known["image_processor"]})
    if "processor" in known:
        _write(folder / "processor_config.json", known["processor"])
    file = folder / known.get("template_file", "chat_template.json")
    if file.suffix == ".jinja":
        file.write_text(known["template"], encoding="utf-8")
    elif "template" in known:
        _write(file, {"chat_template": known["template"]})
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
    folder: Path, kind: str, settings: dict[str, Any], added: list[list[str]], places: dict[str, int]
) -> dict[str, int]:
    """tokenizer.json, tokenizer_config.json, special_tokens_map.json; returns the vocabulary.

    `llama` and `gemma` have SentencePiece's pieces with byte fallback, the other kinds byte-level BPE. Ids of tokens
    are counted up, but for those that have `places`. `added`: special ones, others, and special ones behind them.
    """
    first, plain, last = added
    pieces, vocabulary = kind in ("llama", "gemma"), {**places}
    words, merges = _learned(pieces)
    fallback = [f"<0x{byte:02X}>" for byte in range(256)] if pieces else []
    free = (index for index in itertools.count() if index not in places.values())
    for token in [*first, *fallback, *words]:
        if token not in vocabulary:
            vocabulary[token] = next(free)
    unknown = "<unk>" if pieces else None
    tokenizer = Tokenizer(models.BPE(vocabulary, [*merges], unk_token=unknown, fuse_unk=pieces, byte_fallback=pieces))
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
        whole = {"single": f"{begin} $A", "special_tokens": [(begin, ids[begin])]}
        tokenizer.post_processor = processors.TemplateProcessing(**whole)
    tokenizer.save(str(folder / "tokenizer.json"))
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    known = {
        str(ids[each]): {"content": each, **flags, "special": each not in plain} for each in itertools.chain(*added)
    }
    named = settings.get("extra_special_tokens", {})
    found = {"added_tokens_decoder": known, "clean_up_tokenization_spaces": False, **settings, **named}
    _write(folder / "tokenizer_config.json", found)
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


def _write_model(
    folder: Path, ids: dict[str, int], tied: bool, factor: float = 4.0, unused: dict[str, list[int]] | None = None
) -> None:
    """Write random weights for a folder's config.json, with the hub's names; with `unused` ones, in three files."""
    config = hf.AutoConfig.from_pretrained(folder)
    config.tie_word_embeddings = tied  # some real ones are silent about it, and hold an output matrix of their own
    with torch.random.fork_rng(devices=[]), tempfile.TemporaryDirectory() as place:
        torch.manual_seed(0)
        dtype = config.dtype or config.get_text_config().dtype
        model: Any = hf.AutoModelForImageTextToText.from_config(config, dtype=dtype)
        _scale(model, factor)
        output = model.get_output_embeddings().weight.data
        output[_silent(ids, len(output), tied)] = 0
        model.save_pretrained(place)
        weights = load_file(Path(place) / "model.safetensors")
    if config.vision_config.model_type in ("clip_vision_model", "siglip_vision_model", "siglip2_vision_model"):
        # transformers 5 saves all names as the hub has them, but for these.
        renamed = {re.sub(r"\bvision_tower\.", "vision_tower.vision_model.", name): weights[name] for name in weights}
        weights = renamed
    if unused is None:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    weights |= {name: torch.zeros(shape, dtype=dtype) for name, shape in unused.items()}
    places = {}
    for shard in range(3):
        file, part = f"model-{shard + 1:05d}-of-00003.safetensors", dict([*weights.items()][shard::3])
        save_file(part, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(part, file)
    size = sum(value.nbytes for value in weights.values())
    _write(folder / "model.safetensors.index.json", {"metadata": {"total_size": size}, "weight_map": places})


def _silent(ids: dict[str, int], size: int, tied: bool) -> torch.Tensor:
    """Return which rows of an output matrix are to be 0, so that there is a text, and no end token comes before it."""
    spoken = {f"{space}{word}" for word in WORDS.split() for space in "▁Ġ"}
    if tied:
        spoken = {*_learned(True)[0]} - {"▁", "\n"}
    rows = torch.ones(size, dtype=torch.bool)
    rows[[index for token, index in ids.items() if token in spoken]] = False
    return rows


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


# --- the models of the shipped presets


def layout_of(name: str) -> dict[str, Any]:
    """Return what tests/data/layouts has about the model of a preset; `like` names the one that it is a variant of."""
    own: dict[str, Any] = yaml.safe_load((DATA / "layouts" / f"{name}.yaml").read_text(encoding="utf-8"))
    return _merged(layout_of(own.pop("like")), own) if "like" in own else own


def write_layout(name: str, folder: Path) -> Path:
    """Write the checkpoint of a preset's model, with small random weights in its precision."""
    layout = layout_of(name)
    _write_model(
        folder, write_files(name, folder), tied=not layout["head"], factor=8.0, unused=layout.get("unused", {})
    )
    return folder


def write_files(name: str, folder: Path) -> dict[str, int]:
    """Write all of the checkpoint but its weights; return the tokenizer's vocabulary."""
    layout = layout_of(name)
    config = _merged(layout["files"]["config.json"], layout["tiny"])
    folder.mkdir(parents=True)
    for file, content in {**layout["files"], "config.json": config}.items():
        _write(folder / file, content)
    _write(folder / "chat_template.json", {"chat_template": layout["template"]})
    tokenizer, settings = layout["tokenizer"], layout["files"]["tokenizer_config.json"]
    special, plain = tokenizer["special"], tokenizer.get("plain", {})
    return write_tokenizer(folder, tokenizer["kind"], settings, [[*special], [*plain], []], special | plain)


def write_config(name: str, folder: Path) -> Path:
    """Write the config.json of a preset's model, with its real widths, and nothing else."""
    folder.mkdir(parents=True)
    _write(folder / "config.json", layout_of(name)["files"]["config.json"])
    return folder


def released_config(model: str) -> dict[str, Any] | None:
    """Return the config.json of a model id, as far as it decides the structure; None: it is not known here."""
    for name, path in presets.available().items():
        if presets.read(path).model == model:
            if name in LAYOUTS:
                return dict(layout_of(name)["files"]["config.json"])
            if known := SIZES.get(name, {}).get("config"):
                return dict(known)
            if name in shape_names():
                return dict(random_models.read(name)["config"])
    return None


def released_model(model: str) -> Any:
    """Return the model of a released configuration, without weights; None: it is not known here."""
    config = released_config(model)
    return None if config is None else _without_weights(hf.AutoConfig.for_model(**config))


def _without_weights(config: Any) -> Any:
    with torch.device("meta"):
        return hf.AutoModelForImageTextToText.from_config(config)


def beside(config: dict[str, Any], what: str) -> int:
    """Return how many numbers the files of a model hold that transformers does not count as its weights."""
    model = _without_weights(hf.AutoConfig.for_model(**config))
    text, layers = model.config.get_text_config(decoder=True), model.get_decoder().layers
    if what == "draft":
        width = text.hidden_size
        return sum(weight.numel() for weight in layers[-1].parameters()) + 2 * width**2 + 3 * width
    found = len(layers)  # each has a factor
    if getattr(model.config.vision_config, "standardize", False):
        found += 2 * model.config.vision_config.hidden_size  # its mean and spread
    for layer in layers[len(layers) - text.num_kv_shared_layers :]:
        head = layer.self_attn.head_dim
        found += 2 * text.hidden_size * text.num_key_value_heads * head + head
    return found


def _merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return one mapping with the values of another, part by part."""
    merged = dict(one)
    for key, value in other.items():
        merged[key] = _merged(one[key], value) if isinstance(value, dict) and isinstance(one.get(key), dict) else value
    return merged


WRITERS = {known["name"]: partial(write_checkpoint, **known) for known in DESCRIPTIONS.values() if "name" in known}
ALL: dict[str, Callable[[Path], Path]] = {
    "LLaVA-1.5": write_llava,
    **{f"Qwen{version}-VL": partial(write_qwen, version=version) for version in ("2", "2.5", "3")},
    "Qwen3.5": partial(write_qwen, version="3.5"),
    "Gemma 4 E": partial(write_checkpoint, **DESCRIPTIONS["gemma4"]),
    **WRITERS,
}
# A plain stack, positions in three axes, windows, a prompt that sees all of itself, and states instead of columns.
REPRESENTATIVES = ["LLaVA-1.5", "Qwen2.5-VL", "Gemma 3", "PaliGemma", "Qwen3.5"]


def change(path: Path, **values: Any) -> None:
    """Change keys of a JSON file, which need not exist; None removes a key."""
    content = (json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}) | values
    path.write_text(json.dumps({name: each for name, each in content.items() if each is not None}), encoding="utf-8")


def edited(folder: Path, copy: Path, *files: str, **values: Any) -> Path:
    """A copy of a checkpoint with keys of some of its JSON files changed."""
    shutil.copytree(folder, copy)
    for file in files:
        change(copy / file, **values)
    return copy
