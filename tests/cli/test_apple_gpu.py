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
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import dispatch_model
from torch.utils._pytree import tree_flatten

from sira_cli.cli import main
from sira_cli.models import load as loading

PICTURE = str(Path(__file__).parents[2] / "examples" / "scene-2900010.png")
REFUSED = {torch.float64, torch.complex128, torch.uint16, torch.uint32, torch.uint64}
REFUSED |= {torch.float8_e4m3fn, torch.float8_e5m2}


def ran(folder: Path, *names: str) -> dict[str, list[str]]:
    """Run commands in a process of their own, all of them without names; return the devices of each one's models."""
    command = [sys.executable, "-m", "tests.cli.test_apple_gpu", str(folder), *names]
    environment = {**os.environ, "SIRA_HOME": str(folder / "home")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_trace_and_its_page(tmp_path):
    assert ran(tmp_path, "trace", "report") == {"trace": ["card:0"], "report": []}  # the report needs no model


@pytest.mark.slow
def test_every_command(tmp_path):
    found = ran(tmp_path)
    assert len(found) >= 15
    assert {name for name, devices in found.items() if devices != ["card:0"]} == {"report"}


@contextmanager
def models_on_the_device() -> Iterator[list[Any]]:
    """Put every model that is loaded inside the block on the device, which refuses the types above."""
    from tests.support import devices

    run, read, loaded = devices._run, loading.load_model, list[Any]()

    def refuse(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        result = run(func, args, kwargs)
        for each in tree_flatten((args, kwargs, result))[0]:
            if isinstance(each, torch.Tensor) and each.device.type == "card" and each.dtype in REFUSED:
                raise TypeError(f"Cannot convert a {each.dtype} tensor to MPS: {func}")
        return result

    def load_model(folder: Path, **options: Any) -> Any:
        model = read(folder, **options)
        model.tie_weights()
        loaded.append(dispatch_model(model, {"": devices.ONE}, main_device=devices.ONE, force_hooks=True))
        return loaded[-1]

    devices._run, loading.load_model = refuse, load_model
    with devices.several_devices():
        yield loaded


def commands(folder: Path) -> dict[str, list[str]]:
    """Return the commands by name; later ones read what earlier ones wrote."""
    demo = ["-p", "demo", "-vv"]
    six, few = [*demo, "--set", "max_new_tokens=6"], [*demo, "--max-new-tokens", "6"]
    captions, trace, pope = str(folder / "captions.jsonl"), str(folder / "trace.jsonl"), folder / "pope.jsonl"
    question = {"question_id": 1, "image": Path(PICTURE).name, "text": "is there a tree in the image?", "label": "yes"}
    pope.write_text(json.dumps(question) + "\n")
    sampled = ["--temperature", "0.7", "--top-p", "0.9"]
    methods = "greedy,greedy+apc,sira,text-only,vcd,icd,m3id,sid,dola"
    return {
        "caption": ["caption", PICTURE, *few, "-o", captions, "--words"],
        "caption, sampled, all methods": ["caption", PICTURE, *few, *sampled, "--method", methods],
        "caption, opera": ["caption", PICTURE, *few, "--method", "opera"],
        "ask": ["ask", PICTURE, "Is there a tree?", *few, "--choices", "Yes,No"],
        "check --verify": ["check", captions, *demo, "-o", str(folder / "checked.jsonl")],
        "caption --verify": ["caption", PICTURE, *few[:-1], "24", "--verify", "guide"],
        "trace": ["trace", PICTURE, *few, "-o", trace, "--full-logits", str(folder / "full.safetensors")],
        "report": ["report", trace, "-o", str(folder / "report.html")],
        "drift": ["drift", PICTURE, *six],
        "calibrate support": ["calibrate", "support", *demo, "--scenes", "--limit", "4"],
        "calibrate maskcd": ["calibrate", "maskcd", PICTURE, *six],
        "calibrate ict": ["calibrate", "ict", *demo, "--scenes", "--limit", "8"],
        "bench": ["bench", *demo, "--method", "sira", "--max-new-tokens", "2", "--runs", "1"],
        "eval": ["eval", "pope", str(pope), "--images", str(Path(PICTURE).parent), *demo, "--max-new-tokens", "2"],
        "sweep": ["sweep", *six, "--captions", "--k", "4", "--alpha", "0.5", "--limit", "1"],
    }


def run_all(folder: Path, names: list[str]) -> dict[str, list[str]]:
    """Run commands, by default all of them; return the devices of each one's models. One that fails ends it."""
    found = {}
    with models_on_the_device() as loaded:
        for name, args in commands(folder).items():
            if not names or name in names:
                loaded.clear()
                sys.argv = ["sira", *args]
                with redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)):
                    try:
                        main()
                    except SystemExit as end:
                        if end.code:
                            raise
                found[name] = sorted({str(weight.device) for model in loaded for weight in model.parameters()})
    return found


if __name__ == "__main__":
    print(json.dumps(run_all(Path(sys.argv[1]), sys.argv[2:])))
