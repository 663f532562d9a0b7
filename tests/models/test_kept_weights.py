"""Quantized matrices that a second start takes from the cache."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open

from sira_cli import load
from sira_cli.models.loading import few_bits, kept_weights, presets
from sira_cli.models.loading.few_bits import FewBitsLinear, Int8Linear
from sira_cli.models.loading.packed import stored_bytes
from tests.models.test_packed import in_bfloat16

pytestmark = pytest.mark.skipif(few_bits.columns_together() is None, reason="torch has no such kernel here")


@pytest.fixture
def quantized(monkeypatch):
    """Layers that were quantized; cleared by the test."""
    found, pack = [], Int8Linear.pack
    monkeypatch.setattr(kept_weights, "LEAST", 0)
    few_bits.columns_together.cache_clear()  # asked for while transformers makes tensors without memory
    monkeypatch.setattr(Int8Linear, "pack", lambda layer, weight: (found.append(layer), pack(layer, weight)))
    return found


def matrices(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {
        f"{name}.{part}": getattr(layer, part).clone()
        for name, layer in model.named_modules()
        if isinstance(layer, FewBitsLinear)
        for part in layer.parts_of_matrix
    }


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def kept() -> Path:
    (path,) = (presets.cache() / "weights").iterdir()
    return path


@pytest.mark.parametrize(
    ("name", "dtype", "tied"), [("int4", "bfloat16", False), ("int4", "float32", True), ("int8", "float32", False)]
)
def test_a_second_start_has_the_same_model_and_quantizes_nothing(qwen_folder, tmp_path, quantized, name, dtype, tied):
    folder = in_bfloat16(qwen_folder, tmp_path / "model", tied=tied)
    models = []
    for _ in range(2):
        quantized.clear()
        models.append(load(folder, quantization=name, dtype=dtype, device="cpu").model)
    first, second = models
    assert quantized == []
    assert same(matrices(first), matrices(second))
    assert kept().stat().st_size <= (folder / "model.safetensors").stat().st_size
    assert stored_bytes(first) == stored_bytes(second)
    weights = dict(second.named_parameters(remove_duplicate=False))
    for path, weight in first.named_parameters(remove_duplicate=False):
        assert (weights[path].dtype, weights[path].device) == (weight.dtype, weight.device), path
        assert torch.equal(weights[path].nan_to_num(), weight.nan_to_num()), path  # NaN: of what is packed
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(first(input_ids=ids).logits, second(input_ids=ids).logits)


def test_what_does_not_fit_the_checkpoint_is_made_again(qwen_folder, tmp_path, quantized, monkeypatch):
    folder = in_bfloat16(qwen_folder, tmp_path / "model", tied=False)

    def start() -> dict[str, torch.Tensor]:
        quantized.clear()
        return matrices(load(folder, quantization="int8", dtype="bfloat16", device="cpu").model)

    first = start()
    whole = kept().read_bytes()
    for damaged in (whole[:-100], whole[:5], b"", whole.replace(b"layers.0.mlp", b"layers.9.mlp")):
        kept().write_bytes(damaged)
        assert same(start(), first)
        assert quantized
        assert kept().read_bytes() == whole
    os.utime(folder / "model.safetensors", ns=(1, 1))  # other weights of the same size
    start()
    assert quantized
    monkeypatch.setattr(kept_weights, "transformers", SimpleNamespace(__version__="6.0"))  # it may convert otherwise
    start()
    assert quantized
    with safe_open(kept(), "pt") as file:
        assert file.metadata()["origin"] == kept_weights.origin_of(folder)


@pytest.mark.parametrize("reason", ["full", "not a folder"])
def test_a_cache_that_cannot_be_written_is_a_warning(qwen_folder, tmp_path, quantized, monkeypatch, caplog, reason):
    folder = in_bfloat16(qwen_folder, tmp_path / "model", tied=False)
    place = presets.cache() / "weights"
    if reason == "full":
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    else:
        place.parent.mkdir(parents=True)
        place.write_text("")
    assert load(folder, quantization="int8", device="cpu").model is not None
    assert "every start quantizes them" in caplog.text
    assert reason != "full" or os.strerror(errno.ENOSPC) in caplog.text
    assert not place.is_dir() or not list(place.iterdir())
