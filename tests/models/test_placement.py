"""Where a model is put: devices, precision, threads. No GPUs are here: what torch says about them is a stand-in."""

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

from sira_cli import load
from sira_cli.errors import SettingsError
from sira_cli.models import placement
from sira_cli.models.load import check_structure, load_model
from sira_cli.models.placement import computes_in, devices_of, on_processor, place, share_out, weight_bytes
from sira_cli.models.presets import BUNDLED_FOLDER, find
from sira_cli.pictures.sources import open_picture
from sira_cli.run.lvlm import Lvlm
from tests.support import layouts

GB = 10**9


@pytest.fixture
def gpus(monkeypatch):
    """So many bytes free on each of several GPUs."""

    def are(*free: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(free))
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (free[index], 80 * GB))

    return are


@pytest.fixture
def qwen(tmp_path):
    """Qwen2.5-VL-7B without its weights."""
    name = "qwen2.5-vl-7b"
    return check_structure(layouts.write_config(name, tmp_path / name), find(name))


@pytest.mark.parametrize(
    ("dtype", "quantization", "expected"),
    # 28 layers of 2 x 3584^2 + 2 x 3584 x 512 + 3 x 3584 x 18944 = 233,046,016 weights in matrices
    [(None, None, 16.6), (torch.float32, None, 33.2), (None, "8bit", 16.58 - 6.53), (None, "4bit", 16.58 - 1.5 * 6.53)],
)
def test_the_size_of_the_weights_in_memory(qwen, dtype, quantization, expected):
    assert weight_bytes(qwen, dtype, quantization) / GB == pytest.approx(expected, abs=0.05)


def test_several_gpus_only_where_one_is_too_small(qwen, gpus):
    gpus(24 * GB, 24 * GB)
    assert place("auto", qwen, None, None) == {"device_map": "cuda:0"}
    gpus(16 * GB, 24 * GB)
    assert place("auto", qwen, None, None) == {"device_map": "auto", "max_memory": {0: 16 * GB, 1: 24 * GB}}
    assert place("auto", qwen, None, "4bit") == {"device_map": "cuda:0"}
    assert place("cuda:1", qwen, None, None) == {"device_map": "cuda:1"}
    assert place("auto", None, None, None) == {"device_map": "cuda:0"}
    gpus(16 * GB)
    assert place("auto", qwen, None, None) == {"device_map": "cuda:0"}
    gpus(16 * GB, 24 * GB)
    qwen.config.quantization_config = {"quant_method": "awq", "bits": 4}
    assert place("auto", qwen, None, None) == {"device_map": "cuda:0"}


def test_gpus_that_are_too_small_together(gpus):
    message = r"the weights take 35\.0 GB, more than 80% of the 40\.0 GB that are free on 2 GPUs: give `quant"
    with pytest.raises(SettingsError, match=message):
        share_out(35 * GB, [16 * GB, 24 * GB])


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
    assert set(devices_of(model)) == {torch.device("cpu"), torch.device("meta")}
    inputs = near.prepare([open_picture(photos["chelsea"]).image] * 2, ["Is there a cat?", "Describe it."])
    for method in ("sira", "greedy", "vcd"):
        one, two = (lvlm.under(lvlm.preset.method(method)) for lvlm in (near, far))
        given = near.under(near.preset.method(method)).prepare([open_picture(photos["chelsea"]).image], ["A cat?"])
        assert one.generate(given).tolist() == two.generate(given).tolist()
    assert near.generate(inputs).tolist() == far.generate(inputs).tolist()
    with pytest.raises(SettingsError, match="the GPUs are too small for the model"):
        load_model(folder, trust_remote_code=False, device_map=places, max_memory={0: 1}, **how)


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


@pytest.fixture
def machine(monkeypatch):
    """Eight cores that show as sixteen processors."""
    for name in placement.CHOSEN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 16 if logical else 8)


def test_a_small_model_has_one_thread_and_a_large_one_a_thread_per_core(machine, monkeypatch, tmp_path):
    large = check_structure(layouts.write_config("smolvlm2-2.2b", tmp_path / "model"), find("smolvlm2-2.2b"))
    small = check_structure(BUNDLED_FOLDER, find("demo"))
    assert [placement.threads_for(model) for model in (small, large)] == [1, 8]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)  # a container's share
    assert placement.threads_for(large) == 4
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert placement.threads_for(small) == 4


def test_a_command_uses_them(sira, machine, monkeypatch):
    used = []
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    assert sira("demo", "--limit", "1", "--json")[0] == 0
    assert used == [1]
