"""Repositories and models that cannot work: told early, in a few lines, with a way out."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from sira_cli import UnsupportedModelError, attach, load
from sira_cli.core import families
from sira_cli.errors import SettingsError, SiraError, UntestedModelWarning
from sira_cli.models.hub import find_checkpoint

ADAPTER = {"base_model_name_or_path": "Qwen/Qwen2.5-VL-7B-Instruct", "peft_type": "LORA", "r": 8}
ADAPTER |= {"target_modules": ["q_proj"]}
AUTHORS_INTERNVL = {
    "architectures": ["InternVLChatModel"],
    "auto_map": {"AutoModel": "modeling_internvl_chat.InternVLChatModel"},
    "model_type": "internvl_chat",
    "llm_config": {"model_type": "qwen2"},
}
MLX = {"model_type": "qwen2_5_vl", "quantization": {"group_size": 64, "bits": 4}}
# name: files, and what the message has to say
FOLDERS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "adapter": (
        {"adapter_config.json": ADAPTER, "adapter_model.safetensors": None, "tokenizer.json": {}},
        ["adapter (LoRA) of Qwen/Qwen2.5-VL-7B-Instruct", "`merge_and_unload()`"],
    ),
    "adapter with the config of its base": (  # as LLaMA-Factory and unsloth may save it
        {
            "adapter_config.json": ADAPTER,
            "adapter_model.safetensors": None,
            "config.json": {"model_type": "qwen2_5_vl"},
        },
        ["adapter (LoRA) of Qwen/Qwen2.5-VL-7B-Instruct"],
    ),
    "gguf": ({"Qwen2.5-VL-7B-Instruct-Q4_K_M.gguf": None, "mmproj-F16.gguf": None}, ["GGUF", "the original model"]),
    "mlx": (
        {"config.json": {**MLX, "quantization_config": MLX["quantization"]}, "model.safetensors": None},
        ["MLX", "the original model"],
    ),
    "InternVL3-8B": ({"config.json": AUTHORS_INTERNVL, "model.safetensors": None}, ["InternVL3-8B-hf"]),
    "MiniCPM-V-2_6": ({"config.json": {"model_type": "minicpmv"}, "model.safetensors": None}, ["own Python code"]),
    "Molmo-7B-D-0924": ({"config.json": {"model_type": "molmo"}, "model.safetensors": None}, ["own Python code"]),
    "Phi-3.5-vision": ({"config.json": {"model_type": "phi3_v"}, "model.safetensors": None}, ["own Python code"]),
    "llava-v1.5-7b": (
        {"config.json": {"model_type": "llava", "mm_vision_tower": "openai/clip"}, "pytorch_model-1-of-2.bin": None},
        ["https://hf.co/llava-hf"],
    ),
}


def write_folder(folder: Path, files: dict[str, Any]) -> Path:
    folder.mkdir()
    for name, content in files.items():
        if content is not None:
            (folder / name).write_text(json.dumps(content))
        elif name.endswith(".safetensors"):
            save_file({"x": torch.zeros(1)}, folder / name)
        else:
            (folder / name).write_bytes(b"weights")
    return folder


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("trusted", [False, True])
def test_a_form_that_is_not_for_us(tmp_path, sira, photos, name, trusted):
    files, said = FOLDERS[name]
    folder = write_folder(tmp_path / name, files)
    code, out, err = sira("caption", photos["coffee"], "-m", folder, *["--set", "trust_remote_code=yes"] * trusted)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert str(folder) in err
    for part in said:
        assert part in err
    code, out, err = sira("presets", "new", folder)
    assert (code, out) == (2, "")
    assert said[0] in err


def test_an_adapter_is_no_weights(tmp_path, llava_folder):
    """Where the files of a model lie beside it, but not its weights."""
    folder = tmp_path / "model"
    shutil.copytree(llava_folder, folder)
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    with pytest.raises(SiraError, match="no safetensors weights"):
        find_checkpoint(str(folder))


def test_a_model_that_was_quantized_otherwise_is_not_taken_for_mlx(tmp_path, llava_folder):
    folder = tmp_path / "model"
    shutil.copytree(llava_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"quantization": {"bits": 4}, "quantization_config": {"quant_method": "awq", "bits": 4}}
    (folder / "config.json").write_text(json.dumps(config))
    assert find_checkpoint(str(folder)).folder == folder


def test_the_structure_is_judged_before_weights_are_read(tmp_path, llava_folder):
    folder = tmp_path / "model"
    shutil.copytree(llava_folder, folder)
    (folder / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(SettingsError, match="k = 8"):
        load(folder, k=8)  # of 8: at most 7
    with pytest.raises(SiraError, match="cannot be loaded"):
        load(folder, k=7)
    (folder / "config.json").write_text(json.dumps({"model_type": "mllama"}))
    with pytest.raises(UnsupportedModelError, match="cross-attention"):
        load(folder)


class PeftModel(torch.nn.Module):
    """As peft wraps a model: whatever it has not itself, it has from the model inside."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.base_model = model

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.base_model, name)

    def get_base_model(self) -> torch.nn.Module:
        return self.base_model


def test_the_model_inside_peft_s_is_the_one_to_attach(llava):
    wrapped = PeftModel(llava.model)
    with pytest.raises(UnsupportedModelError, match=r"attach `model\.get_base_model\(\)`"), attach(wrapped):
        pass
    with attach(wrapped.get_base_model()):
        pass


def test_a_family_that_was_not_tested_is_said_once(monkeypatch, sira, llava_folder, photos):
    monkeypatch.setattr(families, "TESTED", families.TESTED - {"llava"})
    with warnings.catch_warnings():
        code, _, err = sira("caption", photos["coffee"], photos["chelsea"], "-m", llava_folder, "--max-new-tokens", 2)
    assert (code, err.count("not among the")) == (0, 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = load(llava_folder, max_new_tokens=2)
        model.caption(photos["coffee"])
    assert [warning.category for warning in caught].count(UntestedModelWarning) == 1
