"""Facts about a model from its config.json alone, without its weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText
from transformers.initialization import no_init_weights
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from sira_cli.core.config import SiraConfig
from sira_cli.core.families import check_config, fork_place
from sira_cli.core.fork import Fork
from sira_cli.models.loading.hub import find_config
from sira_cli.models.loading.preset import Preset
from sira_cli.models.loading.reading import reading
from sira_cli.models.loading.weights import own_dtype, read_config


@dataclass(frozen=True)
class ModelFacts:
    """L, the paper's K = L/2, the id of the image token, and the size of the weights."""

    layers: int
    k: int
    image_token: int
    gigabytes: float


def inspect_model(model: str, revision: str = "main", *, offline: bool = False) -> ModelFacts:
    """Build the model without weights, and return its facts."""
    folder = find_config(model, revision, offline=offline)
    lvlm = _without_weights(folder)
    fork = Fork(lvlm, SiraConfig())
    bytes_each = lvlm.dtype.itemsize
    image_token, *_ = SiraConfig().image_tokens.resolve(lvlm.config).ids
    return ModelFacts(fork.layers, fork.k, image_token, _stored_weights(lvlm, folder) * bytes_each / 1e9)


def check_structure(folder: Path, preset: Preset) -> Any:
    """Check that SIRA can follow a model, by its config.json: first the file itself, then the model without weights.

    If the checkpoint's own code builds the model, nothing is checked: it may need the weights.
    """
    if preset.load.trust_remote_code and "auto_map" in _stated(folder):
        return None
    model = _without_weights(folder, preset.load.attention)
    fork_place(model, preset.sira_config)
    return model


def _stored_weights(lvlm: Any, folder: Path) -> int:
    """Return the number of weights in the files. They include the output matrix unless config.json ties it.

    The model is not reliable here: without a value in config.json, transformers treats InternVL's matrix as tied, but
    the files contain it.
    """
    text = lvlm.config.get_text_config(decoder=True)
    tied = _stated(folder).get("tie_word_embeddings", getattr(text, "tie_word_embeddings", False))
    head, embeddings = lvlm.get_output_embeddings().weight, lvlm.get_input_embeddings().weight
    others = {
        id(weight): weight for weight in (embeddings, *lvlm.parameters()) if weight is embeddings or weight is not head
    }
    stored = [*others.values(), *([] if tied else [head])]
    return sum(int(weight.numel()) for weight in stored)


def _stated(folder: Path) -> dict[str, Any]:
    """Return the content of config.json, without the defaults of transformers."""
    with reading(folder):
        stated: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return stated


def _without_weights(folder: Path, attention: str | None = None) -> Any:
    """Return the model of config.json, on torch's meta device."""
    with reading(folder):
        config = read_config(folder)
        model_class: Any = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(config)]
        check_config(config, model_class.__name__)
        with torch.device("meta"), no_init_weights():
            return AutoModelForImageTextToText.from_config(
                config, dtype=own_dtype(config), attn_implementation=attention, trust_remote_code=False
            )
