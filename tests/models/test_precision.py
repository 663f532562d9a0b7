"""The precision `auto` on a processor."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from sira_cli import load
from sira_cli.models import placement
from sira_cli.models.placement import computes_in, on_processor


@pytest.fixture
def weights(tmp_path):
    """A checkpoint with a thousand bytes of weights, in two files."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.safetensors").write_bytes(bytes(500))
    return tmp_path


@pytest.mark.parametrize(
    ("own", "arithmetic", "free", "expected"),
    [
        (torch.bfloat16, True, 10_000, "auto"),
        (torch.bfloat16, False, 10_000, torch.float32),
        (torch.float16, False, 2_000, torch.float32),
        (torch.bfloat16, False, 1_999, "auto"),  # float32 would take 2,000 bytes
        (torch.float32, False, 10_000, "auto"),
        (None, False, 10_000, "auto"),
    ],
)
def test_float32_only_where_the_checkpoints_precision_is_slow_and_memory_suffices(
    weights, monkeypatch, caplog, own, arithmetic, free, expected
):
    monkeypatch.setattr(placement, "computes_in", lambda dtype: arithmetic)
    monkeypatch.setattr(placement.psutil, "virtual_memory", lambda: SimpleNamespace(available=free))
    caplog.set_level(logging.INFO, "sira_cli")
    assert on_processor(own, weights) == expected
    slow = own in (torch.bfloat16, torch.float16) and not arithmetic
    assert ("float32" in caplog.text) is slow


def test_what_this_processor_has_is_what_the_system_says():
    """The kernel lists what the processor can do; no such list, no test."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        pytest.skip("no /proc/cpuinfo")
    flags = {flag for line in lines if line.startswith("flags") for flag in line.split()}
    if "avx2" not in flags:
        pytest.skip("not an x86 processor")
    assert computes_in(torch.bfloat16) is bool({"avx512_bf16", "amx_bf16"} & flags)


@pytest.mark.parametrize(("dtype", "expected"), [("auto", "float32"), ("bfloat16", "bfloat16")])
def test_a_checkpoint_in_bfloat16(llava_folder, tmp_path, monkeypatch, dtype, expected):
    monkeypatch.setattr(placement, "computes_in", lambda dtype: False)
    shutil.copytree(llava_folder, tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"dtype": "bfloat16"}))
    assert load(tmp_path / "model", dtype=dtype, device="cpu").dtype == expected


def test_a_precision_that_only_the_text_stack_has(qwen_folder, tmp_path, monkeypatch):
    """As Qwen3-VL's config.json says it."""
    monkeypatch.setattr(placement, "computes_in", lambda dtype: False)
    shutil.copytree(qwen_folder, tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    config = json.loads(file.read_text())
    del config["dtype"]
    config["text_config"]["dtype"] = "bfloat16"
    file.write_text(json.dumps(config))
    weights = tmp_path / "model" / "model.safetensors"
    save_file({name: tensor.bfloat16() for name, tensor in load_file(weights).items()}, weights, {"format": "pt"})
    assert load(tmp_path / "model", device="cpu").dtype == "float32"
