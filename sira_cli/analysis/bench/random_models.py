"""Models of a real one's shape with random weights: what a decoder costs does not depend on the weights' values.

A shape file holds the sizes that the real checkpoint's config.json holds, and its processor's settings. The tokenizer
is made here: every word is the same token, and the special ones have their real ids.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
import yaml
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedTokenizerFast
from transformers.initialization import no_init_weights

from sira_cli.analysis.bench import SHAPES, shape_names
from sira_cli.errors import SettingsError
from sira_cli.methods.base import Method
from sira_cli.models import presets
from sira_cli.models.lvlm import Lvlm
from sira_cli.models.placement import pick_device
from sira_cli.models.processors import load_processor

WORD = "<word>"
SCALE = 0.02  # standard deviation of the weights, as models are initialised


def read(name: str) -> dict[str, Any]:
    """Read a shape file.

    Raises:
        SettingsError: there is none of that name.
    """
    if name not in shape_names():
        raise SettingsError(f"no shape named {name!r}; there are {', '.join(shape_names())}")
    content: dict[str, Any] = yaml.safe_load((SHAPES / f"{name}.yaml").read_text(encoding="utf-8"))
    return content


def load_shape(name: str, method: Method, device: str = "auto", **settings: Any) -> Lvlm:
    """Make a model of a real one's shape, with random weights.

    Args:
        name: of the shape; K, alpha, limits of pictures and attention are those of the shipped preset of that name.
        method: the decoder.
        device: as for `sira_cli.load`.
        **settings: override the preset's; without a precision it is bfloat16.

    Raises:
        SettingsError: there is no such shape, no such device, or K does not fit.
    """
    shape = read(name)
    preset = presets.read(presets.SHIPPED / f"{name}.yaml").with_settings(**settings)
    preset.sira_config.layers_after_fork(shape["config"]["text_config"]["num_hidden_layers"])  # before it takes memory
    dtype = torch.bfloat16 if preset.load.dtype == "auto" else getattr(torch, preset.load.dtype)
    attention = preset.load.attn_implementation
    model = random_model(
        shape,
        dtype=dtype,
        device=torch.device(pick_device(device)),
        attention="sdpa" if attention == "auto" else attention,
    )
    with tempfile.TemporaryDirectory() as folder:
        write_processor(shape, Path(folder))
        processor = load_processor(Path(folder), image=preset.image)
    return Lvlm(model, processor, preset, method, "random", None)


def random_model(shape: dict[str, Any], *, dtype: torch.dtype, device: torch.device, attention: str) -> Any:
    """Make the model, ready to generate."""
    config = AutoConfig.for_model(**shape["config"])
    with no_init_weights(), device:
        model = AutoModelForImageTextToText.from_config(config, dtype=dtype, attn_implementation=attention)
    model.tie_weights()  # a part of the initialisation that was left out
    generator = torch.Generator(device).manual_seed(0)
    numbers = torch.randn(2**20 + 1, generator=generator, device=device).mul_(SCALE).to(dtype)
    for name, parameter in model.named_parameters():
        _fill(parameter.data, numbers, norm=parameter.ndim == 1 and name.endswith("weight"))
    return model.eval()


def _fill(weights: Tensor, numbers: Tensor, norm: bool) -> None:
    """Fill a weight with the same random numbers again and again: a minute faster than drawing billions of them."""
    if norm:
        weights.fill_(1)
        return
    flat = weights.view(-1)
    for start in range(0, len(flat), len(numbers)):
        part = flat[start : start + len(numbers)]
        part.copy_(numbers[: len(part)])


def write_processor(shape: dict[str, Any], folder: Path) -> None:
    """Write a checkpoint's files but for its weights."""
    tokens: dict[str, int] = shape["tokens"]
    word = max((token for token in tokens.values() if token < 256), default=-1) + 1
    tokenizer = Tokenizer(models.WordLevel({WORD: word, **tokens}, unk_token=WORD))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tokens])
    saved = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=shape["end"], pad_token=shape["end"])
    saved.save_pretrained(folder)
    template = {"chat_template": shape["chat_template"]} if "chat_template" in shape else {}
    contents = {
        "config.json": shape["config"],
        "preprocessor_config.json": shape["preprocessor"],
        "processor_config.json": shape.get("processor", {}),
        "chat_template.json": template,
    }
    for name, content in contents.items():
        if content:
            (folder / name).write_text(json.dumps(content), encoding="utf-8")
