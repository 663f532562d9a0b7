"""Read the model of a preset, with its processor."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from sira_cli.errors import SettingsError
from sira_cli.files import from_home
from sira_cli.methods.base import Method
from sira_cli.models.inputs.chats import check_thinking
from sira_cli.models.inputs.processors import load_processor
from sira_cli.models.loading import presets
from sira_cli.models.loading.calibrations import calibrated
from sira_cli.models.loading.exact import check_transformers
from sira_cli.models.loading.hub import Download, find_checkpoint
from sira_cli.models.loading.inspection import check_structure
from sira_cli.models.loading.packed import packed_bytes
from sira_cli.models.loading.placement import pick_device, place
from sira_cli.models.loading.preset import Preset
from sira_cli.models.loading.quantization import check_quantization, quantization_config
from sira_cli.models.loading.reading import reading
from sira_cli.models.loading.weights import load_model


class Loaded(NamedTuple):
    """What a loaded model is made of (`sira_cli.load`)."""

    model: Any
    processor: Any
    preset: Preset
    method: Method
    revision: str


def read_model(
    source: str | os.PathLike[str] | Preset,
    *,
    method: str | Method,
    device: str,
    offline: bool,
    on_download: Callable[[Download], None] | None,
    **settings: Any,
) -> Loaded:
    """Find, check and read a model; the arguments are those of `sira_cli.load`."""
    preset = source if isinstance(source, Preset) else presets.resolve(os.fspath(source))
    if isinstance(method, str):
        method = preset.method(method)
    own = {name: settings.pop(name) for name in tuple(settings) if method.owns(name)}
    method = method.with_settings(**own)
    preset = preset.with_settings(**settings)
    if preset.revision != "main" and (model_folder := from_home(preset.model)).is_dir():
        raise SettingsError(f"{model_folder}: a folder has no revisions: leave out revision {preset.revision!r}")
    quantization, trusted = preset.load.quantization, preset.load.trust_remote_code
    check_quantization(quantization)
    check_transformers()
    picked = pick_device(device)
    model_name = preset.model
    if model_name == presets.BUNDLED:
        model_name = str(presets.BUNDLED_FOLDER)

    def judge(folder: Path) -> dict[str, Any]:
        model = check_structure(folder, preset)
        quantized = None if quantization is None else quantization_config(quantization, model, picked)
        dtype = None if preset.load.dtype == "auto" else getattr(torch, preset.load.dtype)
        where = place(device, model, dtype, quantization)
        packed = None if model is None else packed_bytes(model)
        return {"quantization_config": quantized, "packed": packed, **where}

    checkpoint = find_checkpoint(
        model_name,
        preset.revision,
        offline=offline,
        code=trusted,
        expected_gb=preset.download_gb,
        judge=judge,
        on_download=on_download,
    )
    method = calibrated(method, preset.model, checkpoint.revision)  # before the weights are read
    how = judge(checkpoint.folder)
    with reading(checkpoint.folder):
        processor = load_processor(checkpoint.folder, image=preset.image, trust_remote_code=trusted)
        if preset.generation.think:
            check_thinking(processor, preset.prompts.system)  # before the weights are read
        model = load_model(
            checkpoint.folder,
            trust_remote_code=trusted,
            dtype=preset.load.dtype,
            attn_implementation=preset.load.attention,
            **how,
        )
    return Loaded(model, processor, preset, method, checkpoint.revision)
