"""A program for `tests/cli/test_apple_gpu.py`: commands whose model is on a device that has what a Mac's GPU has.

The device is one of `tests.support.devices`, which registers it for good. Its tensors compute on the CPU, but there are
none of the types that `getMPSDataType` refuses (pytorch: aten/src/ATen/native/mps/OperationUtils.mm): float64,
complex128, unsigned integers of more than 8 bits, and the 8-bit floats. Prints JSON: exit code and errors by command.
"""

from __future__ import annotations

import io
import json
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from accelerate import dispatch_model
from torch.utils._pytree import tree_flatten

from sira_cli.cli import main
from sira_cli.models import load as loading
from tests.support import devices

REFUSED = {torch.float64, torch.complex128, torch.uint16, torch.uint32, torch.uint64}
REFUSED |= {torch.float8_e4m3fn, torch.float8_e5m2}


def refuse(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation, and refuse a result or an argument on the device that a Mac's GPU cannot hold."""
    result = _run(func, args, kwargs)
    for each in tree_flatten((args, kwargs, result))[0]:
        if isinstance(each, torch.Tensor) and each.device.type == "card" and each.dtype in REFUSED:
            raise TypeError(f"Cannot convert a {each.dtype} tensor to MPS: {func}")
    return result


_run, devices._run = devices._run, refuse


@contextmanager
def model_on_the_device() -> Iterator[list[Any]]:
    """Put every model that is loaded inside the block on the device."""
    read, loaded = loading.load_model, list[Any]()

    def load_model(folder: Path, **options: Any) -> Any:
        model = read(folder, **options)
        model.tie_weights()
        model = dispatch_model(model, {"": devices.ONE}, main_device=devices.ONE, force_hooks=True)
        loaded.append(model)
        return model

    loading.load_model = load_model
    try:
        yield loaded
    finally:
        loading.load_model = read


def run(*args: str) -> tuple[int, str]:
    """Run a command, and return its exit code and what it wrote to stderr."""
    out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True), io.StringIO()
    sys.argv = ["sira", *args]
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            code = traceback.format_exc()[-600:]
    return code, err.getvalue()


def commands(folder: Path, picture: str) -> dict[str, list[str]]:
    """Return the commands by name; later ones read what earlier ones wrote."""
    demo = ["-p", "demo", "-vv"]
    few = [*demo, "--max-new-tokens", "6"]
    captions, trace = str(folder / "captions.jsonl"), str(folder / "trace.jsonl")
    pope = folder / "pope.jsonl"
    rows = [("is there a tree in the image?", "yes"), ("is there a train in the image?", "no")]
    lines = [
        {"question_id": number, "image": Path(picture).name, "text": text, "label": label}
        for number, (text, label) in enumerate(rows, 1)
    ]
    pope.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {
        "caption": ["caption", picture, *few, "-o", captions, "--words"],
        "caption, sampled, all methods": [
            *("caption", picture, *few, "--temperature", "0.7", "--top-p", "0.9", "--method"),
            "greedy,greedy+apc,sira,text-only,vcd,icd,m3id,sid,dola",
        ],
        "caption, opera": ["caption", picture, *few, "--method", "opera"],
        "ask": ["ask", picture, "Is there a tree?", *few, "--choices", "Yes,No"],
        "check --verify": ["check", captions, *demo, "-o", str(folder / "checked.jsonl")],
        "caption --verify": ["caption", picture, *few[:-1], "24", "--verify", "guide"],
        "trace": ["trace", picture, *few, "-o", trace, "--full-logits", str(folder / "full.safetensors")],
        "report": ["report", trace, "-o", str(folder / "report.html")],
        "drift": ["drift", picture, *demo, "--set", "max_new_tokens=6"],
        "calibrate support": ["calibrate", "support", *demo, "--scenes", "--limit", "4"],
        "calibrate maskcd": ["calibrate", "maskcd", picture, *demo, "--set", "max_new_tokens=6"],
        "calibrate ict": ["calibrate", "ict", *demo, "--scenes", "--limit", "8"],
        "bench": ["bench", *demo, "--method", "sira", "--max-new-tokens", "2", "--runs", "1"],
        "eval": ["eval", "pope", str(pope), "--images", str(Path(picture).parent), *demo, "--max-new-tokens", "2"],
        "sweep": [
            *("sweep", *demo, "--captions", "--k", "4", "--alpha", "0.5", "--limit", "1"),
            *("--set", "max_new_tokens=4"),
        ],
    }


def run_all(folder: Path, picture: str, names: list[str]) -> dict[str, Any]:
    """Run commands, by default all of them."""
    found = {}
    with devices.several_devices(), model_on_the_device() as loaded:
        for name, args in commands(folder, picture).items():
            if names and name not in names:
                continue
            loaded.clear()
            code, err = run(*args)
            placed = sorted({str(weight.device) for model in loaded for weight in model.parameters()})
            found[name] = {"code": code, "stderr": err[-1500:], "devices": placed}
    return found


if __name__ == "__main__":
    print(json.dumps(run_all(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])))
