"""Commands on a device that has what a Mac's GPU has.

There is no Mac here, so this file is also a program that puts every model on a device of `tests.support.devices`, for
good. Its tensors compute on the CPU, but there are none of the types that `getMPSDataType` refuses (pytorch:
aten/src/ATen/native/mps/OperationUtils.mm): float64, complex128, unsigned integers of more than 8 bits, and the 8-bit
floats. What cannot be seen so: kernels that MPS does not have, or that compute something else.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import dispatch_model
from torch.utils._pytree import tree_flatten

from sira_cli.cli import main
from sira_cli.models import load as loading

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "examples" / "scene-2900010.png"
REFUSED = {torch.float64, torch.complex128, torch.uint16, torch.uint32, torch.uint64}
REFUSED |= {torch.float8_e4m3fn, torch.float8_e5m2}
FEW, METHODS = "-p demo -vv --set max_new_tokens=6", "greedy,greedy+apc,sira,text-only,vcd,icd,m3id,sid,dola"
COMMANDS = (  # later ones read what earlier ones wrote
    f"trace {PICTURE} {FEW} -o trace.jsonl --full-logits full.safetensors",
    "report trace.jsonl -o report.html",  # the only one without a model
    f"caption {PICTURE} {FEW} -o captions.jsonl --words",
    f"caption {PICTURE} {FEW} --temperature 0.7 --top-p 0.9 --method {METHODS}",
    f"caption {PICTURE} {FEW} --method opera",
    f"ask {PICTURE} 'Is there a tree?' {FEW} --choices Yes,No",
    "check captions.jsonl -p demo -vv -o checked.jsonl",
    f"caption {PICTURE} -p demo -vv --max-new-tokens 24 --verify guide",
    f"drift {PICTURE} {FEW}",
    "calibrate support -p demo -vv --scenes --limit 4",
    f"calibrate maskcd {PICTURE} {FEW}",
    "calibrate ict -p demo -vv --scenes --limit 8",
    "calibrate vti -p demo -vv --limit 3",
    "bench -p demo -vv --method sira --max-new-tokens 2 --runs 1",
    f"eval pope pope.jsonl --images {PICTURE.parent} {FEW}",
    f"sweep {FEW} --captions --k 4 --alpha 0.5 --limit 1",
)
QUESTION = {"question_id": 1, "image": PICTURE.name, "text": "is there a tree in the image?", "label": "yes"}


@pytest.mark.parametrize("count", [2, pytest.param(len(COMMANDS), marks=pytest.mark.slow)])
def test_commands_run_there(tmp_path, count):
    (tmp_path / "pope.jsonl").write_text(json.dumps(QUESTION) + "\n")
    environment = {**os.environ, "SIRA_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.cli.test_apple_gpu", *COMMANDS[:count]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [["card:0"], [], *[["card:0"]] * (count - 2)]


def run_all(commands: list[str]) -> list[list[str]]:
    """Run commands with each model on the device; return the devices of each one's models. One that fails ends it."""
    from tests.support import devices

    run, read, loaded = devices._run, loading.load_model, list[Any]()

    def refuse(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        result = run(func, args, kwargs)
        for each in tree_flatten((args, kwargs, result))[0]:
            if isinstance(each, torch.Tensor) and each.device.type == "card" and each.dtype in REFUSED:
                raise TypeError(f"Cannot convert a {each.dtype} tensor to MPS: {func}")
        return result

    def load_model(folder: Path, options: loading.WeightOptions) -> Any:
        model = read(folder, options)
        model.tie_weights()
        loaded.append(dispatch_model(model, {"": devices.ONE}, main_device=devices.ONE, force_hooks=True))
        return loaded[-1]

    devices._run, loading.load_model, found = refuse, load_model, []
    with devices.several_devices():
        for command in commands:
            loaded.clear()
            sys.argv = ["sira", *shlex.split(command)]
            with redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)):
                try:
                    main()
                except SystemExit as end:
                    if end.code:
                        raise
            found.append(sorted({str(weight.device) for model in loaded for weight in model.parameters()}))
    return found


if __name__ == "__main__":
    print(json.dumps(run_all(sys.argv[1:])))
