"""Matrices packed in float16 for arithmetic in float32."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from sira_cli import Lvlm, Step, load
from sira_cli.core import reference
from sira_cli.models import packed
from sira_cli.models.packed import HalfLinear, packed_bytes
from sira_cli.pictures.sources import open_picture
from tests.support.tiny_parts import TinyPrompt

pytestmark = pytest.mark.skipif(
    not packed.can_pack(torch.float32, torch.device("cpu")), reason="torch has no FBGEMM on this processor"
)


def half_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> HalfLinear:
    original = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    original.weight.data = weight
    if bias is not None:
        original.bias.data = bias
    layer = HalfLinear(original)
    layer.pack(layer.drop_weight())
    return layer


def unpacked(folder: Path) -> Lvlm:
    """Load a checkpoint as on a processor without FBGEMM."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sira_cli.models.load.can_pack", lambda dtype, device: False)
        return load(folder, dtype="float32", device="cpu")


def in_bfloat16(original: Path, folder: Path, *, tied: bool) -> Path:
    """Write a checkpoint in the precision that they are published in."""
    shutil.copytree(original, folder)
    config = json.loads((folder / "config.json").read_text())
    for part in (config, config["text_config"], config["vision_config"]):
        part["dtype"] = "bfloat16"
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": tied}))
    file = folder / "model.safetensors"
    weights = {name: each.bfloat16() for name, each in load_file(file).items()}
    if tied:
        weights = {name: each for name, each in weights.items() if not name.startswith("lm_head")}
    save_file(weights, file, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("rows", [(1,), (2, 1), (2, 5), (0,)])
@torch.no_grad()
def test_a_matrix_in_bfloat16_loses_nothing(rows):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(96, 64, generator=generator).mul_(0.02).bfloat16().float()
    bias, x = torch.randn(96, generator=generator), torch.randn(*rows, 64, generator=generator)
    exact = x.double() @ weight.double().T + bias.double()
    found = half_linear(weight, bias)(x)
    assert found.dtype == torch.float32
    assert torch.allclose(found.double(), exact, rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_numbers_that_float16_does_not_have_keep_their_matrix():
    weight = torch.tensor([[1e5, 1.0], [0.5, -2.0]])
    assert half_linear(weight)(torch.ones(1, 2)).tolist() == [[100001.0, -1.5]]


def test_a_checkpoint_of_16_bits_is_packed_while_it_is_read(qwen_folder, tmp_path):
    folder = in_bfloat16(qwen_folder, tmp_path / "model", tied=True)
    model = load(folder, dtype="float32", device="cpu").model
    plain = unpacked(folder).model
    layers = [part for part in plain.modules() if type(part) is nn.Linear]
    assert len([part for part in model.modules() if isinstance(part, HalfLinear)]) == len(layers) > 0
    assert not [part for part in model.modules() if type(part) is nn.Linear]
    kept = {weight.untyped_storage().data_ptr(): weight.untyped_storage().nbytes() for weight in model.parameters()}
    matrices = {id(part.weight): part.weight.numel() for part in layers}
    full = sum(weight.nbytes for weight in plain.parameters())
    dropped = sum(matrices.values()) - plain.lm_head.weight.numel()  # the embeddings stay, as a table
    assert sum(kept.values()) == pytest.approx(full - 4 * dropped, rel=0.02)
    assert packed_bytes(plain) == full - 4 * dropped + 2 * sum(matrices.values())
    assert model.lm_head.weight is model.get_input_embeddings().weight


def test_a_checkpoint_in_float32_stays_as_it_is(qwen_folder):
    assert not [part for part in load(qwen_folder, device="cpu").model.modules() if isinstance(part, HalfLinear)]


def test_both_streams_are_those_of_algorithm_1_on_plain_matrices(llava_folder, photos, tmp_path):
    folder = in_bfloat16(llava_folder, tmp_path / "model", tied=False)
    lvlm = load(folder, dtype="float32", device="cpu", max_new_tokens=4)
    assert isinstance(lvlm.model.lm_head, HalfLinear)
    plain = unpacked(folder)
    inputs = lvlm.prepare([open_picture(photos["chelsea"]).image], ["Is there a cat?"])
    prompt = TinyPrompt(plain.model, dict(inputs), image_token=plain.model.config.image_token_id)
    slow = reference.decode(prompt, lvlm.k, lvlm.alpha, 4)
    steps: list[Step] = []
    tokens = lvlm.generate(inputs, on_tokens=lambda _, step: steps.append(step))
    assert tokens[0].tolist() == slow.tokens
    for step, full, cf in zip(steps, slow.full, slow.cf, strict=True):
        assert torch.allclose(step.full[0], full, rtol=0, atol=1e-4 * float(full.abs().max()))
        assert torch.allclose(step.cf[0], cf, rtol=0, atol=1e-4 * float(cf.abs().max()))
    assert float((slow.full - slow.cf).abs().max()) > 0.1
