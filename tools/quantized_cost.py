"""The cost of greedy decoding and SIRA with quantized weights, compared with others in one run, in turn.

`python -m tools.quantized_cost bfloat16 bfloat16:int8 bfloat16:int4 -o docs/bench/cpu-quantized.json`
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from sira_cli.analysis.bench.figures import Measure, Spread
from sira_cli.analysis.bench.measure import Timing, device_name, measure, pictures, prompts
from sira_cli.analysis.bench.random_models import load_shape
from sira_cli.core.families import text_stack
from sira_cli.demo.scene_report import markdown
from sira_cli.methods import find
from sira_cli.models.loading.packed import stored_bytes
from sira_cli.models.lvlm import Lvlm
from tools.docs import BENCH

METHODS = ("greedy", "sira")
NF4 = "4bit"


def load_way(shape: str, layers: int, way: str) -> Lvlm:
    """Make a model with random weights.

    Args:
        shape, layers: as for `load_shape`.
        way: precision and quantization, such as `bfloat16`, `float32:int8`, or `bfloat16:4bit` (bitsandbytes).
    """
    dtype, _, quantization = way.partition(":")
    own = quantization if quantization != NF4 else ""
    lvlm = load_shape(shape, find("sira"), "cpu", layers=layers, quantization=own or None, dtype=dtype)
    if quantization == NF4:
        _put_nf4(text_stack(lvlm.model).layers)
    ctypes.CDLL(None).malloc_trim(0)  # glibc keeps the memory of the matrices before they were packed
    return lvlm


def _put_nf4(layers: nn.Module) -> None:
    bnb = importlib.import_module("bitsandbytes")  # in no list of packages: the table is for those who choose
    for part in list(layers.modules()):
        for name, layer in list(part.named_children()):
            if type(layer) is nn.Linear:
                new = bnb.nn.Linear4bit(
                    layer.in_features, layer.out_features, bias=layer.bias is not None, compute_dtype=torch.bfloat16
                )
                new.weight = bnb.nn.Params4bit(
                    layer.weight.data, requires_grad=False, quant_type="nf4", compress_statistics=True
                )
                new.bias = layer.bias
                setattr(part, name, new.to("cpu").eval())


def _nf4_scales(model: nn.Module) -> int:
    """Return the bytes of the scales of nf4, which are no parameters."""
    states = [getattr(weight, "quant_state", None) for weight in model.parameters()]
    return sum(state.absmax.nbytes for state in states if state is not None)


def measure_ways(lvlms: dict[str, Lvlm], image_tokens: int, tokens: int, runs: int) -> dict[str, Any]:
    """Return prefills and steps of every way and method, each compared with the first way's in the same round."""
    first, *_ = lvlms
    decoders = {(way, name): lvlm.under(find(name)) for way, lvlm in lvlms.items() for name in METHODS}
    images, asked = pictures(lvlms[first].processor, image_tokens, 1), prompts("Describe.", 1)
    seen: dict[tuple[str, str], list[Timing]] = {decoder: [] for decoder in decoders}
    prompt = image = 0
    for number in range(runs + 1):
        for decoder, lvlm in decoders.items():
            inputs = lvlm.prepare(images, asked).to("cpu", dtype=lvlm.model.dtype)
            image, prompt = map(sum, lvlm.lengths(inputs))
            timing = measure(lvlm, inputs, tokens if number else 2, clock=time.process_time)
            if number:
                seen[decoder].append(timing)
    rows = []
    for (way, name), runs_ in seen.items():
        step = Measure.of(runs_, seen[first, name], lambda run: median(run.steps))
        whole = Measure.of(runs_, seen[first, name], lambda run: run.tokens[0])
        rows.append({"way": way, "method": name, "step": step, "first_token": whole})
    sizes = {way: stored_bytes(lvlm.model) + _nf4_scales(lvlm.model) for way, lvlm in lvlms.items()}
    return {"prompt_tokens": prompt, "image_tokens": image, "weights": sizes, "rows": rows}


def table(*records: dict[str, Any]) -> str:
    """Return the records in Markdown, a row per way."""
    rows = [["", "weights", "memory", *(f"{name}: {part}" for name in METHODS for part in ("first token", "step"))]]
    for record in records:
        first, *_ = record["weights"]
        for way, size in record["weights"].items():
            cells = [f"{size / record['weights'][first]:.2f}"]
            for row in (row for row in record["rows"] if row["way"] == way):
                cells += [_cell(row[part], way == first) for part in ("first_token", "step")]
            machine = f"{record['instructions']}, {record['image_tokens']} image tokens"
            rows.append([machine if way == first else "", way.replace(":", ", "), *cells])
    return markdown(rows)


def _cell(measured: dict[str, Any], is_first: bool) -> str:
    """Return the seconds of the first way, and the ratios of the others to it."""
    if is_first:
        return f"{measured['seconds']['median']:.2f} s"
    return f"{Spread(**measured['ratio'])}"


def shipped() -> str:
    """Return the table of all records."""
    paths = [BENCH / f"cpu-quantized{part}.json" for part in ("", "-avx2")]
    return table(*(json.loads(path.read_text(encoding="utf-8")) for path in paths))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.quantized_cost", description=__doc__)
    parser.add_argument("ways", nargs="+", metavar="DTYPE[:QUANTIZATION]", help="the first one is the baseline")
    parser.add_argument("--shape", default="qwen2.5-vl-3b")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--image-tokens", type=int, default=600)
    parser.add_argument("--tokens", type=int, default=10)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args(arguments)
    lvlms = {way: load_way(given.shape, given.layers, way) for way in given.ways}
    record = {
        "shape": lvlms[given.ways[0]].preset.name,
        "device": device_name(torch.device("cpu")),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "runs": given.runs,
        **measure_ways(lvlms, given.image_tokens, given.tokens, given.runs),
    }
    text = json.dumps(record, default=vars, indent=1)
    if given.output is not None:
        given.output.write_text(text + "\n", encoding="utf-8")
    print(table(json.loads(text)))


if __name__ == "__main__":
    main()
