"""Where a model is put: devices, precision, threads, packed matrices. What torch says about GPUs is a stand-in."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from sira_cli import Lvlm, load
from sira_cli.errors import SettingsError
from sira_cli.models import placement
from sira_cli.models.load import check_structure, load_model
from sira_cli.models.placement import HalfLinear, can_pack, packed_bytes
from sira_cli.models.presets import find
from sira_cli.pictures.sources import as_picture
from tests.support import layouts
from tests.support.helpers import by_the_letter

GB = 10**9
packs = pytest.mark.skipif(
    not can_pack(torch.float32, torch.device("cpu")), reason="torch has no FBGEMM on this processor"
)


def without_weights(name: str, folder: Path):
    return check_structure(layouts.write_config(name, folder / name), find(name))


def in_bfloat16(original: Path, folder: Path, *, tied: bool = False, whole: bool = True) -> Path:
    """A checkpoint in the precision that they are published in; `whole`: not only the text part has it, as Qwen3-VL."""
    shutil.copytree(original, folder)
    config = json.loads((folder / "config.json").read_text())
    for part in (config, config["text_config"], config["vision_config"]):
        part["dtype"] = "bfloat16"
    if not whole:
        del config["dtype"], config["vision_config"]["dtype"]
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": tied}))
    weights = {name: each.bfloat16() for name, each in load_file(folder / "model.safetensors").items()}
    if tied:
        weights = {name: each for name, each in weights.items() if not name.startswith("lm_head")}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_several_gpus_only_where_one_is_too_small(tmp_path, monkeypatch):
    """Qwen2.5-VL-7B: 16.6 GB, with 28 layers of 2 x 3584^2 + 2 x 3584 x 512 + 3 x 3584 x 18944 in matrices."""
    qwen, both = without_weights("qwen2.5-vl-7b", tmp_path), {"device_map": "auto"}

    def placed(*free: float, device: str = "auto", model=qwen, dtype=None, quantization=None):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(free))
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (int(free[index] * GB), 80 * GB))
        return placement.place(device, model, dtype, quantization)

    assert placed(16, 24) == both | {"max_memory": {0: 16 * GB, 1: 24 * GB}}
    # What fits takes 80 % of the first: 16.6, 33.2, 16.58 - 6.53 and 16.58 - 1.5 x 6.53 GB.
    sizes = (16.6, None, None), (33.2, torch.float32, None), (10.05, None, "8bit"), (6.79, None, "4bit")
    for size, dtype, quantization in sizes:
        how = {"dtype": dtype, "quantization": quantization}
        assert placed((size + 0.1) / 0.8, 24, **how) == {"device_map": "cuda:0"}
        assert placed((size - 0.1) / 0.8, 24, **how)["device_map"] == "auto"
    assert placed(16, 24, device="cuda:1") == {"device_map": "cuda:1"}
    assert placed(16, 24, model=None) == placed(16) == {"device_map": "cuda:0"}
    with pytest.raises(SettingsError, match=r"33\.2 GB, more than 80% of the 40\.0 GB that are free on 2 GPUs: give"):
        placed(16, 24, dtype=torch.float32)
    qwen.config.quantization_config = {"quant_method": "awq", "bits": 4}
    assert placed(16, 24) == {"device_map": "cuda:0"}


@pytest.mark.parametrize("checkpoint", ["llava_folder", "qwen_folder"])
def test_texts_with_layers_on_another_device(checkpoint, photos, request):
    """accelerate's hooks fetch some layers from the disk each time that they run."""
    folder = request.getfixturevalue(checkpoint)
    near = load(folder, dtype="float32", device="cpu", max_new_tokens=5)
    layers = near.model.get_decoder().layers
    names = {part: name for name, part in near.model.named_modules()}
    inside = {id(part) for part in layers.modules()}
    places = {name: "cpu" for part, name in names.items() if id(part) not in inside and [*part.parameters(False)]}
    on_disk = (1, near.layers - near.k, near.layers - 1)
    places |= {names[layer]: "disk" if index in on_disk else "cpu" for index, layer in enumerate(layers)}
    how = {"dtype": torch.float32, "attn_implementation": None, "quantization_config": None}
    model = load_model(folder, trust_remote_code=False, device_map=places, **how)
    far = Lvlm(model, near.processor, near.preset, near.decoder, near.revision)
    assert set(placement.devices_of(model)) == {torch.device("cpu"), torch.device("meta")}
    image = as_picture(photos["chelsea"]).open().image
    inputs = near.prepare([image] * 2, ["Is there a cat?", "Describe it."])
    assert near.generate(inputs).tolist() == far.generate(inputs).tolist()
    for method in ("sira", "greedy", "vcd"):
        one, two = (lvlm.under(lvlm.preset.method(method)) for lvlm in (near, far))
        given = one.prepare([image], ["A cat?"])
        assert one.generate(given).tolist() == two.generate(given).tolist()
    with pytest.raises(SettingsError, match="the GPUs are too small for the model"):
        load_model(folder, trust_remote_code=False, device_map=places, max_memory={0: 1}, **how)


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
    tmp_path, monkeypatch, caplog, own, arithmetic, free, expected
):
    for name in ("a", "b"):
        (tmp_path / f"{name}.safetensors").write_bytes(bytes(500))
    monkeypatch.setattr(placement, "computes_in", lambda dtype: arithmetic)
    monkeypatch.setattr(placement.psutil, "virtual_memory", lambda: SimpleNamespace(available=free))
    caplog.set_level(logging.INFO, "sira_cli")
    assert placement.on_processor(own, tmp_path) == expected
    assert ("float32" in caplog.text) is (own in placement.HALVES and not arithmetic)


@pytest.mark.parametrize(
    ("dtype", "whole", "expected"),
    [("auto", True, "float32"), ("bfloat16", True, "bfloat16"), ("auto", False, "float32")],
)
def test_a_checkpoint_in_bfloat16(dtype, whole, expected, tmp_path, monkeypatch, qwen_folder):
    monkeypatch.setattr(placement, "computes_in", lambda dtype: False)
    folder = in_bfloat16(qwen_folder, tmp_path / "model", whole=whole)
    assert load(folder, dtype=dtype, device="cpu").dtype == expected


def test_a_small_model_has_one_thread_and_a_large_one_a_thread_per_core(sira, monkeypatch, tmp_path):
    used = []
    for name in placement.CHOSEN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 16 if logical else 8)
    large = SimpleNamespace(parameters=lambda: [torch.empty(60_000_000, device="meta")], device=torch.device("cpu"))
    assert sira("demo", "--limit", "1")[0] == 0
    placement.use_threads(large)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)  # a container's share
    placement.use_threads(large)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    placement.use_threads(large)
    assert used == [1, 8, 4]


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


@packs
@pytest.mark.parametrize("rows", [(1,), (2, 1), (2, 5), (0,)])
@torch.no_grad()
def test_a_packed_matrix_in_bfloat16_loses_nothing(rows):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(96, 64, generator=generator).mul_(0.02).bfloat16().float()
    bias, x = torch.randn(96, generator=generator), torch.randn(*rows, 64, generator=generator)
    exact = x.double() @ weight.double().T + bias.double()
    found = half_linear(weight, bias)(x)
    assert found.dtype == torch.float32
    assert torch.allclose(found.double(), exact, rtol=1e-5, atol=1e-6)


@packs
@torch.no_grad()
def test_numbers_that_float16_does_not_have_keep_their_matrix():
    weight = torch.tensor([[1e5, 1.0], [0.5, -2.0]])
    assert half_linear(weight)(torch.ones(1, 2)).tolist() == [[100001.0, -1.5]]


@packs
def test_a_checkpoint_of_16_bits_is_packed_while_it_is_read(qwen_folder, tmp_path):
    folder = in_bfloat16(qwen_folder, tmp_path / "model", tied=True)
    model, plain = load(folder, dtype="float32", device="cpu").model, unpacked(folder).model
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
    in_float32 = load(qwen_folder, device="cpu").model  # which stays as it is
    assert not [part for part in in_float32.modules() if isinstance(part, HalfLinear)]


@packs
def test_both_streams_are_those_of_algorithm_1_on_plain_matrices(llava_folder, photos, tmp_path):
    folder = in_bfloat16(llava_folder, tmp_path / "model")
    lvlm, plain = load(folder, dtype="float32", device="cpu", max_new_tokens=4), unpacked(folder)
    assert isinstance(lvlm.model.lm_head, HalfLinear)
    inputs = lvlm.prepare([as_picture(photos["chelsea"]).open().image], ["Is there a cat?"])
    by_the_letter(lvlm, inputs, 4, model=plain.model, gap=0.1)
