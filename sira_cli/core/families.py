"""Models that the fork follows: the tested families, and the reasons to refuse others.

The core never checks for a family. Structure is checked here, once; any difference between families
is a row of `FAMILIES` with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn
from transformers import __version__ as transformers_version

from sira_cli.core.arguments import Kwargs, cache_name, mask_name, parameters
from sira_cli.core.census import BROKEN, EXACT, OWN_STACKS, REFUSED, REFUSED_STACKS, STACKS, UNSETTLED
from sira_cli.core.compiled import check_uncompiled
from sira_cli.core.upstream import attention_of
from sira_cli.errors import SettingsError, UnsupportedModelError

if TYPE_CHECKING:
    from sira_cli.core.config import SiraConfig


@dataclass(frozen=True)
class Family:
    """One row of the table of supported families: each passes the conformance test."""

    name: str
    model_type: str
    example: str
    note: str = ""


FAMILIES = (
    Family("LLaVA-1.5", "llava", "llava-hf/llava-1.5-7b-hf"),
    Family("LLaVA-NeXT", "llava_next", "llava-hf/llava-v1.6-mistral-7b-hf"),
    Family("Pixtral (LLaVA)", "llava", "mistral-community/pixtral-12b"),
    Family("Mistral 3", "mistral3", "mistralai/Mistral-Small-3.1-24B-Instruct-2503"),
    Family("Ministral 3", "mistral3", "mistralai/Ministral-3-8B-Instruct-2512"),
    Family("Qwen2-VL", "qwen2_vl", "Qwen/Qwen2-VL-7B-Instruct"),
    Family("Qwen2.5-VL", "qwen2_5_vl", "Qwen/Qwen2.5-VL-7B-Instruct"),
    Family("Qwen3-VL", "qwen3_vl", "Qwen/Qwen3-VL-8B-Instruct", "fork after the DeepStack layers"),
    Family("Qwen3.5", "qwen3_5", "Qwen/Qwen3.5-9B", "recurrent layers"),
    Family("Qwen3.5 MoE", "qwen3_5_moe", "Qwen/Qwen3.6-35B-A3B", "recurrent layers"),
    Family("LFM2-VL", "lfm2_vl", "LiquidAI/LFM2-VL-1.6B", "convolution states"),
    Family("InternVL", "internvl", "OpenGVLab/InternVL3-8B-hf"),
    Family("Idefics3", "idefics3", "HuggingFaceM4/Idefics3-8B-Llama3"),
    Family("SmolVLM", "smolvlm", "HuggingFaceTB/SmolVLM2-2.2B-Instruct"),
    Family("Gemma 3", "gemma3", "google/gemma-3-4b-it"),
    Family("Gemma 4", "gemma4", "google/gemma-4-31B-it"),
    Family("Gemma 4 MoE", "gemma4", "google/gemma-4-26B-A4B-it"),
    Family("Gemma 4 E", "gemma4", "google/gemma-4-E4B-it", "late layers share keys"),
    Family("PaliGemma", "paligemma", "google/paligemma-3b-mix-224"),
    Family("PaliGemma 2", "paligemma", "google/paligemma2-3b-mix-224", "eager attention (soft caps)"),
)

# Types that were compared with the reference.
TESTED = {*EXACT, *(family.model_type for family in FAMILIES)}
TESTED_STACKS = {*STACKS, *OWN_STACKS}  # types of text stacks
# The fork passes each late layer a 4-D mask; other implementations take another kind, or none.
ATTENTION = ("sdpa", "eager")
LAYER_TYPES = ("full_attention", "sliding_attention", "chunked_attention", "indexed_attention")
FINAL_NORMS = ("norm", "embedding_norm", "final_layernorm")  # names in transformers; the last two: LFM2, Persimmon
RECURRENT_TYPES = ("linear_attention", "conv")
# State of a prompt that a model keeps outside the cache; a second pass over another prompt must restore it.
POSITION_STATE = ("rope_deltas",)  # Qwen-VL: how far text positions lag, because an image takes few of them
# Arguments of decoder layers with one row per token, besides hidden states and masks.
ROW_ARGUMENTS = (
    "position_embeddings",  # cosines and sines
    "per_layer_input",  # Gemma 3n: embeddings for each layer; Gemma 4 passes them by position
    "position_ids",  # Ministral 3: queries scaled by position
    "moe_mm_token_type_ids",  # Ernie 4.5 VL: experts for pictures, and others for text
)
# Arguments of the text stack's modules that carry the picture other than as rows, or treat its rows differently.
FOREIGN_ARGUMENTS = {
    "cross_attention_states": "reads the image through cross-attention",
    "encoder_hidden_states": "reads the image through cross-attention",
    "image_hidden_states": "reads the image through cross-attention",  # Idefics
    "protein_kv_states": "reads proteins through cross-attention",  # Evolla
}


@dataclass(frozen=True)
class Backbone:
    """The text stack of an LVLM: the parts that the fork hooks."""

    decoder: nn.Module  # the module with the layers
    decoder_layers: nn.ModuleList  # the L decoder layers
    norm: nn.Module  # the final norm
    first_boundary: int  # smallest b = L - K at which a fork is exact
    tested: bool  # its type was compared with the reference
    mixers: list[Mixer]  # the token mixer of each of the L layers
    # modules of the last layer, except for keys and values, that are known to treat each row by itself
    after_keys: tuple[nn.Module, ...]
    few_queries: bool  # whether its attention may leave out rows that are not needed


def check_config(config: Any, name: str) -> None:
    """Check a model by its config alone."""
    if config.model_type in REFUSED:
        raise _refusal(name, REFUSED[config.model_type])
    if (config.model_type, transformers_version) in BROKEN:
        why = BROKEN[config.model_type, transformers_version]
        raise _refusal(name, f"transformers {transformers_version} breaks it ({why}); install another version")
    if getattr(config, "is_encoder_decoder", False):
        raise _refusal(name, "it is an encoder-decoder: its decoder never holds the image tokens")
    text_config = config.get_text_config(decoder=True)
    if text_config.model_type in REFUSED_STACKS:
        raise _refusal(name, f"its text stack is {text_config.model_type}: {REFUSED_STACKS[text_config.model_type]}")
    if getattr(text_config, "cross_attention_layers", None):
        raise _refusal(name, "it reads the image through cross-attention: there are no image tokens to drop")
    foreign = set(getattr(text_config, "layer_types", None) or ()) - {*LAYER_TYPES, *RECURRENT_TYPES}
    if foreign:
        raise _refusal(name, f"its text stack has layers of type {', '.join(sorted(foreign))}")


def find_backbone(model: Any) -> Backbone:
    """Find the text stack of `model`."""
    name = type(model).__name__
    if hasattr(model, "get_base_model"):  # a PeftModel, whose `generate` calls that of the model inside
        raise UnsupportedModelError(
            f"{name} wraps the model: attach `model.get_base_model()`, and generate with either; or merge the adapter "
            "for good (`model.merge_and_unload()`)"
        )
    if isinstance(getattr(model, "module", None), nn.Module) and hasattr(model.module, "get_decoder"):
        raise UnsupportedModelError(  # DataParallel, DistributedDataParallel and others
            f"{name} wraps the model: attach `model.module`, and generate with that"
        )
    config: Any = getattr(model, "config", None)
    if config is None or not hasattr(model, "get_decoder"):
        raise UnsupportedModelError(
            f"{name} is not a Hugging Face image-text-to-text model. Load one with AutoModelForImageTextToText."
        )
    if model.get_output_embeddings() is None:
        raise UnsupportedModelError(f"{name} has no output head: attach the whole model, whose `generate` you call")
    check_config(config, name)
    check_uncompiled(model)  # first: a compiled layer also has other names

    decoder = text_stack(model)
    layers = getattr(decoder, "layers", None)
    norm = next((getattr(decoder, norm) for norm in FINAL_NORMS if hasattr(decoder, norm)), None)
    if layers is None or norm is None:
        raise _refusal(name, "its text stack has no `layers` and final norm to hook")
    for kind in {type(module) for module in decoder.modules() if module is not decoder}:
        for argument in FOREIGN_ARGUMENTS.keys() & parameters(kind.forward):
            raise _refusal(name, f"it {FOREIGN_ARGUMENTS[argument]}")
    mixers = find_mixers(layers, config.get_text_config(decoder=True))
    if isinstance(mixers, str):
        raise _refusal(name, mixers)

    attention = attention_of(decoder.config)
    if attention not in ATTENTION:
        raise UnsupportedModelError(
            f"attention implementation {attention!r} takes no 4-D mask, which the fork needs. "
            "Load the model with attn_implementation='sdpa' (or 'eager')."
        )
    deepstack = getattr(getattr(config, "vision_config", None), "deepstack_visual_indexes", None) or ()
    tested = config.model_type in TESTED and not _untested_stack(config)
    # eager attention returns weights, possibly of all rows
    few_queries = tested and attention == "sdpa" and mixers[-1].plain
    module, mlp = mixers[-1].module, getattr(layers[-1], "mlp", None)
    if mlp is not None and any("expert" in part for part, _ in mlp.named_modules()):
        mlp = None  # a model may have to report the experts of each row
    queries = getattr(module, "q_proj", None) if few_queries else None
    outputs = getattr(module, "o_proj", None) if mixers[-1].plain else None
    after_keys = tuple(part for part in (queries, outputs, mlp) if tested and part is not None)
    return Backbone(decoder, layers, norm, max(1, len(deepstack)), tested, mixers, after_keys, few_queries)


def check_row_arguments(layer: Any, more: tuple[Any, ...], kwargs: Kwargs, has_rows: Callable[..., bool]) -> None:
    """Check that the fork packs every argument of a decoder layer that has a row per token."""
    if ROW_ARGUMENTS[0] not in kwargs and not more:  # Gemma 3n passes them by position
        raise UnsupportedModelError(f"{type(layer).__name__} was called without {ROW_ARGUMENTS[0]}")
    checked = {*ROW_ARGUMENTS, mask_name(layer, kwargs)}
    for name, value in kwargs.items():
        if name not in checked and any(map(has_rows, value if isinstance(value, tuple) else (value,))):
            raise UnsupportedModelError(
                f"{type(layer).__name__} was called with {name}, which has a row per token and is unknown to the fork: "
                "use a version of transformers that `sira doctor` calls tested, or report this"
            )


def text_stack(model: Any) -> Any:
    """Return the module that holds the decoder layers and the final norm."""
    decoder = model.get_decoder()
    return decoder if hasattr(decoder, "layers") else getattr(decoder, "model", decoder)  # Llama 4 names its whole LLM


def untested(model: Any) -> str:
    """Return which part of an untested model was not compared with the reference: its type, or its text stack."""
    kind = model.config.model_type
    if kind in TESTED:
        return f"its text stack, {_untested_stack(model.config)}, was not compared with the reference"
    reason = UNSETTLED.get(kind, f"{kind} is not among the {len(TESTED) + len(REFUSED) + len(UNSETTLED)} types tried")
    return f"it was not compared with the reference in full ({reason})"


def _untested_stack(config: Any) -> str:
    """Return the type of a model's text stack, if it was not compared with the reference."""
    text_config = config.get_text_config(decoder=True)
    tested = text_config is config or text_config.model_type in TESTED_STACKS
    return "" if tested else str(text_config.model_type)


def fork_place(model: Any, config: SiraConfig) -> tuple[Backbone, int]:
    """Return the text stack of `model`, and the layer before which it forks, b = L - K."""
    backbone = find_backbone(model)
    layers = len(backbone.decoder_layers)
    k = config.layers_after_fork(layers)
    if layers - k < backbone.first_boundary:
        raise SettingsError(
            f"k = {k} forks at layer b = {layers - k}, but this model adds image features to the outputs of its first "
            f"{backbone.first_boundary} layers (DeepStack): k must be at most {layers - backbone.first_boundary}"
        )
    return backbone, layers - k


def output_projections(model: Any) -> list[nn.Module]:
    """Return each decoder layer's `o_proj`, which projects attention heads back to the width of the model."""
    projections = [getattr(mixer.module, "o_proj", None) for mixer in find_backbone(model).mixers]
    if None in projections:
        raise UnsupportedModelError(
            f"{type(model).__name__} has layers with no `o_proj` to hook (no attention heads, or another name for it): "
            "methods that change heads (ict, maskcd) cannot decode it"
        )
    return [projection for projection in projections if projection is not None]


def check_columns(model: Any, feature: str) -> None:
    """Check that each layer of `model` is attention with keys and values of its own."""
    for layer, mixer in enumerate(find_backbone(model).mixers):
        if not mixer.plain or mixer.chunked or mixer.keys_from != layer:
            raise UnsupportedModelError(
                f"{type(model).__name__} cannot be used with {feature}: every layer must have keys and values of "
                f"its own, but layer {layer} has a state, an indexer, chunks or the keys of an earlier layer"
            )


def _refusal(name: str, reason: str) -> UnsupportedModelError:
    families = ", ".join(family.name for family in FAMILIES)
    return UnsupportedModelError(f"{name} is not supported: {reason}. Supported families: {families}.")


# The names under which transformers' decoder layers hold a mixer with a recurrent or convolution state.
RECURRENT = ("linear_attn", "conv")


@dataclass(frozen=True)
class Mixer:
    """The token mixer of one decoder layer."""

    module: nn.Module  # the attention module, or the one with the state
    recurrent: bool  # whether `module` has a state instead of attention
    keys_from: int  # index of the layer whose keys and values it attends to: its own, unless layers share them
    chunked: bool = False  # whether it attends within chunks of the text (Llama 4)
    indexed: bool = False  # whether it has an indexer that chooses keys

    @property
    def plain(self) -> bool:
        """Whether it is attention to all keys of its mask."""
        return not self.recurrent and not self.indexed


def find_mixers(layers: Iterable[Any], text_config: Any) -> list[Mixer] | str:
    """Find the mixer of each decoder layer, or return why the fork cannot follow one."""
    mixers, kinds = [], getattr(text_config, "layer_types", None)
    for index, layer in enumerate(layers):
        names = [name for name in ("self_attn", *RECURRENT) if getattr(layer, name, None) is not None]
        if not names:
            return f"its {type(layer).__name__} has neither `self_attn` nor a known state"
        mixer = getattr(layer, names[0])
        indexer = getattr(mixer, "indexer", None)
        parts = (layer, mixer, indexer)
        others = [name for name, part in layer.named_modules() if part not in parts and _mixes(part)]
        if len(names) > 1 or others:
            return f"its {type(layer).__name__} mixes rows in {' and '.join([*names, *others])}, not in one place"
        if names[0] not in RECURRENT and not hasattr(mixer, "config"):
            return f"the `self_attn` of its {type(layer).__name__} has no config"
        if "prev_topk_indices" in parameters(type(mixer).forward):
            return "some of its layers attend to rows that earlier ones have chosen (sparse indexers)"
        recurrent = names[0] in RECURRENT
        source = index if recurrent else _key_source(index, text_config)
        chunked = kinds is not None and kinds[index] == "chunked_attention"
        mixers.append(Mixer(mixer, recurrent, source, chunked, indexer is not None))
    return mixers


def _mixes(module: nn.Module) -> bool:
    """Return whether a module looks at more than one row: it takes a mask or a cache."""
    forward = type(module).forward
    return cache_name(forward) is not None or any("mask" in name for name in parameters(forward))


def _key_source(index: int, text_config: Any) -> int:
    """Return the layer whose keys and values layer `index` reads: the last of its type before the sharing begins."""
    first = text_config.num_hidden_layers - (getattr(text_config, "num_kv_shared_layers", 0) or 0)
    if index < first:
        return index
    types = text_config.layer_types
    return max(source for source in range(first) if types[source] == types[index])


PositionState = Sequence[tuple[Any, str]]  # modules, and the names of their attributes


def position_state(model: Any) -> PositionState:
    """Return the modules and attributes that keep state outside the cache (`POSITION_STATE`)."""
    return [(module, name) for module in model.modules() for name in POSITION_STATE if hasattr(module, name)]


@contextmanager
def positions_kept(state: PositionState) -> Iterator[None]:
    """Restore the state when the context ends, also after an error."""
    kept = [(module, name, getattr(module, name)) for module, name in state]
    try:
        yield
    finally:
        for module, name, value in kept:
            setattr(module, name, value)
