"""Popular repositories with models in a format that `sira` cannot load, and their alternatives.

Detected by file names and small JSON files, before anything large is fetched and before torch is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from sira_cli.errors import UnsupportedModelError

OWN_CODE = "only its own Python code runs it, which SIRA cannot follow, with or without `trust_remote_code=`"
AUTHORS_LLAVA = "it is LLaVA in its authors' format: take the version for transformers, from https://hf.co/llava-hf"
# Reasons by `model_type` of config.json; `{model}` is the requested name.
MODEL_TYPES = {
    "internvl_chat": "it is InternVL in its authors' format: take the version for transformers ({model}-hf on the hub)",
    "llava_llama": AUTHORS_LLAVA,
    "llava_mistral": AUTHORS_LLAVA,
    "llava_qwen": AUTHORS_LLAVA,
    "minicpmo": OWN_CODE,
    "minicpmv": OWN_CODE,
    "molmo": OWN_CODE,
    "phi3_v": OWN_CODE,
}


def check_usable(model: str, files: Collection[str], read: Callable[[str], Any]) -> None:
    """Check that a repository or folder is not known to be unusable."""
    if not any(map(is_weights, files)):
        if "adapter_config.json" in files:
            base = _value(read("adapter_config.json"), "base_model_name_or_path") or "its base model"
            raise UnsupportedModelError(
                f"{model} is an adapter (LoRA) of {base}, not a model: load {base} and the adapter with peft, "
                "`merge_and_unload()`, save the result and the processor to a folder, and give that folder"
            )
        if any(name.endswith(".gguf") for name in files):
            raise UnsupportedModelError(
                f"{model} is a GGUF conversion, for llama.cpp: take the original model, with safetensors weights"
            )
    config = read("config.json") if "config.json" in files else None
    reason = MODEL_TYPES.get(str(_value(config, "model_type")))
    if _value(config, "mm_vision_tower"):
        reason = AUTHORS_LLAVA
    if _value(config, "quantization") and not _value(_value(config, "quantization_config"), "quant_method"):
        reason = "it is an MLX conversion, for Apple's MLX: take the original model"
    if reason is not None:
        raise UnsupportedModelError(f"{model} cannot be used: {reason.format(model=model.rstrip('/'))}")


def is_weights(name: str) -> bool:
    """Return whether a file of a repository contains weights of the model, by its name."""
    return name.endswith(".safetensors") and not name.startswith("adapter_") and "/" not in name


def _value(content: Any, name: str) -> Any:
    """Return the value of a JSON object by name; None if it has none, or `content` is not an object."""
    return content.get(name) if isinstance(content, dict) else None
