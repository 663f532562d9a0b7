"""From a preset to its model: what its config.json tells, and its weights on a device, in a precision."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForImageTextToText, dynamic_module_utils
from transformers.initialization import no_init_weights
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
from transformers.utils import logging

from sira_cli._version import __version__
from sira_cli.core.config import SiraConfig
from sira_cli.core.families import check_config, fork_place
from sira_cli.core.fork import Fork
from sira_cli.errors import ModelNotFoundError, SettingsError, SiraError, UnsupportedModelError, install
from sira_cli.files import from_home
from sira_cli.methods.base import Method
from sira_cli.models import presets
from sira_cli.models.hub import find_checkpoint, find_config, first_line
from sira_cli.models.placement import (
    HALVES,
    PackedConfig,
    can_pack,
    on_processor,
    packed_bytes,
    pick_device,
    place,
    quantization_config,
)
from sira_cli.models.preset import Preset
from sira_cli.models.presets import calibrated
from sira_cli.models.processor import load_processor, parser_of, read_settings
from sira_cli.models.vocabulary import Vocabulary

# Errors of transformers for torn weights, damaged JSON, sizes that do not match, a missing package, ...
LOAD_ERRORS = (
    *(OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError, ImportError),
    *(SafetensorError, StrictDataclassError),
)
MOST_LAYERS = 1_000  # building more would take hours
_LOCK = threading.RLock()  # two simultaneous loads would reset each other's limit


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Read a checkpoint inside the block."""
    with _LOCK:  # transformers asks on stdin whether to run the code of a nested part; without time it fails instead
        seconds = dynamic_module_utils.TIME_OUT_REMOTE_CODE
        dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0
        try:
            yield
        except SiraError:
            raise
        except LOAD_ERRORS as error:
            # The message of a config's own check is in the error's cause.
            reason = first_line(error.__cause__ or error if isinstance(error, StrictDataclassError) else error)
            raise ModelNotFoundError(f"the model in {folder} cannot be loaded: {reason}") from error
        finally:
            dynamic_module_utils.TIME_OUT_REMOTE_CODE = seconds


def read_config(folder: Path, *, trust_remote_code: bool = False) -> Any:
    """Read the config of a model for pictures and text."""
    stated = read_settings(folder, "config.json")
    kind = stated.get("model_type")
    if not trust_remote_code and "auto_map" in stated and kind not in CONFIG_MAPPING:
        way = "its own Python code runs only with `trust_remote_code=`. Look for transformers' version (often ...-hf)"
        raise UnsupportedModelError(f"{folder} holds a {kind!r} model, which transformers does not have; {way}")
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=trust_remote_code)
    if not trust_remote_code and type(config) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        raise UnsupportedModelError(f"{folder} holds a {config.model_type!r} model, not one for pictures and text")
    for part in (config, *(getattr(config, name, None) for name in ("text_config", "vision_config"))):
        if (layers := getattr(part, "num_hidden_layers", None) or 0) > MOST_LAYERS:
            raise UnsupportedModelError(f"{folder}/config.json: {layers:,} layers; expected at most {MOST_LAYERS:,}")
    return config


def own_dtype(config: Any) -> torch.dtype | None:
    """Return a config's precision for the whole model, or else (Qwen3-VL) for the text stack."""
    return config.dtype or config.get_text_config(decoder=True).dtype  # type: ignore[no-any-return]


def load_model(folder: Path, *, trust_remote_code: bool, packed: int | None = None, **options: Any) -> Any:
    """Load the model in a checkpoint folder; on a CPU, 16-bit matrices stay so where arithmetic is in float32."""
    config = read_config(folder, trust_remote_code=trust_remote_code)
    if options["device_map"] == "cpu" and options["quantization_config"] is None:
        own, quantized = own_dtype(config), getattr(config, "quantization_config", None) is not None
        if quantized or own not in HALVES or not can_pack(torch.float32, torch.device("cpu")):
            packed = None
        if options["dtype"] == "auto":
            options["dtype"] = on_processor(own, folder, packed)
        if packed is not None and options["dtype"] in ("float32", torch.float32):
            options["quantization_config"] = PackedConfig()
    loader: Any = AutoModelForImageTextToText  # annotated as returning the model alone
    options |= {"config": config, "trust_remote_code": trust_remote_code, "output_loading_info": True}
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model, report = loader.from_pretrained(folder, local_files_only=True, use_safetensors=True, **options)
    finally:
        if shown:
            logging.enable_progress_bar()
    if "max_memory" in options and not {*model.hf_device_map.values()} <= {*options["max_memory"]}:
        raise SettingsError("the GPUs are too small for the model: give `quantization=` 4bit, or another `device=`")
    if report["missing_keys"]:  # transformers would go on with random numbers in their place
        missing = sorted(report["missing_keys"])
        raise ModelNotFoundError(f"the weights in {folder} lack {len(missing)} tensors, among them {missing[0]}")
    return model


class ModelFacts(NamedTuple):
    """L, the paper's K = L/2, the id of the image token, and the size of the weights."""

    layers: int
    k: int
    image_token: int
    gigabytes: float


def inspect_model(preset: Preset, *, offline: bool = False) -> ModelFacts:
    """Build the model without weights, and return its facts."""
    folder = find_config(preset, offline=offline)
    lvlm = _without_weights(folder)
    fork, text = Fork(lvlm, SiraConfig()), lvlm.config.get_text_config(decoder=True)
    # The files contain the output matrix unless config.json ties it; without a value there, transformers treats
    # InternVL's as tied.
    default = getattr(text, "tie_word_embeddings", False)
    tied = read_settings(folder, "config.json").get("tie_word_embeddings", default)
    head, embeddings = lvlm.get_output_embeddings().weight, lvlm.get_input_embeddings().weight
    stored = [weight.numel() for weight in lvlm.parameters() if weight is not head and weight is not embeddings]
    numbers = sum(stored) + embeddings.numel() + (0 if tied else head.numel())
    image_token, *_ = SiraConfig().image_tokens.resolve(lvlm.config).ids
    return ModelFacts(fork.layers, fork.k, image_token, numbers * lvlm.dtype.itemsize / 1e9)


def check_structure(folder: Path, preset: Preset) -> Any:
    """Check that SIRA can follow a model, by its config.json, and return it without weights; None: its code is own."""
    with reading(folder):
        if preset.load.trust_remote_code and "auto_map" in read_settings(folder, "config.json"):
            return None
    model = _without_weights(folder, preset.load.attention)
    fork_place(model, preset.sira_config)
    return model


def _without_weights(folder: Path, attention: str | None = None) -> Any:
    with reading(folder):
        config = read_config(folder)
        model_class: Any = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(config)]
        check_config(config, model_class.__name__)
        how = {"dtype": own_dtype(config), "attn_implementation": attention, "trust_remote_code": False}
        with torch.device("meta"), no_init_weights():
            return AutoModelForImageTextToText.from_config(config, **how)


def check_transformers() -> None:
    """Check that the fork is exact under the installed transformers; success is kept in the cache."""
    versions = f"transformers-{transformers.__version__}-torch-{torch.__version__}-{__version__}"
    kept = presets.cache() / "exact" / versions
    if kept.is_file():
        return
    from sira_cli.core import selfcheck  # imports a model

    if (failure := selfcheck.failure()) is not None:
        raise UnsupportedModelError(failure)
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.touch()


def read_model(
    source: str | os.PathLike[str] | Preset, method: str | Method, device: str, settings: dict[str, Any], **how: Any
) -> tuple[Any, Any, Preset, Method, str]:
    """Return model, processor, preset, method and revision; the arguments are those of `sira_cli.load`."""
    preset = source if isinstance(source, Preset) else presets.resolve(os.fspath(source))
    method = preset.method(method)
    method = method.with_settings(**{name: settings.pop(name) for name in tuple(settings) if method.owns(name)})
    preset = preset.with_settings(**settings)
    if preset.revision != "main" and (model_folder := from_home(preset.model)).is_dir():
        raise SettingsError(f"{model_folder}: a folder has no revisions: leave out revision {preset.revision!r}")
    quantization, trusted = preset.load.quantization, preset.load.trust_remote_code
    if quantization is not None and find_spec("bitsandbytes") is None:
        raise SettingsError(f"quantization {quantization} needs bitsandbytes: {install('quant')}")
    check_transformers()
    picked = pick_device(device)

    def judge(folder: Path) -> dict[str, Any]:
        model = check_structure(folder, preset)
        quantized = None if quantization is None else quantization_config(quantization, model, picked)
        where = place(device, model, getattr(torch, preset.load.dtype, None), quantization)
        return {"quantization_config": quantized, "packed": None if model is None else packed_bytes(model), **where}

    checkpoint = find_checkpoint(preset, judge=judge, **how)
    method = calibrated(method, preset.model, checkpoint.revision)  # before the weights are read
    given = {"dtype": preset.load.dtype, "attn_implementation": preset.load.attention} | judge(checkpoint.folder)
    with reading(checkpoint.folder):
        processor = load_processor(checkpoint.folder, image=preset.image, trust_remote_code=trusted)
        if preset.generation.think:
            vocabulary = Vocabulary(processor.tokenizer)  # refused before the weights are read
            parser_of(processor, vocabulary, system=preset.prompts.system, think=True)
        model = load_model(checkpoint.folder, trust_remote_code=trusted, **given)
    return model, processor, preset, method, checkpoint.revision
