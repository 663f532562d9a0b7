"""A real model's shape with only its first decoder layers, for machines on which the whole model is too large."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig

from sira_cli.analysis.bench.random_models import make_lvlm, read
from sira_cli.errors import SettingsError
from sira_cli.methods import find
from sira_cli.models import presets
from sira_cli.run.lvlm import Lvlm


def load_part(name: str, layers: int) -> Lvlm:
    """Make the model of the shape's first layers, with random weights."""
    whole, preset = read(name), presets.find(name)
    of = whole["config"]["text_config"]["num_hidden_layers"]
    preset = preset.model_copy(update={"name": f"{name} with {layers} of {of} layers"})
    return make_lvlm(shortened(whole, layers), preset, find("sira"))


def shortened(shape: dict[str, Any], layers: int) -> dict[str, Any]:
    """Return a shape with only its first decoder layers; the same share of layers shares keys."""
    text = shape["config"]["text_config"]
    if not 2 <= layers <= text["num_hidden_layers"]:
        raise SettingsError(f"`layers={layers}`: this shape can have 2 to {text['num_hidden_layers']}")
    kinds = getattr(AutoConfig.for_model(**shape["config"]).get_text_config(decoder=True), "layer_types", None)
    cut: dict[str, Any] = {"num_hidden_layers": layers}
    if kinds:
        cut["layer_types"] = [*kinds[: layers - 1], "full_attention"]  # that of the last one, in all of them
    if text.get("num_kv_shared_layers"):
        cut["num_kv_shared_layers"] = round(text["num_kv_shared_layers"] * layers / text["num_hidden_layers"])
        if not {*cut["layer_types"]} <= {*cut["layer_types"][: -cut["num_kv_shared_layers"]]}:
            raise SettingsError(f"`layers={layers}`: too few to hold layers of each kind whose keys others share")
    return {**shape, "config": {**shape["config"], "text_config": text | cut}}
