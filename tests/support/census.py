"""A tiny random model of every image-text-to-text type of transformers, from its default config made small."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import transformers as hf
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from sira_cli.core import reference
from sira_cli.core.census import BROKEN
from sira_cli.core.config import SiraConfig
from sira_cli.core.fork import Step, attach
from tests.support.census_own import OWN
from tests.support.tiny_parts import CLIP, IMAGE, TEXT, Tiny, build, pixels, prompt, with_mask

TYPES = {
    kind: name if isinstance(name, str) else name[0]
    for kind, name in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.items()
}

# Types that can be built and run under this version of transformers.
HERE = {kind for kind in TYPES if (kind, hf.__version__) not in BROKEN}

EXPERTS = dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4)
SMALL_TEXT = {
    **TEXT,
    **EXPERTS,
    "head_dim": 16,
    "num_experts_per_tok": 2,
    "moe_topk": 2,
    "moe_k": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "moe_num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "sliding_window": 12,
    "query_pre_attn_scalar": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "share_expert_dim": 32,
    "num_attention_groups": 2,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 200,
}
SMALL_TOWER = {
    "hidden_size": 32,
    "d_model": 32,
    "embed_dim": 32,
    "intermediate_size": 64,
    "ffn_dim": 64,
    "mlp_dim": 64,
    "depth": 2,
    "num_hidden_layers": 2,
    "encoder_layers": 2,
    "num_attention_heads": 4,
    "encoder_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_heads": 4,
    "head_dim": 8,
    "out_hidden_size": 64,
    "image_size": 32,
    "patch_size": 8,
    "fullatt_block_indexes": [1],
    "window_size": 32,
    "vision_feature_layer": -1,
    "codebook_size": 20,
    "num_position_embeddings": 64,
}
# Text stacks without sdpa.
EAGER = ("flint", "gemma2", "gpt_oss", "granite_swa", "granitemoe_swa", "mimo_v2_flash", "vaultgemma")
# The image token under the names that configs have for it.
PLACEHOLDERS = ("image_token_id", "image_token_index", "image_patch_id")


def small(config: Any, sizes: dict[str, Any], changes: dict[str, Any]) -> Any:
    """The same config with small sizes."""
    given = config.to_dict()
    layers = given.get("num_hidden_layers")
    for name, value in sizes.items():
        if (
            name in given
            and not isinstance(given[name], dict)
            and (given[name] is not None or name == "num_key_value_heads")
        ):
            given[name] = (
                [value] * len(given[name]) if isinstance(given[name], list) and not isinstance(value, list) else value
            )
    if isinstance(given.get("layer_types"), list):
        kinds = list(dict.fromkeys(given["layer_types"]))
        given["layer_types"] = [kinds[index % len(kinds)] for index in range(given["num_hidden_layers"])]
    for name, value in given.items():
        if isinstance(value, list) and layers is not None and len(value) == layers and name != "layer_types":
            given[name] = value[: given["num_hidden_layers"]]
    for name in ("transformers_version", "dtype", "architectures", "per_layer_config"):
        given.pop(name, None)
    for rope in (given.get("rope_parameters"), *(given.get("rope_parameters") or {}).values()):
        if isinstance(rope, dict) and rope.get("mrope_section"):
            rope["mrope_section"] = [4, 2, 2] if len(rope["mrope_section"]) == 3 else [2] * len(rope["mrope_section"])
    return type(config)(**{**given, **changes})


def model_of(
    kind: str,
    text: dict[str, Any],
    tower: dict[str, Any],
    whole: dict[str, Any],
    given: dict[str, Any],
    parts: dict[str, Any],
    attention: str = "sdpa",
    scale: float = 5.0,
    name: str | None = None,
) -> Any:
    """A tiny random model of a type, and changes of its sizes."""
    model_class = getattr(hf, name or TYPES[kind])
    config = model_class.config_class(**given)
    for name in config.sub_configs:
        part = getattr(config, name, None)
        if part is None:
            continue
        is_text = part is config.get_text_config(decoder=True)
        setattr(
            config,
            name,
            small(part, SMALL_TEXT if is_text else SMALL_TOWER, text if is_text else {**tower, **parts.get(name, {})}),
        )
    for name in PLACEHOLDERS:
        if hasattr(config, name):
            setattr(config, name, IMAGE)
    for name, value in {
        "video_token_id": 101,
        "video_token_index": 101,
        "vision_start_token_id": 102,
        "vision_end_token_id": 103,
        **whole,
    }.items():
        if name in whole or hasattr(config, name):
            setattr(config, name, value)
    return build(config, model_class, attention, scale)


def picture_inputs(model: Any, own: dict[str, Any] | None) -> dict[str, Any]:
    """One random picture, as the model's processor would hand it over: patches with their grid, or pixels."""
    names = inspect.signature(model.forward).parameters
    # Fuyu and Video-LLaVA had names of their own until transformers 5.21.
    shown = next(name for name in ("pixel_values", "image_patches", "pixel_values_images") if name in names)
    if own is not None:
        made = {name: value() if callable(value) else value for name, value in own.items()}
        return {shown if name == "pixel_values" else name: value for name, value in made.items()}
    if "image_grid_thw" not in names:
        return {shown: pixels(1, 3, 32, 32)}
    vision = model.config.vision_config
    width = 3 * getattr(vision, "temporal_patch_size", 1) * vision.patch_size**2
    return {"pixel_values": pixels(64, width), "image_grid_thw": torch.tensor([[1, 8, 8]])}


def image_rows(model: Any, picture: dict[str, Any]) -> int:
    """How many rows the model makes of a picture."""
    holder = model if hasattr(model, "get_image_features") else model.model
    with torch.no_grad():
        found = holder.get_image_features(**picture)
    found = getattr(found, "pooler_output", found)
    parts = found if isinstance(found, list | tuple) else [found]
    return sum(part.numel() // part.shape[-1] for part in parts)


def case_of(kind: str) -> Tiny:
    """A tiny model of a type, and a prompt with a picture through its own tower."""
    own = OWN.get(kind, {})
    model = model_of(
        kind,
        own.get("text", {}),
        own.get("tower", {}),
        own.get("whole", {}),
        own.get("given", {}),
        own.get("parts", {}),
        own.get("attention", "sdpa"),
        own.get("scale", 5.0),
        own.get("class"),
    )
    picture = picture_inputs(model, own.get("picture"))
    ids = prompt(own.get("rows") or image_rows(model, picture))
    grown = {}
    names = inspect.signature(model.forward).parameters
    inputs = with_mask(ids, **picture)
    for name in ("mm_token_type_ids", "token_type_ids", "moe_mm_token_type_ids"):
        if name in names:
            inputs[name], grown[name] = (ids == IMAGE).long(), 0
    first, last = (ids[0] == IMAGE).nonzero().flatten()[[0, -1]].tolist()
    ids[0, first - 1], ids[0, last + 1] = 102, 103
    return Tiny(model, inputs, grown)


def longer(case: Tiny, more: int) -> dict[str, Any]:
    """The same prompt with so many tokens more in front of it."""
    shape = case.inputs["input_ids"].shape
    inputs = {}
    for name, value in case.inputs.items():
        if value.shape == shape:
            value = torch.cat([value[:, :1].expand(-1, more), value], dim=1)
        inputs[name] = value
    inputs["input_ids"][:, :more] = prompt(0, more, 0, seed=1)
    return inputs


def without_cache(case: Tiny, config: SiraConfig, steps: int) -> tuple[list[int], list[Step]]:
    """Greedy tokens under SIRA, where each pass gets the whole text."""
    inputs, tokens, seen = dict(case.inputs), [], []
    with attach(case.model, config, on_step=seen.append):
        for _ in range(steps):
            logits = case.model(**inputs, use_cache=False).logits[0, -1]
            logits[case.silent] = -torch.inf
            tokens.append(int(logits.argmax()))
            inputs = reference.extend(inputs, tokens[-1], case.grown)
    return tokens, seen


def stacked(kind: str, batch: dict[str, Any], singles: list[dict[str, Any]]) -> dict[str, Any]:
    """Put pictures of a batch together as the type's processor does, where that is not along the first axis."""
    if kind.startswith("minicpm"):  # patches lie in a row
        batch["pixel_values"] = torch.cat([single["pixel_values"] for single in singles], dim=3)
    if kind == "molmo2":  # numbers of patches, counted on
        batch["image_token_pooling"] = torch.cat(
            [single["image_token_pooling"] + 16 * index for index, single in enumerate(singles)]
        )
    return batch


def without_weights(kind: str) -> Any:
    """The default model of a type on the meta device; None: its default config does not build."""
    model_class = getattr(hf, TYPES[kind])
    try:
        config = model_class.config_class()
        with torch.device("meta"):
            return model_class._from_config(config)
    except (AttributeError, ImportError, KeyError, TypeError, ValueError):
        return None


def llava_with(stack: str) -> Tiny:
    """LLaVA with another text stack: the tiny default of a type of causal language models."""
    text = small(hf.CONFIG_MAPPING[stack](), SMALL_TEXT, {})
    config = hf.LlavaConfig(vision_config=CLIP, text_config=text, image_token_index=IMAGE, image_seq_length=16)
    attention = "eager" if stack in EAGER else "sdpa"
    model = build(config, hf.LlavaForConditionalGeneration, attention, scale=5.0)
    return Tiny(model, with_mask(prompt(16), pixel_values=pixels(1, 3, 32, 32)))
