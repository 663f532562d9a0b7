"""Load the model of a preset, with its processor."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
from sira_cli.models.lvlm import Lvlm


def load(
    source: str | os.PathLike[str] | Preset,
    *,
    method: str | Method = "sira",
    device: str = "auto",
    offline: bool = False,
    on_download: Callable[[Download], None] | None = None,
    **settings: Any,
) -> Lvlm:
    """Load a vision-language model that captions pictures and answers questions with SIRA.

    Args:
        source: a preset (name, YAML file or `Preset`), a checkpoint folder, or a hub model id.
        method: `sira`, `greedy` for the unchanged model, or another one of `sira_cli.methods.METHODS` to compare with.
            A method given by name gets the preset's settings for it.
        device: `auto` (cuda, else mps, else cpu; several GPUs if one is too small), `cpu`, `cuda`, `cuda:1`, `mps`.
        offline: never contact the hub; cached models still work.
        on_download: called before each download, with its name and size.
        **settings: override the preset's: k, k_fraction, alpha, beta, max_new_tokens, temperature, top_p, top_k,
            min_p, seed, num_beams, repetition_penalty, no_repeat_ngram_size, think, dtype, quantization (`8bit` or
            `4bit`), attn_implementation, trust_remote_code, max_pixels, min_pixels, max_tiles, longest_edge,
            pan_and_scan, pad_to_square, revision, prompt, system, prefix, suffix, max_sentences, complete_sentences. A
            method's own settings (alpha and beta of most, noise_step of vcd, ...) override its defaults.

    Raises:
        SettingsError: a preset or a setting is wrong.
        ModelNotFoundError: the weights are not here, incomplete, or cannot be fetched.
        UnsupportedModelError: SIRA cannot follow the model exactly.
    """
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
    return Lvlm(model, processor, preset, method, checkpoint.revision)
