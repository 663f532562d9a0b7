"""Where a model is put. No GPUs are here: what torch says about them is a stand-in, and the other device is a disk."""

from __future__ import annotations

import pytest
import torch

from sira_cli import load
from sira_cli.errors import SettingsError
from sira_cli.models.load import check_structure, load_model
from sira_cli.models.placement import devices_of, place, share_out, weight_bytes
from sira_cli.models.presets import find
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
