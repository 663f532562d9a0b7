"""Checkpoints of the models of the shipped presets, in the layout that their repositories on the hub have.

`tests/data/layouts` holds their files as they are there: spelling of the configuration, number of layers, ids of the
special tokens, generation settings, processors, template. Only the widths are shrunk, the tokenizers know few words,
and the weights are random; their tensors have the names of the hub, in several files.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForImageTextToText

from sira_cli.analysis.bench import random_models, shape_names
from sira_cli.models import presets
from tests.support.checkpoints import silent, write_tokenizer

FILES = Path(__file__).parents[1] / "data" / "layouts"
SIZES: dict[str, Any] = yaml.safe_load((FILES.parent / "sizes.yaml").read_text(encoding="utf-8"))
NAMES = sorted(path.stem for path in FILES.glob("*.yaml"))
SHARDS = 3
GAIN = 2.0  # of each matrix
# How transformers names a tensor today, and what the files of the hub call it.
OLD_NAMES = {
    "same": [],
    "qwen2": [(r"^model\.visual\.", "visual."), (r"^model\.language_model\.", "model.")],
    "llava": [
        (r"^lm_head", "language_model.lm_head"),
        (r"^model\.language_model\.", "language_model.model."),
        (r"^model\.vision_tower\.", "vision_tower.vision_model."),
        (r"^model\.(multi_modal_projector|image_newline)", r"\1"),
    ],
    "internvl": [
        (r"^lm_head", "language_model.lm_head"),
        (r"^model\.language_model\.", "language_model.model."),
        (r"^model\.(vision_tower|multi_modal_projector)\.", r"\1."),
    ],
}


def layout_of(name: str) -> dict[str, Any]:
    """Return what tests/data/layouts has about the model of a preset; `like` names the one that it is a variant of."""
    own: dict[str, Any] = yaml.safe_load((FILES / f"{name}.yaml").read_text(encoding="utf-8"))
    return _merged(layout_of(own.pop("like")), own) if "like" in own else own


def write_layout(name: str, folder: Path) -> Path:
    """Write the checkpoint of a preset's model, with small random weights in its precision."""
    _write_weights(folder, layout_of(name), write_files(name, folder))
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
    return write_tokenizer(folder, tokenizer["kind"], settings, [*special], [*plain], [], places=special | plain)


def write_config(name: str, folder: Path) -> Path:
    """Write the config.json of a preset's model, with its real widths, and nothing else."""
    folder.mkdir(parents=True)
    _write(folder / "config.json", layout_of(name)["files"]["config.json"])
    return folder


def released_config(model: str) -> dict[str, Any] | None:
    """Return the config.json of a model id, as far as it decides the structure; None: it is not known here."""
    for name, path in presets.available().items():
        if presets.read(path).model == model:
            if name in NAMES:
                return dict(layout_of(name)["files"]["config.json"])
            if known := SIZES.get(name, {}).get("config"):
                return dict(known)
            if name in shape_names():
                return dict(random_models.read(name)["config"])
    return None


def released_model(model: str) -> Any:
    """Return the model of a released configuration, without weights; None: it is not known here."""
    config = released_config(model)
    return None if config is None else _without_weights(AutoConfig.for_model(**config))


def _without_weights(config: Any) -> Any:
    with torch.device("meta"):
        return AutoModelForImageTextToText.from_config(config)


def beside(config: dict[str, Any], what: str) -> int:
    """Return how many numbers the files of a model hold that transformers does not count as its weights."""
    model = _without_weights(AutoConfig.for_model(**config))
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


def _write_weights(folder: Path, layout: dict[str, Any], ids: dict[str, int]) -> None:
    """Write tensors of the shapes that the model has into several files, with their index."""
    model = _without_weights(AutoConfig.from_pretrained(folder))
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    if not layout["head"]:
        del shapes["lm_head.weight"]
    own = json.loads((folder / "config.json").read_text())
    dtype = getattr(torch, own.get("torch_dtype") or own["text_config"]["dtype"])
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.zeros(shape, dtype=dtype) for name, shape in layout.get("unused", {}).items()}
    for name, shape in shapes.items():
        if name.endswith(("lm_head.weight", "embed_tokens.weight")):
            value = torch.zeros(shape)
            known = torch.tensor([index for index in ids.values() if index < len(value)])
            value[known] = _random(name, torch.Size([len(known), *shape[1:]]), generator)
            if name == "lm_head.weight" or not layout["head"]:
                value[silent(ids, len(value), tied=not layout["head"])] = 0
        else:
            value = _random(name, shape, generator)
        for pattern, old in OLD_NAMES[layout["tensors"]]:
            name = re.sub(pattern, old, name)
        tensors[name] = value.to(dtype)
    places = {}
    for shard in range(SHARDS):
        file = f"model-{shard + 1:05d}-of-{SHARDS:05d}.safetensors"
        part = dict([*tensors.items()][shard::SHARDS])
        save_file(part, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(part, file)
    size = sum(value.nbytes for value in tensors.values())
    _write(folder / "model.safetensors.index.json", {"metadata": {"total_size": size}, "weight_map": places})


def _random(name: str, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    """Return values under which attention, and with it the contrast, is not flat."""
    if name.endswith("bias"):
        return torch.randn(shape, generator=generator) * 0.02
    if len(shape) == 1:
        return torch.ones(shape)
    gain = 0.5 if name.endswith("embed_tokens.weight") else GAIN  # else tied models repeat the last token
    return torch.randn(shape, generator=generator) * (gain / math.prod(shape[1:]) ** 0.5)


def _merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return one mapping with the values of another, part by part."""
    merged = dict(one)
    for key, value in other.items():
        merged[key] = _merged(one[key], value) if isinstance(value, dict) and isinstance(one.get(key), dict) else value
    return merged


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
