"""A tiny random twin of a checkpoint's model: the same configuration with narrow, few layers.

The twin takes the real processor's inputs. So patch and picture sizes, merging, windows, rotary angles
and widths of heads stay as they are; the number of heads, experts, words and layers shrinks. Layers keep their kinds
and their order: runs of one kind get shorter, on both sides of the fork.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText, GenerationConfig

from sira_cli.analysis.proof.shrunk import kept_layers, shrunk, special_ids
from sira_cli.core.families import text_stack
from sira_cli.core.image_tokens import Between, ImageTokenFinder, ImageTokens
from sira_cli.core.upstream import attention_of

GAIN = 2.0  # of each matrix: attention is far from uniform, and the streams differ


@dataclass(frozen=True)
class Twin:
    """A tiny model with the prompt that the real processor made, as `core.reference.Prompt` has it.

    Attributes:
        rule: rule for image tokens in the twin's vocabulary.
        k: layers after the fork.
    """

    model: Any
    inputs: Mapping[str, Tensor]
    image: Tensor
    grown: Mapping[str, int]
    silent: tuple[int, ...]
    rule: ImageTokens
    k: int


def build_twin(model: Any, boundary: int, finder: ImageTokenFinder, inputs: Mapping[str, Tensor]) -> Twin:
    """Build the twin of a model and translate its prompt."""
    config = model.config
    kept = kept_layers(config, boundary)
    given = config.to_dict()
    special = [*finder.ids, *(finder.markers or ()), *special_ids(given)]
    words = _compact(special, inputs["input_ids"])
    small = type(config)(**shrunk(config, given, kept, words))
    attention = attention_of(text_stack(model).config)
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        twin = AutoModelForImageTextToText.from_config(small, dtype=torch.float32, attn_implementation=attention).eval()
        _randomize(twin)
    twin.generation_config = GenerationConfig(pad_token_id=0)
    ids = inputs["input_ids"]
    prompt = {name: value.float() if value.is_floating_point() else value for name, value in asked(inputs).items()}
    prompt["input_ids"] = torch.tensor([[words[token] for token in row] for row in ids.tolist()])
    between = None
    if finder.markers:
        start, end = (words[marker] for marker in finder.markers)
        between = Between(start, end, finder.inclusive)
    return Twin(
        twin,
        prompt,
        finder.find(ids),
        grown_inputs(model, inputs),
        tuple(sorted({words[token] for token in special})),
        ImageTokens(ids=tuple(words[token] for token in finder.ids), between=between),
        sum(index >= boundary for index in kept),
    )


def asked(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a processor's inputs without those for training only (PaliGemma's)."""
    return {name: value for name, value in inputs.items() if name != "labels"}


def grown_inputs(model: Any, inputs: Mapping[str, Tensor]) -> dict[str, int]:
    """Return inputs with one entry per token, except ids and mask, and their value for generated text."""
    value = int(model.config.model_type == "paligemma")  # there 0 is the prompt, whose rows see all of it
    shape = inputs["input_ids"].shape
    return {name: value for name, given in inputs.items() if name.endswith("token_type_ids") and given.shape == shape}


def _compact(special: list[int], ids: Tensor) -> dict[int, int]:
    """Return the twin's id of each token that it needs."""
    return {token: index for index, token in enumerate(sorted({*special, *ids.flatten().tolist()}))}


@torch.no_grad()
def _randomize(model: Any) -> None:
    """Give every matrix the same spread, so that a layer's effect is far from zero."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(False)
        if name.endswith("A_log"):  # new ones forget a row within a few others: dropping it would change nothing
            parameter.copy_(torch.linspace(-5.0, -2.0, parameter.numel()).view_as(parameter))
        elif parameter.ndim > 1:
            inputs = parameter.shape[-1] if parameter.ndim == 3 else parameter[0].numel()
            parameter.normal_(std=GAIN / inputs**0.5)
