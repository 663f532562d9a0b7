"""Compare the fork with a literal Algorithm 1, on tiny models of all families, on the GPU if the machine has one.

python -m tools.gpu_conformance --dtype bfloat16 -o conformance.json
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from sira_cli.core import reference
from sira_cli.core.config import SiraConfig
from sira_cli.core.fork import attach
from sira_cli.core.streams import Step
from tests.support import tiny

STEPS = 6
TOLERANCE = 1e-3  # of logits in float32; sums are in another order than on a CPU


def conformance(dtype: str) -> dict[str, Any]:
    """Return the distance of the fork from Algorithm 1 for each family and K.

    In float32 the tokens are equal, and the logits of both streams within `TOLERANCE`. In 16 bits, the fork is at most
    twice as far from Algorithm 1 in float32 as Algorithm 1 in 16 bits is, up to the first token that differs.
    """
    device, precision = torch.device("cuda" if torch.cuda.is_available() else "cpu"), getattr(torch, dtype)
    torch.backends.cudnn.allow_tf32 = False
    rows = []
    for name, build in tiny.FAMILIES.items():
        for k in build().boundaries:
            exact = reference.decode(_placed(build(), device, torch.float32, precision), k, 0.5, STEPS)
            case = _placed(build(), device, precision, precision)
            slow = exact if precision == torch.float32 else reference.decode(case, k, 0.5, STEPS)
            row = {"family": name, "k": k, **_compared(case, k, exact, slow)}
            print(json.dumps(row), flush=True)
            rows.append(row)
    wrong = [f"{row['family']}, K = {row['k']}" for row in rows if not row["equal"]]
    if wrong:
        sys.exit(f"differs from Algorithm 1: {'; '.join(wrong)}")
    return {"device": str(device), "dtype": dtype, "rows": rows}


def _placed(case: Any, device: torch.device, dtype: torch.dtype, rounded: torch.dtype) -> Any:
    """Move a family's model and prompt to a device and a precision, after rounding to another one."""
    model = case.model.to(rounded).to(device, dtype)
    inputs = {
        name: value.to(rounded).to(device, dtype) if value.is_floating_point() else value.to(device)
        for name, value in case.inputs.items()
    }
    return type(case)(model, inputs, case.grown, case.boundaries)


def _compared(case: Any, k: int, exact: Any, slow: Any) -> dict[str, Any]:
    """Decode with the fork, and return its distance from the exact logits, and that of slow decoding."""
    steps: list[Step] = []
    with attach(case.model, SiraConfig(k=k, alpha=0.5), on_step=steps.append):
        output = case.model.generate(
            **case.inputs, max_new_tokens=STEPS, do_sample=False, eos_token_id=None, suppress_tokens=tiny.SUPPRESS
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


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_conformance", description=__doc__)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.json")
    given = parser.parse_args()
    given.output.write_text(json.dumps(conformance(given.dtype), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
