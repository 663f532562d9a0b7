"""Load a checkpoint's weights into a model, on a device, in a precision."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
from transformers.utils import logging

from sira_cli.errors import ModelNotFoundError, SettingsError, UnsupportedModelError
from sira_cli.models.loading.packed import can_pack
from sira_cli.models.loading.precision import HALVES, on_processor
from sira_cli.models.loading.reading_packed import PackedConfig

MOST_LAYERS = 1_000


def read_config(folder: Path, *, trust_remote_code: bool = False) -> Any:
    """Read the config of a model for pictures and text."""
    stated = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if not trust_remote_code and "auto_map" in stated and stated.get("model_type") not in CONFIG_MAPPING:
        raise UnsupportedModelError(
            f"{folder} holds a {stated.get('model_type')!r} model, which transformers does not have; its own Python "
            "code runs only with `trust_remote_code=`. Look for the model's version for transformers (often ...-hf)"
        )
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=trust_remote_code)
    if not trust_remote_code and type(config) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        raise UnsupportedModelError(f"{folder} holds a {config.model_type!r} model, not one for pictures and text")
    for part in (config, *(getattr(config, name, None) for name in ("text_config", "vision_config"))):
        layers = getattr(part, "num_hidden_layers", None) or 0
        if layers > MOST_LAYERS:  # building them would take hours
            raise UnsupportedModelError(
                f"{folder / 'config.json'}: {layers:,} layers; expected at most {MOST_LAYERS:,}"
            )
    return config


def own_dtype(config: Any) -> torch.dtype | None:
    """Return a config's precision for the whole model, or else (Qwen3-VL) for the text stack."""
    dtype: torch.dtype | None = config.dtype or config.get_text_config(decoder=True).dtype
    return dtype


def load_model(folder: Path, *, trust_remote_code: bool, packed: int | None = None, **options: Any) -> Any:
    """Load the model in a checkpoint folder, with all tensors from the files.

    On a CPU, the matrices of a checkpoint in 16 bits stay in 16 bits where arithmetic is in float32.
    """
    config = read_config(folder, trust_remote_code=trust_remote_code)
    if options["device_map"] == "cpu" and options["quantization_config"] is None:
        own = own_dtype(config)
        known = own in HALVES and getattr(config, "quantization_config", None) is None
        if not known or not can_pack(torch.float32, torch.device("cpu")):
            packed = None
        if options["dtype"] == "auto":
            options["dtype"] = on_processor(own, folder, packed)
        if packed is not None and options["dtype"] in ("float32", torch.float32):
            options["quantization_config"] = PackedConfig()
    loader: Any = AutoModelForImageTextToText  # annotated as returning the model alone
    with without_progress_bar():
        model, report = loader.from_pretrained(
            folder,
            config=config,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
            **options,
        )
    if "max_memory" in options and not {*model.hf_device_map.values()} <= {*options["max_memory"]}:
        raise SettingsError("the GPUs are too small for the model: give `quantization=` 4bit, or another `device=`")
    if report["missing_keys"]:  # transformers would go on with random numbers in their place
        missing = sorted(report["missing_keys"])
        raise ModelNotFoundError(f"the weights in {folder} lack {len(missing)} tensors, among them {missing[0]}")
    return model


@contextmanager
def without_progress_bar() -> Iterator[None]:
    """Hide transformers' progress bars inside the block."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
