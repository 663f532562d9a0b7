"""Models with a real model's shape and random weights: a decoder's cost does not depend on their values.

A shape file holds the sizes in the real checkpoint's config.json, and its processor's settings. The tokenizer is made
here: every word is the same token, and special tokens have their real ids.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
import yaml
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedTokenizerFast
from transformers.initialization import no_init_weights

from sira_cli.analysis.bench import SHAPES, shape_names
from sira_cli.analysis.bench.measure import RANDOM
from sira_cli.errors import SettingsError
from sira_cli.methods.base import Method
from sira_cli.models import presets
from sira_cli.models.packing import HalfLinear, Packing, can_pack
from sira_cli.models.placement import pick_device
from sira_cli.models.preset import ImageSettings, Preset
from sira_cli.models.processor import load_processor
from sira_cli.run.lvlm import Lvlm

WORD = "<word>"
SCALE = 0.02  # standard deviation of the weights, as models are initialised


def read(name: str) -> dict[str, Any]:
    """Read a shape file."""
    if name not in shape_names():
        raise SettingsError(f"no shape named {name!r}; there are {', '.join(shape_names())}")
    content: dict[str, Any] = yaml.safe_load((SHAPES / f"{name}.yaml").read_text(encoding="utf-8"))
    return content


def load_shape(name: str, method: Method, device: str = "auto", **settings: Any) -> Lvlm:
    """Make a model with a real model's shape and random weights."""
    shape = read(name)
    preset = presets.read(presets.SHIPPED / f"{name}.yaml").with_settings(**settings)
    return make_lvlm(shape, preset, method, device)


def make_lvlm(shape: dict[str, Any], preset: Preset, method: Method, device: str = "auto") -> Lvlm:
    """Make the model of a shape, under the settings of a preset."""
    preset.sira_config.layers_after_fork(shape["config"]["text_config"]["num_hidden_layers"])  # before it takes memory
    dtype = torch.bfloat16 if preset.load.dtype == "auto" else getattr(torch, preset.load.dtype)
    model = random_model(shape, dtype, torch.device(pick_device(device)), preset.load.attention)
    return Lvlm(model, make_processor(shape, preset.image), preset, method, RANDOM)


def random_model(shape: dict[str, Any], dtype: torch.dtype, device: torch.device, attention: str | None) -> Any:
    """Make the model, ready to generate, its matrices packed as by `load`. Weights are bfloat16 values, as usual."""
    config = AutoConfig.for_model(**shape["config"])
    with no_init_weights(), device:
        model = AutoModelForImageTextToText.from_config(config, dtype=dtype, attn_implementation=attention)
    model.tie_weights()  # a part of the initialisation that was left out
    generator = torch.Generator(device).manual_seed(0)
    numbers = SCALE * torch.randn(2**20 + 1, generator=generator, device=device)
    numbers = numbers.to(torch.bfloat16).to(dtype)
    packing = Packing(model) if can_pack(dtype, device) else None
    embeddings = model.get_input_embeddings().weight
    for part in model.modules():
        for name, parameter in part.named_parameters(recurse=False):
            weights = parameter.data
            if weights.ndim == 1 and name.endswith("weight"):  # a norm's
                weights.fill_(1)
                continue
            for piece in weights.view(-1).split(len(numbers)):  # a minute faster than drawing billions
                piece.copy_(numbers[: len(piece)])
        if packing and isinstance(part, HalfLinear) and part.weight is not embeddings:
            packing.add(part, part.drop_weight())  # at once: memory may not suffice for all of them
    if packing:
        packing.finish()
    return model.eval()


def write_files(folder: Path, shape: dict[str, Any]) -> None:
    """Write a checkpoint's files, all but the weights."""
    tokens: dict[str, int] = shape["tokens"]
    word = max((token for token in tokens.values() if token < 256), default=-1) + 1
    tokenizer = Tokenizer(models.WordLevel({WORD: word, **tokens}, unk_token=WORD))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    for token in tokens:
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
    settings = {"eos_token": shape["end"], "pad_token": shape["end"]}
    settings.update(shape.get("tokenizer", {}))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **settings).save_pretrained(folder)
    contents = {"config.json": shape["config"]}
    for name in ("preprocessor", "processor"):
        if name in shape:
            contents[f"{name}_config.json"] = shape[name]
    if "chat_template" in shape:
        contents["chat_template.json"] = {"chat_template": shape["chat_template"]}
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")


def make_processor(shape: dict[str, Any], image: ImageSettings | None = None) -> Any:
    """Make the shape's processor, by way of a checkpoint's files."""
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), shape)
        processor = load_processor(Path(folder), image=image)
        # A family's own class would take the vocabulary for one of parts of words, in which no word occurs.
        processor.tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, padding_side="left")
    return processor
