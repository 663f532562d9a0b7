"""Matrices in 8 and 4 bits on a CPU: their numbers, their products, and Algorithm 1 on them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sira_cli import load
from sira_cli.analysis.proof.exact import compare_real
from sira_cli.errors import SettingsError
from sira_cli.models.loading import few_bits
from sira_cli.models.loading.few_bits import Int4Linear, Int8Linear, exact_products
from sira_cli.models.loading.packed import HalfLinear, packed_bytes, stored_bytes
from sira_cli.models.loading.presets import resolve
from sira_cli.models.loading.quantization import check_quantization, usable_quantizations
from sira_cli.pictures.sources import open_picture
from tests.models.test_packed import in_bfloat16
from tests.support import tiny

pytestmark = pytest.mark.skipif(few_bits.columns_together() is None, reason="torch has no such kernel here")


def quantized(kind: type[few_bits.FewBitsLinear], weight: torch.Tensor) -> few_bits.FewBitsLinear:
    original = nn.Linear(weight.shape[1], weight.shape[0])
    original.weight.data = weight
    layer = kind(original)
    layer.pack(layer.drop_weight())
    return layer


@pytest.mark.parametrize(("kind", "shape"), [(Int8Linear, (7, 16)), (Int8Linear, (64, 192)), (Int4Linear, (192, 128))])
@torch.no_grad()
def test_every_number_is_the_nearest_and_every_way_to_multiply_has_it(kind, shape, monkeypatch):
    monkeypatch.setattr(few_bits, "PART", 64 * 128)  # several parts
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0)).mul_(0.02)
    weight[0] = 0
    weight[1, 0] = 3.0  # an outlier costs its own output, or its group, only
    before = weight.clone()
    layer = quantized(kind, weight)
    assert torch.equal(weight, before)  # an output matrix may also be the embedding
    rows = torch.eye(shape[1])  # exact in bfloat16
    with exact_products(layer):
        dequantized = (layer(rows) - layer.bias).T
    if kind is Int8Linear:
        steps = weight.abs().amax(dim=1, keepdim=True) / 127
    else:
        groups = weight.view(shape[0], -1, 64)
        steps = ((groups.amax(dim=2) - groups.amin(dim=2)) / 15).repeat_interleave(64, dim=1)
    # Half a step, and what bfloat16 (8 bits) rounds of a scale and of a zero.
    assert ((dequantized - weight).abs() <= 0.5 * steps + 2**-8 * weight.abs().amax(dim=1, keepdim=True) + 1e-9).all()
    assert (dequantized - weight).abs().max() > 1e-5
    rounding = 2**-7 * (dequantized.abs() + 8 * steps + layer.bias.abs()[:, None])
    for few in (layer.few, 0):
        monkeypatch.setattr(layer, "few", few)
        for dtype in (torch.float32, torch.bfloat16):
            found = torch.cat([layer(part) for part in rows.to(dtype).split(4)])
            assert found.dtype == dtype
            assert ((found.float() - layer.bias).T - dequantized).abs().le(rounding).all()
    assert layer(torch.ones(2, 0, shape[1])).shape == (2, 0, shape[0])


@pytest.mark.parametrize(("name", "kind"), [("int8", Int8Linear), ("int4", Int4Linear)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_decoder_layers_are_quantized_while_they_are_read(qwen_folder, tmp_path, name, kind, dtype):
    folder = in_bfloat16(qwen_folder, tmp_path / "model", tied=True)
    model = load(folder, quantization=name, dtype=dtype, device="cpu").model
    plain = load(folder, dtype="float32", device="cpu", compile=True).model
    layers = {*model.get_decoder().layers.modules()}
    kinds = set()
    for path, part in plain.named_modules():
        if type(part) is nn.Linear:
            found = model.get_submodule(path)
            if found in layers:
                kinds.add(type(found))
                assert type(found) is (Int4Linear if kind is Int4Linear and Int4Linear.fits(part) else Int8Linear)
            elif found is model.lm_head:
                assert type(found) is Int8Linear
            else:
                assert type(found) is (HalfLinear if dtype == "float32" else nn.Linear)
    assert kind in kinds
    table = model.get_input_embeddings()
    assert model.lm_head.weight is table.weight
    with exact_products(model):  # the rows of the matrix, which are near those of the checkpoint
        rows = model.lm_head(torch.eye(table.embedding_dim)).T
    ids = torch.tensor([[0, 5], [7, 2]])
    assert torch.allclose(table(ids).float(), rows[ids], rtol=2**-7, atol=0)
    step = plain.lm_head.weight.abs().amax(dim=1, keepdim=True) / 127
    assert ((rows - plain.lm_head.weight).abs() <= step).all()
    if dtype == "float32":
        assert stored_bytes(model) == pytest.approx(
            packed_bytes(plain, few_bits.kinds(plain, name, half=True)), rel=0.02
        )


def test_a_model_is_proven_with_its_quantized_weights(llava_folder, photos):
    preset, image = resolve(str(llava_folder)), open_picture(photos["chelsea"]).image
    found, plain = (compare_real(preset, image, offline=True, device="cpu", quantization=q) for q in ("int4", None))
    assert (found.compared.verdict, found.dtype) == ("exact", "float32")
    assert found.compared.limit < 1e-4 * 20  # of logits below 20
    assert found.compared.gap != plain.compared.gap  # other weights


def test_embeddings_that_scale_still_do():
    """Gemma multiplies its embeddings, so the class that reads them stays in force."""
    model, ids = tiny.FAMILIES["Gemma 3"]().model, torch.tensor([[1, 2, 3]])
    before = model.get_input_embeddings()(ids)
    head = Int8Linear(model.get_output_embeddings())
    head.pack(model.get_input_embeddings().weight.data)
    model.set_output_embeddings(head)
    few_bits.share_table(model)
    found = model.get_input_embeddings()(ids)
    assert not torch.equal(found, before)
    assert torch.allclose(found, before, rtol=0, atol=0.01 * float(before.abs().max()))


def test_where_they_are_not_for(qwen_folder, monkeypatch):
    assert usable_quantizations("cpu") == ["int8", "int4"]
    with pytest.raises(SettingsError, match=r"int8 is for CPUs: on cuda:0 give 4bit or 8bit"):
        check_quantization("int8", "cuda:0")
    with pytest.raises(SettingsError, match="compile does not work with this quantization"):
        load(qwen_folder, quantization="int8", device="cpu", compile=True)
    monkeypatch.setattr("sira_cli.models.loading.quantization.columns_together", lambda: None)
    assert usable_quantizations("cpu") == ["int8"]
    with pytest.raises(SettingsError, match="for this processor: give int8"):
        load(qwen_folder, quantization="int4", device="cpu")
