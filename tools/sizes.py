"""Make `sira_cli/models/sizes.yaml`: the sizes of the shipped presets' models.

python -m tools.sizes > sira_cli/models/sizes.yaml

Weights and caches are counted in the model that transformers builds from the released configuration, without weights.
Image tokens are those that the released processor makes of a photograph of 12 megapixels; where its files are not in
`tests/data`, those of a model of the same type.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.cache_utils import DynamicCache

from sira_cli.analysis.bench import random_models, shape_names
from sira_cli.core.arguments import CACHE
from sira_cli.core.families import text_stack
from sira_cli.models import presets
from sira_cli.models.chat import chat_inputs
from sira_cli.models.memory import cache_bytes
from sira_cli.models.preset import Preset
from sira_cli.models.processor import load_processor
from sira_cli.models.sizes import ModelSize
from tests.support import checkpoints

PHOTOGRAPH = 4032, 3024
LIKE = {  # models whose processor is that of another preset
    "llava-1.5-7b-original": "llava-1.5-7b",
    "qwen3-vl-2b": "qwen3-vl-8b",
    "qwen3-vl-4b": "qwen3-vl-8b",
    "qwen3-vl-30b-a3b": "qwen3-vl-8b",
    "internvl3.5-8b": "internvl3-8b",
    "qwen3.5-2b": "qwen3.5-4b",
    "qwen3.6-27b": "qwen3.5-9b",
    "qwen3.6-35b-a3b": "qwen3.5-9b",
    "gemma4-e2b": "gemma4-e4b",
    "gemma4-12b": "gemma4-26b-a4b",
    "gemma4-31b": "gemma4-26b-a4b",
    "glm-4.6v-flash": "qwen2-vl-7b",  # GLM-4V's processor is Qwen2-VL's, tokens of 28 x 28 pixels
}


def size_of(preset: Preset, config: dict[str, Any], image_tokens: int, patches: int) -> ModelSize:
    """Return the size of a model, from its configuration."""
    with torch.device("meta"):
        model: Any = AutoModelForImageTextToText.from_config(AutoConfig.for_model(**config), dtype=torch.bfloat16)
    text, layers = model.config.get_text_config(decoder=True), text_stack(model).layers
    encoder = model.get_encoder(modality="image")
    tower = None if encoder in (model, model.base_model) else encoder
    column, state = _cache(model, text)
    k = preset.sira.k or round((preset.sira.k_fraction or 0.5) * len(layers))
    return ModelSize(
        weights=sum(weight.numel() for weight in model.parameters()),
        layers=sum(module.weight.numel() for module in layers.modules() if type(module) is nn.Linear),
        column=column,
        state=state,
        image_tokens=image_tokens,
        patches=0 if tower is None else patches,
        widest=_widest(layers),
        widest_tower=0 if tower is None else _widest(tower),
        vocabulary=text.vocab_size,
        k_share=round(k / len(layers), 3),
    )


def _widest(part: nn.Module) -> int:
    """Return the numbers per row around the widest matrix: its input and output, gate and product, and the residual."""
    found = [module for module in part.modules() if type(module) is nn.Linear]
    return max(module.in_features + 3 * max(module.in_features, module.out_features) for module in found)


def _cache(model: Any, text: Any) -> tuple[int, int]:
    """Return the numbers of a token's keys and values in all layers, and those of a text's states."""
    cache, columns = DynamicCache(config=text), 8
    try:
        with torch.device("meta"), torch.no_grad():
            model.get_decoder()(input_ids=torch.ones(1, columns, dtype=torch.long), **{CACHE: cache})
    except RuntimeError:  # reads a value, which tensors without values do not have; its layers are all alike
        head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        return 2 * text.num_hidden_layers * text.num_key_value_heads * head, 0
    now, more = cache_bytes(cache)
    return more // 2, (now - columns * more) // 2


def _picture(name: str) -> tuple[int, int]:
    """Return image tokens and patches of a photograph under a preset's limits."""
    preset, photograph = presets.find(name), Image.new("RGB", PHOTOGRAPH)
    if name in checkpoints.LAYOUTS:
        with tempfile.TemporaryDirectory() as folder:
            checkpoints.write_files(name, Path(folder) / name)
            config: Any = AutoConfig.from_pretrained(Path(folder) / name)
            processor = load_processor(Path(folder) / name, image=preset.image)
    else:
        shape = random_models.read(name)
        config, processor = AutoConfig.for_model(**shape["config"]), random_models.make_processor(shape, preset.image)
    inputs = chat_inputs(processor, config.model_type, [photograph], ["Why?"], system=preset.prompts.system)
    tokens = int(preset.image_tokens.resolve(config).find(inputs["input_ids"]).sum())
    vision = config.vision_config
    side = vision.patch_size if isinstance(vision.patch_size, int) else vision.patch_size[0]
    patch = 3 * side**2 * getattr(vision, "temporal_patch_size", 1)
    return tokens, inputs["pixel_values"].numel() // patch


def sizes() -> dict[str, ModelSize]:
    """Return the sizes of all models whose configuration is known here."""
    found = {}
    for path in sorted(presets.SHIPPED.glob("*.yaml")):
        preset = presets.read(path)
        like = LIKE.get(preset.name, preset.name)
        config = checkpoints.released_config(preset.model)
        if config is not None and (like in checkpoints.LAYOUTS or like in shape_names()):
            found[preset.name] = size_of(preset, config, *_picture(like))
    return found


if __name__ == "__main__":
    print("# Made by `python -m tools.sizes > sira_cli/models/sizes.yaml`; not to be edited.")
    for name, size in sizes().items():
        print(f"{name}:")
        for key, value in asdict(size).items():
            print(f"  {key}: {value}")
