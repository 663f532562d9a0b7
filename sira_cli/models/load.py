"""From a preset to its model: what its config.json tells, and its weights on a device, in a precision."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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
from sira_cli.models.chat import parser_of
from sira_cli.models.cpu import HALVES, on_processor
from sira_cli.models.hub import Download, find_checkpoint, find_config, first_line
from sira_cli.models.packing import PackedConfig, can_pack, packed_bytes
from sira_cli.models.placement import Placement, pick_device, place
from sira_cli.models.preset import Preset
from sira_cli.models.presets import calibrated
from sira_cli.models.processor import load_processor, read_settings
from sira_cli.models.quantization import check_stored, quantization_config, stored_quantization
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
    for part in (config, getattr(config, "text_config", None), getattr(config, "vision_config", None)):
        layers = getattr(part, "num_hidden_layers", None) or 0
        if layers > MOST_LAYERS:
            raise UnsupportedModelError(f"{folder}/config.json: {layers:,} layers; expected at most {MOST_LAYERS:,}")
    return config


def own_dtype(config: Any) -> torch.dtype | None:
    """Return a config's precision for the whole model, or else (Qwen3-VL) for the text stack."""
    return config.dtype or config.get_text_config(decoder=True).dtype  # type: ignore[no-any-return]


@dataclass(frozen=True)
class WeightOptions:
    """How the weights of a model are read.

    Attributes:
        placement: the devices.
        dtype: the precision, as torch or a preset names it; `auto`: the checkpoint's, on a CPU one that it computes in.
        attention: the attention function; None: the checkpoint's.
        quantization: a config of bitsandbytes.
        packed: bytes of the model with packed matrices (`packed_bytes`); None: unknown.
        trust_remote_code: whether the checkpoint's own Python code may run.
    """

    placement: Placement
    dtype: str | torch.dtype = "auto"
    attention: str | None = None
    quantization: Any = None
    packed: int | None = None
    trust_remote_code: bool = False


def load_model(folder: Path, options: WeightOptions) -> Any:
    """Load the model in a checkpoint folder; on a CPU, 16-bit matrices stay so where arithmetic is in float32."""
    config = read_config(folder, trust_remote_code=options.trust_remote_code)
    stored = stored_quantization(config)
    if stored is not None:
        config.quantization_config = stored
    dtype = options.dtype
    quantization = options.quantization
    if options.placement.device_map == "cpu" and quantization is None:
        stated = own_dtype(config)
        packs = stored is None and stated in HALVES and can_pack(torch.float32, torch.device("cpu"))
        packed = options.packed if packs else None
        if dtype == "auto":
            dtype = on_processor(stated, folder, packed, bits=16 if stored is None else 8)
        if packed is not None and dtype in ("float32", torch.float32):
            quantization = PackedConfig()
    loader: Any = AutoModelForImageTextToText  # annotated as returning the model alone
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model, report = loader.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=options.attention,
            quantization_config=quantization,
            device_map=options.placement.device_map,
            max_memory=options.placement.max_memory,
            trust_remote_code=options.trust_remote_code,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    finally:
        if shown:
            logging.enable_progress_bar()
    gpus = options.placement.max_memory
    if gpus is not None and not {*model.hf_device_map.values()} <= gpus.keys():
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
    fork = Fork(lvlm, SiraConfig())
    text = lvlm.config.get_text_config(decoder=True)
    # The files contain the output matrix unless config.json ties it; without a value there, transformers treats
    # InternVL's as tied.
    default = getattr(text, "tie_word_embeddings", False)
    tied = read_settings(folder, "config.json").get("tie_word_embeddings", default)
    head = lvlm.get_output_embeddings().weight
    embeddings = lvlm.get_input_embeddings().weight
    numbers = sum(weight.numel() for weight in lvlm.parameters() if weight is not head and weight is not embeddings)
    numbers += embeddings.numel()
    if not tied:
        numbers += head.numel()
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
        with torch.device("meta"), no_init_weights():
            return AutoModelForImageTextToText.from_config(
                config, dtype=own_dtype(config), attn_implementation=attention, trust_remote_code=False
            )


def check_transformers() -> None:
    """Check that the fork is exact under the installed transformers; success is kept in the cache."""
    versions = f"transformers-{transformers.__version__}-torch-{torch.__version__}-{__version__}"
    kept = presets.cache() / "exact" / versions
    if kept.is_file():
        return
    from sira_cli.core import selfcheck  # imports a model

    failure = selfcheck.failure()
    if failure is not None:
        raise UnsupportedModelError(failure)
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.touch()


class ModelParts(NamedTuple):
    """What a `LoadedModel` is made of."""

    model: Any
    processor: Any
    preset: Preset
    method: Method
    revision: str


def read_model(
    source: str | os.PathLike[str] | Preset,
    method: str | Method,
    device: str,
    settings: dict[str, Any],
    *,
    offline: bool = False,
    on_download: Callable[[Download], None] | None = None,
) -> ModelParts:
    """Read the parts of a model.

    Args:
        source, method, device, offline, on_download: as for `sira_cli.load`, whose errors are also raised.
        settings: of the preset and of the method, by name; those of the method are taken out.
    """
    preset = source if isinstance(source, Preset) else presets.resolve(os.fspath(source))
    method = preset.method(method)
    of_method = {name: settings.pop(name) for name in tuple(settings) if method.owns(name)}
    method = method.with_settings(**of_method)
    preset = preset.with_settings(**settings)
    model_folder = from_home(preset.model)
    if preset.revision != "main" and model_folder.is_dir():
        raise SettingsError(f"{model_folder}: a folder has no revisions: leave out revision {preset.revision!r}")
    quantization = preset.load.quantization
    if quantization is not None and find_spec("bitsandbytes") is None:
        raise SettingsError(f"quantization {quantization} needs bitsandbytes: {install('quant')}")
    check_transformers()
    picked = pick_device(device)

    def judge(folder: Path) -> WeightOptions:
        model = check_structure(folder, preset)
        if model is not None:
            with reading(folder):
                check_stored(preset.model, model.config, picked)
        return WeightOptions(
            place(device, model, getattr(torch, preset.load.dtype, None), quantization),
            dtype=preset.load.dtype,
            attention=preset.load.attention,
            quantization=None if quantization is None else quantization_config(quantization, model, picked),
            packed=None if model is None else packed_bytes(model),
            trust_remote_code=preset.load.trust_remote_code,
        )

    checkpoint = find_checkpoint(preset, offline=offline, judge=judge, on_download=on_download)
    method = calibrated(method, preset.model, checkpoint.revision)  # before the weights are read
    options = judge(checkpoint.folder)
    with reading(checkpoint.folder):
        processor = load_processor(
            checkpoint.folder, image=preset.image, trust_remote_code=preset.load.trust_remote_code
        )
        if preset.generation.think:
            vocabulary = Vocabulary(processor.tokenizer)  # refused before the weights are read
            parser_of(processor, vocabulary, system=preset.prompts.system, think=True)
        model = load_model(checkpoint.folder, options)
    return ModelParts(model, processor, preset, method, checkpoint.revision)
