"""Measure a real model's shape with only its first decoder layers: `python -m tools.part_of_shape NAME LAYERS -o FILE`.

Times are processor times. A decoder's cost does not depend on the values of its weights, which are random.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from sira_cli.analysis.bench.measure import bench
from sira_cli.analysis.bench.random_models import make_lvlm, read
from sira_cli.errors import SettingsError
from sira_cli.methods import find
from sira_cli.models import presets


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


def main() -> None:
    """Measure greedy, SIRA and VCD, and write the report."""
    parser = argparse.ArgumentParser(prog="python -m tools.part_of_shape", description=__doc__)
    parser.add_argument("name")
    parser.add_argument("layers", type=int)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--image-tokens", type=int, default=600)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.json")
    given = parser.parse_args()
    whole, preset = read(given.name), presets.find(given.name)
    of = whole["config"]["text_config"]["num_hidden_layers"]
    preset = preset.model_copy(update={"name": f"{given.name} with {given.layers} of {of} layers"})
    lvlm = make_lvlm(shortened(whole, given.layers), preset, find("sira"))
    sizes = {"lengths": [given.tokens], "batches": [given.batch], "image_tokens": given.image_tokens}
    (report,) = bench(lvlm, ["sira", "vcd"], **sizes, runs=given.runs, processor_time=True)
    given.output.write_text(report.to_json() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
