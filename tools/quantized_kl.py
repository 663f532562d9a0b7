"""The change of next-token distributions by fewer bits, on small random twins of six families and the bundled model.

`python -m tools.quantized_kl -o` writes `docs/bench/quantized-kl.json`.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sira_cli import load
from sira_cli.analysis.proof.seen import what_is_seen
from sira_cli.analysis.proof.twin import Twin, build_twin
from sira_cli.core.families import fork_place
from sira_cli.core.rules import kl_divergence
from sira_cli.demo.questions import held_out
from sira_cli.demo.scene_report import markdown
from sira_cli.demo.scenes import TEST_SEEDS, render
from sira_cli.models.loading import presets
from sira_cli.models.loading.few_bits import kinds, share_table
from sira_cli.models.loading.inspection import check_structure
from sira_cli.models.loading.packed import Packing, pack_rest, put_packed
from tests.support import layouts
from tools.docs import BENCH

FILE = BENCH / "quantized-kl.json"
NAMES = ("llava-1.5-7b", "qwen2.5-vl-7b", "qwen3-vl-8b", "gemma3-4b", "internvl3-8b", "smolvlm2-2.2b")
SCENES = 16
WAYS = {"bfloat16": None, "int8": "int8", "int4": "int4"}  # quantized weights are multiplied with rows in bfloat16


def twin_of(name: str) -> Twin:
    """Return the twin of a shipped preset's model, with a drawn scene and its caption prompt."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / name
        layouts.write_files(name, folder)
        preset = presets.read(presets.SHIPPED / f"{name}.yaml").model_copy(update={"model": str(folder)})
        model = check_structure(folder, preset, trust_remote_code=False)
        _, boundary = fork_place(model, preset.sira_config)
        _, inputs, finder, _ = what_is_seen(folder, model, preset, render(held_out(TEST_SEEDS[0]))[0])
        return build_twin(model, boundary, finder, inputs)


def bundled() -> tuple[Any, list[dict[str, Tensor]]]:
    """Return the bundled model, and its inputs of several test scenes."""
    lvlm = load("demo", method="greedy", device="cpu", dtype="bfloat16")
    pictures = [render(held_out(seed))[0] for seed in TEST_SEEDS[:SCENES]]
    return lvlm.model, [dict(lvlm.prepare([each], [lvlm.preset.prompts.caption])) for each in pictures]


def sampled(model: Any, inputs: dict[str, Tensor], grown: Mapping[str, int], **options: Any) -> dict[str, Tensor]:
    """Return the inputs with a text that the model samples."""
    ids: Tensor = model.generate(**inputs, do_sample=True, top_k=0, **options)
    new = ids.shape[1] - inputs["input_ids"].shape[1]
    per_token = {"attention_mask": 1, **grown}
    longer = {name: torch.cat([inputs[name], torch.full((1, new), last)], dim=1) for name, last in per_token.items()}
    return {**inputs, **longer, "input_ids": ids}


@torch.no_grad()
def log_p(model: Any, texts: Sequence[dict[str, Tensor]], starts: Sequence[int]) -> Tensor:
    """Return log probabilities `[T, V]` of all tokens after the prompts."""
    found = []
    for inputs, start in zip(texts, starts, strict=True):
        given = {name: each.to(model.dtype) if each.is_floating_point() else each for name, each in inputs.items()}
        found.append(model(**given, use_cache=False).logits[0, start - 1 : -1].float().log_softmax(dim=-1))
    return torch.cat(found)


def measure_kl(model: Any, texts: Sequence[dict[str, Tensor]], starts: Sequence[int]) -> dict[str, Any]:
    """Return means over the tokens of texts.

    Args:
        model: in float32; its weights are bfloat16 values.
        texts: inputs, each with a text after its prompt.
        starts: lengths of the prompts.
    """
    own = log_p(model, texts, starts)
    row: dict[str, Any] = {"entropy": float(-(own.exp() * own).sum(dim=-1).mean()), "tokens": len(own), "ways": {}}
    for way, quantization in WAYS.items():
        other = copy.deepcopy(model).bfloat16()
        if quantization is not None:
            put_packed(other, kinds(other, quantization, half=False))
            pack_rest(other, Packing())
            share_table(other)
        found = log_p(other, texts, starts)
        same = (found.argmax(dim=-1) == own.argmax(dim=-1)).float().mean()
        row["ways"][way] = {"kl": float(kl_divergence(own, found).mean()), "same": float(same)}
    return row


def measure_all(tokens: int) -> dict[str, Any]:
    """Return the rows of all models; `tokens`: of a twin's text."""
    rows = {}
    torch.manual_seed(0)
    for name in NAMES:
        twin = twin_of(name)
        model, start = twin.model.bfloat16().float(), twin.inputs["input_ids"].shape[1]
        length = {"max_new_tokens": tokens, "min_new_tokens": tokens, "suppress_tokens": [*twin.silent]}
        rows[f"twin of {name}"] = measure_kl(model, [sampled(model, {**twin.inputs}, twin.grown, **length)], [start])
    model, prompts = bundled()
    model = model.float()
    texts = [sampled(model, each, {}, max_new_tokens=tokens) for each in prompts]
    rows["bundled model"] = measure_kl(model, texts, [each["input_ids"].shape[1] for each in prompts])
    return rows


def table(record: dict[str, Any]) -> str:
    """Return the record in Markdown: KL in nats, and the share of tokens of equal greatest probability."""
    rows = [["", "entropy", *(f"{way}: {part}" for way in WAYS for part in ("KL", "same"))]]
    for name, row in record.items():
        cells = [text for found in row["ways"].values() for text in (f"{found['kl']:.5f}", f"{found['same']:.0%}")]
        rows.append([name, f"{row['entropy']:.2f}", *cells])
    return markdown(rows)


def shipped() -> str:
    """Return the table of the record."""
    return table(json.loads(FILE.read_text(encoding="utf-8")))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.quantized_kl", description=__doc__)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("-o", "--output", type=Path, nargs="?", const=FILE)
    given = parser.parse_args(arguments)
    record = measure_all(given.tokens)
    if given.output is not None:
        given.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(table(record))


if __name__ == "__main__":
    main()
