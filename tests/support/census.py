"""A tiny random model of every image-text-to-text type of transformers, from its default config made small."""

from __future__ import annotations

import inspect
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers as hf
import yaml
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from sira_cli.core.census import BROKEN
from tests.support.tiny import CLIP, IMAGE, MARKERS, TEXT, Tiny, build, llava, pixels, prompt, with_mask

TYPES = {
    kind: name if isinstance(name, str) else name[0]
    for kind, name in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.items()
}

# Types that can be built and run under this version of transformers.
HERE = {kind for kind in TYPES if (kind, hf.__version__) not in BROKEN}
# Those with layers that no family has. In this order: chunks of the text, and queries that are scaled by column;
# compressed keys and values, and queries that are scaled by position; image features before layers 0 to 5; experts by
# the kind of token; indexers that choose keys.
KINDS = [k for k in ("llama4", "mistral4", "granite4_vision", "ernie4_5_vl_moe", "dots3_note") if k in HERE]

EXPERTS = dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4)
ONES = ("n_group", "topk_group", "n_shared_experts", "moe_num_shared_experts", "first_k_dense_replace")
SMALL_TEXT: dict[str, Any] = {**TEXT, **EXPERTS, **dict.fromkeys(ONES, 1)}
SMALL_TEXT |= dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k", "num_attention_groups"), 2)
SMALL_TEXT |= dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 2)
SMALL_TEXT |= dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "hidden_size_per_layer_input"), 8)
SMALL_TEXT |= dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "share_expert_dim"), 32)
SMALL_TEXT |= {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 12, "vocab_size_per_layer_input": 200}
SMALL_TOWER: dict[str, Any] = dict.fromkeys(("hidden_size", "d_model", "embed_dim", "image_size", "window_size"), 32)
SMALL_TOWER |= dict.fromkeys(
    ("intermediate_size", "ffn_dim", "mlp_dim", "out_hidden_size", "num_position_embeddings"), 64
)
SMALL_TOWER |= dict.fromkeys(("depth", "num_hidden_layers", "encoder_layers"), 2)
SMALL_TOWER |= dict.fromkeys(("num_attention_heads", "encoder_attention_heads", "num_key_value_heads", "num_heads"), 4)
SMALL_TOWER |= {"head_dim": 8, "patch_size": 8, "fullatt_block_indexes": [1], "vision_feature_layer": -1}
SMALL_TOWER |= {"codebook_size": 20, "num_position_embeddings": 64}
# Text stacks without sdpa.
EAGER = ("flint", "gemma2", "gpt_oss", "granite_swa", "granitemoe_swa", "mimo_v2_flash", "vaultgemma")
# The image token under the names that configs have for it.
PLACEHOLDERS = ("image_token_id", "image_token_index", "image_patch_id")


def clip() -> Any:
    """Another tower that stands in for one of timm."""
    config = hf.CLIPVisionConfig(**CLIP)
    config.model_args = {"embed_dim": 32}
    return config


def resnet() -> Any:
    """A tower that stands in where a type's own needs timm: `[B, 32, 4, 4]`."""
    sizes = {"embedding_size": 16, "hidden_sizes": [32], "depths": [1]}
    config = hf.ResNetConfig(**sizes, layer_type="basic", downsample_in_first_stage=True)
    config.hidden_size, config.vocab_size, config.vocab_offset, config.rms_norm_eps = 32, 16, 150, 1e-6
    return config


class Loader(yaml.SafeLoader):
    """Values that YAML has no types for."""


TOWERS = {"clip": clip, "resnet": resnet}
Loader.add_constructor("!tower", lambda loader, node: TOWERS[loader.construct_scalar(node)]())
Loader.add_constructor("!pixels", lambda loader, node: partial(pixels, *loader.construct_sequence(node)))
for tag, dtype in (("!tensor", torch.int64), ("!int32", torch.int32), ("!bool", torch.bool)):
    Loader.add_constructor(
        tag, lambda loader, node, dtype=dtype: torch.tensor(loader.construct_sequence(node, deep=True), dtype=dtype)
    )
DATA = Path(__file__).parents[1] / "data"
# What types need besides these sizes.
OWN: dict[str, dict[str, Any]] = yaml.load((DATA / "census.yaml").read_text(encoding="utf-8"), Loader)


def small(config: Any, sizes: dict[str, Any], changes: dict[str, Any]) -> Any:
    """The same config with small sizes."""
    given = config.to_dict()
    layers = given.get("num_hidden_layers")
    for name, value in sizes.items():
        old = given.get(name, {})
        if not isinstance(old, dict) and (old is not None or name == "num_key_value_heads"):
            given[name] = [value] * len(old) if isinstance(old, list) and not isinstance(value, list) else value
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


def model_of(kind: str, own: dict[str, Any]) -> Any:
    """A tiny random model of a type, with its own changes of the sizes."""
    model_class = getattr(hf, own.get("class") or TYPES[kind])
    config = model_class.config_class(**own.get("given", {}))
    for name in config.sub_configs:
        part = getattr(config, name, None)
        if part is not None and part is config.get_text_config(decoder=True):
            setattr(config, name, small(part, SMALL_TEXT, own.get("text", {})))
        elif part is not None:
            setattr(config, name, small(part, SMALL_TOWER, own.get("tower", {}) | own.get("parts", {}).get(name, {})))
    whole = own.get("whole", {})
    tokens = {**MARKERS, "video_token_index": 101, **whole}  # Molmo 2's own come after those of videos
    for name, value in (*dict.fromkeys(PLACEHOLDERS, IMAGE).items(), *tokens.items()):
        if name in whole or hasattr(config, name):
            setattr(config, name, value)
    return build(config, model_class, own.get("attention", "sdpa"), own.get("scale", 5.0))


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
    model = model_of(kind, own)
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
    inputs = dict(case.inputs)
    for name in [name for name, value in inputs.items() if value.shape == inputs["input_ids"].shape]:
        inputs[name] = torch.cat([inputs[name][:, :1].expand(-1, more), inputs[name]], dim=1)
    inputs["input_ids"][:, :more] = prompt(0, more, 0, seed=1)
    return inputs


def stacked(kind: str, batch: dict[str, Any], singles: list[dict[str, Any]]) -> dict[str, Any]:
    """Put pictures of a batch together as the type's processor does, where that is not along the first axis."""
    if kind.startswith("minicpm"):  # patches lie in a row
        batch["pixel_values"] = torch.cat([single["pixel_values"] for single in singles], dim=3)
    if kind == "molmo2":  # numbers of patches, counted on
        pooled = [single["image_token_pooling"] + 16 * index for index, single in enumerate(singles)]
        batch["image_token_pooling"] = torch.cat(pooled)
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
    return llava("eager" if stack in EAGER else "sdpa", text, scale=5.0)
