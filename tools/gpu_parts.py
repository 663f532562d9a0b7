"""The parts of `tools/gpu_check.sh` without a command of sira: conformance, memory.

python -m tools.gpu_parts conformance --dtype bfloat16 -o conformance.json
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sira_cli.core import reference
from sira_cli.core.config import SiraConfig
from sira_cli.core.fork import attach
from sira_cli.core.streams import Step
from sira_cli.pictures.sources import located
from sira_cli.run.events import Failed, Halved
from sira_cli.run.lvlm import Lvlm, load
from sira_cli.run.run import Local
from sira_cli.run.task import Caption

LINE = "figures: "  # begins the line that tells the result
SKIPPED = 77  # exit status where a part cannot run; the last line is the reason
STEPS = 6
TOLERANCE = 1e-3  # of logits in float32; sums are in another order than on a CPU
SHAPE = "qwen2.5-vl-7b"
SPARE = 3e9  # bytes besides the weights, where memory is to end


def conformance(dtype: str, tiny: bool) -> dict[str, Any]:
    """Compare the fork with a literal Algorithm 1, on tiny models of all families, on the GPU.

    In float32 the tokens are equal, and the logits of both streams within `TOLERANCE`. In 16 bits, the fork is at most
    twice as far from Algorithm 1 in float32 as Algorithm 1 in 16 bits is, up to the first token that differs.
    """
    families = importlib.import_module("tests.support.tiny")
    device, precision = torch.device("cpu" if tiny else "cuda"), getattr(torch, dtype)
    torch.backends.cudnn.allow_tf32 = False
    rows = []
    for name, build in list(families.FAMILIES.items())[: 3 if tiny else None]:
        for k in build().boundaries[: 1 if tiny else None]:
            exact = reference.decode(_placed(build(), device, torch.float32, precision), k, 0.5, STEPS)
            case = _placed(build(), device, precision, precision)
            slow = exact if precision == torch.float32 else reference.decode(case, k, 0.5, STEPS)
            row = {"family": name, "k": k, **_compared(case, k, exact, slow, families.SUPPRESS)}
            print(json.dumps(row), flush=True)
            rows.append(row)
    wrong = [f"{row['family']}, K = {row['k']}" for row in rows if not row["equal"]]
    if wrong:
        sys.exit(f"differs from Algorithm 1: {'; '.join(wrong)}")
    worst = max(row["difference"] for row in rows)
    print(f"{LINE}{len(rows)} comparisons; worst difference of logits {worst:.1e}, least gap of streams "
          f"{min(row['gap'] for row in rows):.2f}")  # fmt: skip
    return {"device": str(device), "dtype": dtype, "rows": rows}


def _placed(case: Any, device: torch.device, dtype: torch.dtype, rounded: torch.dtype) -> Any:
    """Move a family's model and prompt to a device and a precision, after rounding to another one."""
    model = case.model.to(rounded).to(device, dtype)
    inputs = {
        name: value.to(rounded).to(device, dtype) if value.is_floating_point() else value.to(device)
        for name, value in case.inputs.items()
    }
    return type(case)(model, inputs, case.grown, case.boundaries)


def _compared(case: Any, k: int, exact: Any, slow: Any, suppress: list[int]) -> dict[str, Any]:
    """Decode with the fork, and return its distance from the exact logits, and that of slow decoding."""
    steps: list[Step] = []
    with attach(case.model, SiraConfig(k=k, alpha=0.5), on_step=steps.append):
        output = case.model.generate(
            **case.inputs, max_new_tokens=STEPS, do_sample=False, eos_token_id=None, suppress_tokens=suppress
        )
    tokens = output[0, case.inputs["input_ids"].shape[1] :].tolist()
    full, cf = torch.cat([step.full for step in steps]), torch.cat([step.cf for step in steps])
    same = next((n for n in range(STEPS) if len({each[n] for each in (tokens, exact.tokens, slow.tokens)}) > 1), STEPS)
    rows = slice(0, min(same + 1, STEPS))  # the logits after the first difference are of other texts
    own, other = (
        max(float((one - two)[rows].abs().max()) for one, two in ((a, exact.full), (b, exact.cf)))
        for a, b in ((full, cf), (slow.full, slow.cf))
    )
    as_exact = tokens == exact.tokens and own < TOLERANCE
    equal = as_exact if slow is exact else own <= 2 * other + TOLERANCE
    gap = float((exact.full - exact.cf)[rows].abs().max())
    return {"equal": equal, "same_tokens": same, "difference": own, "of_precision": other, "gap": gap}


def auto(tiny: bool) -> dict[str, Any]:
    """Let a run find its batch size, and compare its memory with the free memory."""
    lvlm = _model(tiny)
    with tempfile.TemporaryDirectory() as folder:
        pictures = _pictures(lvlm, Path(folder), 4 if tiny else 96)
        run = Local(lvlm, "auto")
        run.begin(Caption.of(lvlm.preset, lvlm.decoder, "Describe this image."))
        sizes = [event for event in run.results(pictures) if isinstance(event, Halved)]
    facts = run.facts()
    found = {"batch_size": facts["batch_size"], "halved": len(sizes), "peak": facts["peak_memory_bytes"]}
    if not tiny:
        found["memory"] = torch.cuda.get_device_properties(0).total_memory
    if sizes:
        sys.exit(f"the batch size found was too large: {sizes[0]}")
    if facts["batch_size"] < 2:
        sys.exit("the batch size found is 1")
    peak = max(found["peak"].values())
    print(f"{LINE}-b auto took {facts['batch_size']}; peak {peak / 1e9:.1f} GB")
    return found


def limit(tiny: bool) -> dict[str, Any]:
    """Check a run that asks for too much memory: the batch is halved, and every picture gets its text."""
    if tiny:
        print("no GPU")
        sys.exit(SKIPPED)
    lvlm = _model(tiny)
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_allocated() + SPARE) / total)
    with tempfile.TemporaryDirectory() as folder:
        pictures = _pictures(lvlm, Path(folder), 64)
        run = Local(lvlm, 64)
        run.begin(Caption.of(lvlm.preset, lvlm.decoder, "Describe this image."))
        events = list(run.results(pictures))
    halved = [event for event in events if isinstance(event, Halved)]
    failed = [event.record.error for event in events if isinstance(event, Failed)]
    if failed or not halved:
        sys.exit(failed[0] if failed else "memory sufficed: nothing was tried")
    print(
        f"{LINE}with {SPARE / 1e9:g} GB besides the weights, {len(pictures)} pictures: batch 64, then {run.batch_size}"
    )
    return {"batch_size": run.batch_size, "halved": len(halved)}


def _model(tiny: bool) -> Lvlm:
    if tiny:
        return load("demo", device="cpu", max_new_tokens=4)
    from sira_cli.analysis.bench.random_models import load_shape
    from sira_cli.methods import find

    return load_shape(SHAPE, find("sira"), "cuda", max_new_tokens=128)


def _pictures(lvlm: Lvlm, folder: Path, count: int) -> list[tuple[Any, str]]:
    """Write pictures of noise of mixed sizes."""
    from sira_cli.analysis.bench.measure import pictures

    for number, image in enumerate(pictures(lvlm.processor, 1300, count)):
        image.save(folder / f"{number:03}.jpg", quality=90)
    return [(located(str(path)), path.name) for path in sorted(folder.glob("*.jpg"))]


PARTS: dict[str, Callable[[bool], dict[str, Any]]] = {"auto": auto, "limit": limit}


def main() -> None:
    """Run a part."""
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_parts", description=__doc__)
    parser.add_argument("part", choices=["conformance", *PARTS])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--tiny", action="store_true", help="on the CPU")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.json")
    given = parser.parse_args()
    found = conformance(given.dtype, given.tiny) if given.part == "conformance" else PARTS[given.part](given.tiny)
    given.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
