"""From a preset to its model: what its config.json tells, and its weights on a device, in a precision."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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
from sira_cli.errors import ModelNotFoundError, SettingsError, SiraError, UnsupportedModelError
from sira_cli.files import from_home
from sira_cli.methods.base import Method
from sira_cli.models import presets
from sira_cli.models.chat import check_thinking
from sira_cli.models.hub import Download, find_checkpoint, find_config
from sira_cli.models.packed import PackedConfig, can_pack, packed_bytes
from sira_cli.models.placement import HALVES, check_quantization, on_processor, pick_device, place, quantization_config
from sira_cli.models.preset import Preset
from sira_cli.models.presets import calibrated
from sira_cli.models.processor import load_processor, read_settings

# Errors of transformers for torn weights, damaged JSON, sizes that do not match, a missing package, ...
LOAD_ERRORS = (
    *(OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError, ImportError),
    SafetensorError,
    StrictDataclassError,
)
_LOCK = threading.RLock()  # two simultaneous loads would reset each other's limit


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Read a checkpoint inside the block.

    If a part of a checkpoint has its own code, and the caller does not set whether to run it, transformers asks on
    stdin. Nested parts are always loaded that way. A time limit of 0 for the answer makes them fail.
    """
    with _LOCK:
        seconds = dynamic_module_utils.TIME_OUT_REMOTE_CODE
        dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0
        try:
            yield
        except SiraError:
            raise
        except LOAD_ERRORS as error:
            # The message of a config's own check is in the error's cause.
            said = error.__cause__ or error if isinstance(error, StrictDataclassError) else error
            reason = str(said).strip().splitlines() or [type(error).__name__]
            raise ModelNotFoundError(f"the model in {folder} cannot be loaded: {reason[0]}") from error
        finally:
            dynamic_module_utils.TIME_OUT_REMOTE_CODE = seconds


MOST_LAYERS = 1_000


def read_config(folder: Path, *, trust_remote_code: bool = False) -> Any:
    """Read the config of a model for pictures and text."""
    stated = read_settings(folder, "config.json")
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
            place = folder / "config.json"
            raise UnsupportedModelError(f"{place}: {layers:,} layers; expected at most {MOST_LAYERS:,}")
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


@dataclass(frozen=True)
class ModelFacts:
    """L, the paper's K = L/2, the id of the image token, and the size of the weights."""

    layers: int
    k: int
    image_token: int
    gigabytes: float


def inspect_model(model: str, revision: str = "main", *, offline: bool = False) -> ModelFacts:
    """Build the model without weights, and return its facts."""
    folder = find_config(model, revision, offline=offline)
    lvlm = _without_weights(folder)
    fork = Fork(lvlm, SiraConfig())
    bytes_each = lvlm.dtype.itemsize
    image_token, *_ = SiraConfig().image_tokens.resolve(lvlm.config).ids
    return ModelFacts(fork.layers, fork.k, image_token, _stored_weights(lvlm, folder) * bytes_each / 1e9)


def check_structure(folder: Path, preset: Preset) -> Any:
    """Check that SIRA can follow a model, by its config.json: first the file itself, then the model without weights.

    If the checkpoint's own code builds the model, nothing is checked: it may need the weights.
    """
    with reading(folder):
        if preset.load.trust_remote_code and "auto_map" in read_settings(folder, "config.json"):
            return None
    model = _without_weights(folder, preset.load.attention)
    fork_place(model, preset.sira_config)
    return model


def _stored_weights(lvlm: Any, folder: Path) -> int:
    """Return the number of weights in the files. They include the output matrix unless config.json ties it.

    The model is not reliable here: without a value in config.json, transformers treats InternVL's matrix as tied, but
    the files contain it.
    """
    text = lvlm.config.get_text_config(decoder=True)
    default = getattr(text, "tie_word_embeddings", False)
    tied = read_settings(folder, "config.json").get("tie_word_embeddings", default)
    head, embeddings = lvlm.get_output_embeddings().weight, lvlm.get_input_embeddings().weight
    stored = {id(weight): int(weight.numel()) for weight in lvlm.parameters() if weight is not head}
    stored[id(embeddings)] = int(embeddings.numel())
    return sum(stored.values()) + (0 if tied else int(head.numel()))


def _without_weights(folder: Path, attention: str | None = None) -> Any:
    """Return the model of config.json, on torch's meta device."""
    with reading(folder):
        config = read_config(folder)
        model_class: Any = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(config)]
        check_config(config, model_class.__name__)
        with torch.device("meta"), no_init_weights():
            return AutoModelForImageTextToText.from_config(
                config, dtype=own_dtype(config), attn_implementation=attention, trust_remote_code=False
            )


def check_transformers() -> None:
    """Check that the fork is exact under the installed transformers; success is kept in the cache."""
    versions = f"transformers-{transformers.__version__}-torch-{torch.__version__}-{__version__}"
    kept = presets.cache() / "exact" / versions
    with suppress(OSError):
        if kept.is_file():
            return
    from sira_cli.core import selfcheck  # imports a model

    if (failure := selfcheck.failure()) is not None:
        raise UnsupportedModelError(failure)
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.touch()


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
