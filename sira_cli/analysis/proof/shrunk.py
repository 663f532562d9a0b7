"""The configuration of a tiny twin: that of a model with narrow, few layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WORDS = 256  # at least, in the twin's vocabulary
WIDE_HEAD = 128  # of heads that are wider, there are fewer
_TEXT_WIDTHS = (
    *("out_hidden_size", "text_hidden_size", "projection_dim", "output_dim", "output_proj_dims"),
    "adapter_out_dim",
)
_TOWER_WIDTHS = ("hidden_size", "output_hidden_size", "adapter_in_dim", "adapter_input_size")
_WIDTHS = ("hidden_size", "out_hidden_size", "text_hidden_size", "projection_dim", "projection_hidden_size")  # of all
_INNER = {
    "intermediate_size": 128,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "dense_intermediate_size": 64,
    "ffn_dim": 64,
    "mlp_dim": 64,
    "hidden_size_per_layer_input": 8,
}
_FEW = {  # at most
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "top_k_experts", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "moe_num_shared_experts"), 1),
}
_HEADS = ("num_attention_heads", "num_heads", "attention_heads", "encoder_attention_heads")
_KEY_HEADS = ("num_key_value_heads", "num_global_key_value_heads")
_DEPTHS = ("num_hidden_layers", "depth", "encoder_layers", "num_layers")
_FEATURE_LAYERS = ("vision_feature_layer", "vision_feature_layers", "spatial_vision_layer")
_NUMBERED = ("mlp_only_layers", "moe_layers")  # layers by their numbers
# Tokens that a `vocabulary_map` names for pictures: a placeholder, the entries of a codebook, ends of lines.
_PICTURE_TOKENS = ("<image>", "IMGIMG", "<|visual token", "<|extra_200|>")


def kept_layers(config: Any, boundary: int) -> list[int]:
    """Return the decoder layers that the twin keeps: some of each kind, in order, before and after b."""
    text = config.get_text_config(decoder=True).to_dict()
    layers = text["num_hidden_layers"]
    deepstack = getattr(getattr(config, "vision_config", None), "deepstack_visual_indexes", None) or ()
    run = max(2, len(deepstack))
    fed = fed_layers(config.to_dict())
    kinds = [(*_kind(text, index), index if index in fed else None) for index in range(layers)]
    return [*_shortened(kinds, 0, boundary, run), *_shortened(kinds, boundary, layers, run)]


def fed_layers(given: Mapping[str, Any]) -> list[int]:
    """Return the decoder layers before which image features are added (Granite 4 Vision)."""
    pairs = given.get("deepstack_layer_map") or ()
    return [*(layer for _, layer in pairs), *(given.get("spatial_target_layers") or ())]


def _kind(text: dict[str, Any], index: int) -> tuple[Any, ...]:
    layers = text["num_hidden_layers"]
    listed = [str(value[index]) for name, value in text.items() if _has_each(name, value, layers)]
    shared = index >= layers - (text.get("num_kv_shared_layers") or 0)
    dense = index < (text.get("first_k_dense_replace") or 0)
    return (*listed, shared, dense, *(index in (text.get(name) or ()) for name in _NUMBERED))


def _has_each(name: str, value: Any, layers: int) -> bool:
    """Return whether a value of a text stack has one entry per layer."""
    return isinstance(value, list) and len(value) == layers and name not in _NUMBERED


def _shortened(kinds: list[tuple[Any, ...]], first: int, end: int, run: int) -> list[int]:
    """Return layers first..end-1 with runs of one kind shortened to `run`, up to the last new kind."""
    kept: list[int] = []
    seen: set[tuple[Any, ...]] = set()
    length = 0
    for index in range(first, end):
        begins = index == first or kinds[index] != kinds[index - 1]
        if begins:
            step = (None if index == first else kinds[index - 1], kinds[index])
            length = run if step in seen else 0  # this way from one kind to the next is in the twin already
            seen.add(step)
        if length < run:
            kept.append(index)
            length += 1
    return kept


def special_ids(given: Mapping[str, Any]) -> list[int]:
    """Return the token ids that a configuration names, in all of its parts."""
    found: list[int] = []
    for name, value in given.items():
        if name == "vocabulary_map":
            found += _picture_tokens(value).values()
        elif isinstance(value, Mapping):
            found += special_ids(value)
        elif _names_token(name):
            found += [each for each in (value if isinstance(value, list) else [value]) if _is_id(each)]
    return found


def _picture_tokens(vocabulary: Mapping[str, int] | None) -> dict[str, int]:
    return {name: token for name, token in (vocabulary or {}).items() if name.startswith(_PICTURE_TOKENS)}


def _names_token(name: Any) -> bool:  # labels are numbered
    return isinstance(name, str) and name.endswith(("token_id", "token_index", "token_ids", "patch_id"))


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def shrunk(config: Any, given: dict[str, Any], kept: list[int], words: dict[int, int]) -> dict[str, Any]:
    """Return the values of the twin's configuration."""
    text_config = config.get_text_config(decoder=True)
    text = text_config.to_dict()
    vocabulary = max(WORDS, len(words))
    vocabularies = {text[name]: vocabulary for name in ("vocab_size", "vocab_size_per_layer_input") if text.get(name)}
    width = _text_width(text)
    widths = {text["hidden_size"]: width}
    features = [layer for name in _FEATURE_LAYERS for layer in _listed(given.get(name))]
    features += [layer for layer, _ in given.get("deepstack_layer_map") or ()]
    parts = {name: getattr(config, name, None) for name in config.sub_configs}

    def shrink(part: dict[str, Any], own: Any) -> dict[str, Any]:
        nested = dict(part)
        for name in ("transformers_version", "dtype", "torch_dtype", "architectures", "per_layer_config"):
            nested.pop(name, None)
        if own is config and fed_layers(part):
            nested["deepstack_layer_map"] = [[tower, kept.index(to)] for tower, to in part["deepstack_layer_map"] or ()]
            nested["spatial_target_layers"] = [kept.index(to) for to in part["spatial_target_layers"]]
        if own is text_config:
            _shrink_text(nested, kept, width)
        elif own is not config:
            _shrink_tower(nested, widths, features)
        for name, value in nested.items():
            if name == "vocabulary_map":
                nested[name] = {text: words[token] for text, token in _picture_tokens(value).items()}
            elif isinstance(value, dict) and (name in parts or str(name).endswith("_config")):
                nested[name] = shrink(value, parts.get(name) if own is config else None)
                _join(nested[name])
            elif _names_token(name) and isinstance(value, list):
                nested[name] = [words.get(token, token) for token in value]
            elif _names_token(name) and _is_id(value):
                nested[name] = words[value]
            elif str(name).startswith("vocab_size") and value in vocabularies:
                nested[name] = vocabularies[value]
            elif own is config and name in _WIDTHS and _is_id(value):
                nested[name] = widths.get(value) or _merged(value, config)
        return nested

    return shrink(given, config)


def _text_width(text: dict[str, Any]) -> int:
    heads = text["num_attention_heads"]
    head = text.get("head_dim") or text["hidden_size"] // heads
    return head * _heads(head) if text["hidden_size"] == head * heads else 128


def _heads(head: int) -> int:
    return 4 if head <= WIDE_HEAD else 2


def _shrink_text(text: dict[str, Any], kept: list[int], width: int) -> None:
    """Shrink the text stack to some of its layers, in place."""
    layers, heads = text["num_hidden_layers"], text["num_attention_heads"]
    new_heads = _heads(text.get("head_dim") or text["hidden_size"] // heads)
    for name in _KEY_HEADS:
        if text.get(name):
            text[name] = new_heads if text[name] == heads else 1 if text[name] == 1 else new_heads // 2
    text["hidden_size"], text["num_attention_heads"] = width, new_heads
    for name, value in text.items():
        if _has_each(name, value, layers):
            text[name] = [value[index] for index in kept]
        elif name in _NUMBERED and value:
            text[name] = [new for new, index in enumerate(kept) if index in value]
    if text.get("first_k_dense_replace"):
        text["first_k_dense_replace"] = sum(index < text["first_k_dense_replace"] for index in kept)
    if text.get("num_kv_shared_layers"):
        text["num_kv_shared_layers"] = sum(index >= layers - text["num_kv_shared_layers"] for index in kept)
    text["num_hidden_layers"] = len(kept)
    if text.get("linear_num_key_heads"):
        ratio = max(1, text["linear_num_value_heads"] // text["linear_num_key_heads"])
        text.update(linear_num_key_heads=2, linear_num_value_heads=2 * ratio)
    _shrink_inner(text)


def _shrink_tower(tower: dict[str, Any], text_widths: Mapping[int, int], features: list[int]) -> None:
    """Shrink a tower of pictures (or sounds) in place; its output has the width of the text."""
    if tower.get("base_channels"):  # convolutions, which have no heads to go by
        return
    own = "embed_dim" if tower.get("embed_dim") else "d_model" if tower.get("d_model") else "hidden_size"
    heads = next((tower[name] for name in _HEADS if tower.get(name)), None)
    if tower.get(own) and heads:
        width = 2 * (tower[own] // heads)
        old = tower[own]
        for name in _HEADS:
            if tower.get(name):
                tower[name] = 2
        if tower.get("num_key_value_heads"):
            tower["num_key_value_heads"] = 2 if tower["num_key_value_heads"] == heads else 1
        outputs = (*_TEXT_WIDTHS, "hidden_size") if own == "embed_dim" else _TEXT_WIDTHS
        for name, value in tower.items():
            if name in outputs and value in text_widths:
                tower[name] = text_widths[value]
            elif value == old and name in (own, *_TOWER_WIDTHS):
                tower[name] = width
    depth = next((tower[name] for name in _DEPTHS if isinstance(tower.get(name), int)), None)
    if depth is None:
        _shrink_inner(tower)
        return
    few = max([2, *(-layer if layer < 0 else layer + 1 for layer in features)])
    for name in ("deepstack_visual_indexes", "fullatt_block_indexes", "global_attn_indexes"):
        if tower.get(name):
            few = max(few, len(tower[name]) if name.startswith("deepstack") else 2)
    few = min(few, depth)
    for name, value in tower.items():
        if name in _DEPTHS and value == depth:
            tower[name] = few
        elif isinstance(value, list) and len(value) == depth:
            tower[name] = value[:few]
    if tower.get("deepstack_visual_indexes"):
        tower["deepstack_visual_indexes"] = list(range(len(tower["deepstack_visual_indexes"])))
    for name in ("fullatt_block_indexes", "global_attn_indexes"):
        if tower.get(name):
            tower[name] = [few - 1]
    _shrink_inner(tower)


def _join(tower: dict[str, Any]) -> None:
    """Let the outputs of one part of a tower fit the next one (Llama 4, DeepSeek-OCR 2)."""
    sam, encoder = tower.get("sam_config"), tower.get("encoder_config")
    if sam and encoder:
        sam["downsample_channels"] = [*sam["downsample_channels"][:-1], encoder["hidden_size"]]
    if tower.get("pixel_shuffle_ratio"):
        tower["intermediate_size"] = round(tower["hidden_size"] / tower["pixel_shuffle_ratio"] ** 2)
        tower["vision_output_dim"] = tower["projector_output_dim"]


def _shrink_inner(part: dict[str, Any]) -> None:
    for name, value in _INNER.items():
        if part.get(name):
            part[name] = [value] * len(part[name]) if isinstance(part[name], list) else value
    for name, value in _FEW.items():
        if isinstance(part.get(name), int):
            part[name] = min(part[name], value)


def _merged(width: int, config: Any) -> int:
    """Return the twin's width for several picture-tower rows side by side; other widths stay."""
    tower = getattr(config, "vision_config", None)
    if tower is None:
        return width
    given = tower.to_dict()
    old, heads = given.get("hidden_size"), next((given[name] for name in _HEADS if given.get(name)), None)
    return width // old * 2 * (old // heads) if old and heads and width % old == 0 else width


def _listed(value: Any) -> list[int]:
    return [] if value is None else value if isinstance(value, list) else [value]
