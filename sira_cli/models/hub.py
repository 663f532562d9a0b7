"""From a model id or folder to a folder with its files. The cache is checked first: without a network,
look-ups retry for half a minute."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
from huggingface_hub import HfApi, constants, get_session, hf_hub_download, snapshot_download
from huggingface_hub import errors as hub_errors
from huggingface_hub.hf_api import RepoSibling
from huggingface_hub.utils._paths import filter_repo_objects
from huggingface_hub.utils._validators import validate_repo_id

from sira_cli.errors import ModelNotFoundError, SettingsError, UnsupportedModelError
from sira_cli.files import from_home
from sira_cli.models.preset import Preset
from sira_cli.models.presets import BUNDLED, BUNDLED_FOLDER
from sira_cli.parsing import from_json

FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
CODE = ["*.py"]
IGNORED = ["*/*", "consolidated*"]  # other formats of the same weights
PARTS = {
    "tokenizer": ("tokenizer.json", "tokenizer.model", "vocab.json"),
    "image processor": ("preprocessor_config.json", "processor_config.json"),
}
SAMPLE = 1 << 16  # bytes that are read at each place of a file of weights
SAMPLE_EVERY = 1 << 23  # bytes from one place to the next
TIMEOUT = 10.0  # seconds for the first answer of the hub
PATIENCE = 3.0  # seconds to find out whether there is a hub
REACHABLE = "reachable"


@dataclass(frozen=True)
class Checkpoint:
    """A model's files on disk. `commit` is None for a user's folder."""

    folder: Path
    commit: str | None = None

    @functools.cached_property
    def revision(self) -> str:
        """The commit, or a fingerprint of the folder without reading gigabytes: 64 KiB of every 8 MiB of weights."""
        if self.commit is not None:
            return self.commit
        digest = hashlib.sha256()
        files = [path for path in self.folder.iterdir() if any(map(path.match, FILES + CODE))]
        for path in sorted(files):
            size = path.stat().st_size
            digest.update(f"{path.name}:{size}:".encode())
            with path.open("rb") as file:
                for start in range(0, size, SAMPLE_EVERY):
                    file.seek(start)
                    digest.update(file.read(SAMPLE_EVERY if path.suffix != ".safetensors" else SAMPLE))
        return f"folder-{digest.hexdigest()[:12]}"


class Download(NamedTuple):
    """A download that is about to start, to show to the user."""

    model: str
    revision: str
    gigabytes: float
    cache: str


def find_checkpoint(
    preset: Preset,
    *,
    offline: bool = False,
    judge: Callable[[Path], object] = lambda folder: None,
    on_download: Callable[[Download], None] | None = None,
) -> Checkpoint:
    """Find the files of a preset's model: in a folder, in the cache, or on the hub, from where they are fetched.

    Args:
        preset: names the model.
        offline: never contact the hub.
        judge: called with a folder that holds the config before weights are fetched; its errors end the search.
        on_download: called before a download.

    Raises:
        ModelNotFoundError: the files are not here, incomplete, or cannot be fetched.
        UnsupportedModelError: they are known to be unusable.
    """
    model = preset.model
    revision = preset.revision
    folder = _as_folder(model)
    if folder is not None:
        lacking = what_is_lacking(folder)
        if lacking:
            raise ModelNotFoundError(f"model folder {folder}: {lacking}")
        return Checkpoint(folder)

    files = FILES + CODE if preset.load.trust_remote_code else FILES
    patterns: Any = {"allow_patterns": files, "ignore_patterns": IGNORED}
    # By the requested name: only then is a download found in the cache the next time.
    download = functools.partial(snapshot_download, model, revision=revision, **patterns)
    with contextlib.suppress(hub_errors.LocalEntryNotFoundError):
        cached = Path(download(local_files_only=True))
        if what_is_lacking(cached) is None:
            _check_folder(cached, model)
            return Checkpoint(cached, cached.name)
    size = f" (about {preset.download_gb:g} GB)" if preset.download_gb else ""
    with _hub_errors(model, revision, size, offline):
        wanted = list(filter_repo_objects(_listed(model, revision), key=lambda file: file.rfilename, **patterns))
        if not any(is_weights(file.rfilename) for file in wanted):
            raise ModelNotFoundError(f"{model} has no safetensors weights, and `sira` loads no pickles; convert it")
        judge(Path(hf_hub_download(model, "config.json", revision=revision)).parent)
        if on_download is not None:
            total = sum(file.size or 0 for file in wanted) / 1e9
            on_download(Download(model, revision, total, constants.HF_HUB_CACHE))
        fetched = Path(download())
    return Checkpoint(fetched, fetched.name)


def hub_state() -> str:
    """Return `reachable`, `offline mode`, or one line that says why the hub cannot be reached; asks once."""
    if constants.HF_HUB_OFFLINE:
        return "offline mode"
    try:
        answer = get_session().head(constants.ENDPOINT, timeout=PATIENCE)
    except (httpx2.HTTPError, OSError) as error:
        return f"{constants.ENDPOINT} cannot be reached ({first_line(error)})"
    return REACHABLE if answer.status_code < 500 else f"{constants.ENDPOINT} answers with {answer.status_code}"


def find_config(preset: Preset, *, offline: bool = False) -> Path:
    """Return a folder with at least the config.json of a preset's model."""
    model = preset.model
    revision = preset.revision
    folder = _as_folder(model)
    if folder is not None:
        return folder
    download = functools.partial(hf_hub_download, model, "config.json", revision=revision)
    with contextlib.suppress(hub_errors.LocalEntryNotFoundError):
        cached = Path(download(local_files_only=True)).parent
        _check_folder(cached, model)
        return cached
    with _hub_errors(model, revision, "", offline):
        _listed(model, revision)
        return Path(download()).parent


def _wrong_path(message: str) -> ModelNotFoundError:
    """Return the error of a path that is no model, with the exit code of all wrong paths."""
    error = ModelNotFoundError(message)
    error.exit_code = SettingsError.exit_code
    return error


def _as_folder(model: str) -> Path | None:
    """Return the folder that `model` names; None for a hub id."""
    folder = BUNDLED_FOLDER if model == BUNDLED else from_home(model)
    if folder.is_dir():
        _check_folder(folder, model)
        if not (folder / "config.json").is_file():
            raise _wrong_path(f"model folder {folder}: no config.json; expected a Hugging Face checkpoint")
        return folder
    if folder.is_absolute() or model.startswith(("./", "../", "~")):
        raise _wrong_path(f"model folder {model} does not exist")
    try:
        validate_repo_id(model)
    except hub_errors.HFValidationError:
        raise ModelNotFoundError(f"{model!r} is neither a folder nor a model id like owner/name") from None
    return None


def _check_folder(folder: Path, model: str) -> None:
    check_usable(model, [path.name for path in folder.iterdir()], lambda name: folder / name)


def _listed(model: str, revision: str) -> list[RepoSibling]:
    files = HfApi().model_info(model, revision=revision, files_metadata=True, timeout=TIMEOUT).siblings or []
    names = [file.rfilename for file in files]
    check_usable(model, names, lambda name: hf_hub_download(model, name, revision=revision))
    return files


@contextlib.contextmanager
def _hub_errors(model: str, revision: str, size: str, offline: bool) -> Iterator[None]:
    """Turn every failure of the hub into one line with advice."""
    ways_out = (
        f"Either fetch it with a network connection (`hf download {model}`) and pass its folder with `model=`, "
        "or use `preset=` demo, which needs no download but knows drawn scenes only."
    )
    if offline or constants.HF_HUB_OFFLINE:
        raise ModelNotFoundError(f"{model}{size} is not in the cache and offline mode is on. {ways_out}")
    try:
        yield
    except hub_errors.GatedRepoError:
        way = f"accept its terms at {constants.ENDPOINT}/{model} and set HF_TOKEN"
        raise ModelNotFoundError(f"{model} is gated: {way}") from None
    except hub_errors.RevisionNotFoundError:
        raise ModelNotFoundError(f"{model} has no revision {revision!r}") from None
    except hub_errors.RepositoryNotFoundError:
        way = "or it is private: check the name, or set HF_TOKEN"
        raise ModelNotFoundError(f"{model} does not exist on {constants.ENDPOINT}, {way}") from None
    except (hub_errors.HfHubHTTPError, httpx2.HTTPError, hub_errors.LocalEntryNotFoundError, OSError) as error:
        problem = f"is not in the cache and cannot be fetched from {constants.ENDPOINT} ({first_line(error)})"
        raise ModelNotFoundError(f"{model}{size} {problem}. {ways_out}") from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or else its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def what_is_lacking(folder: Path) -> str | None:
    """Return the missing part of a checkpoint folder; None: it is complete."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            shards = {*from_json(index.read_text(encoding="utf-8"))["weight_map"].values()}
        except (ValueError, KeyError, TypeError, AttributeError):
            return f"{index.name} is damaged"
        absent = sorted(shard for shard in shards if not (folder / shard).is_file())
        if absent:
            return f"{absent[0]} is missing, one of {len(absent)} absent shards"
    elif not any(is_weights(path.name) for path in folder.iterdir()):
        return "no safetensors weights, and `sira` loads no pickles; convert them"
    for part, names in PARTS.items():
        if not any((folder / name).is_file() for name in names):
            return f"no {part} ({' or '.join(names)})"
    return None


OWN_CODE = "only its own Python code runs it, which SIRA cannot follow, with or without `trust_remote_code=`"
AUTHORS_LLAVA = "it is LLaVA in its authors' format: take the version for transformers, from https://hf.co/llava-hf"
# Reasons by `model_type` of config.json; `{model}` is the requested name.
MODEL_TYPES = {
    "internvl_chat": "it is InternVL in its authors' format: take the version for transformers ({model}-hf on the hub)",
    **dict.fromkeys(("llava_llama", "llava_mistral", "llava_qwen"), AUTHORS_LLAVA),
    **dict.fromkeys(("minicpmo", "minicpmv", "molmo", "phi3_v"), OWN_CODE),
}


def check_usable(model: str, files: Collection[str], path_of: Callable[[str], str | Path]) -> None:
    """Check that a repository or folder with these files is not known to be unusable."""

    def read(name: str) -> dict[str, Any]:
        content: Any = None
        if name in files:
            with contextlib.suppress(ValueError):  # damaged, which is reported elsewhere
                content = from_json(Path(path_of(name)).read_text(encoding="utf-8"))
        return content if isinstance(content, dict) else {}

    config = read("config.json")
    quantized = config.get("quantization_config")
    reason = AUTHORS_LLAVA if config.get("mm_vision_tower") else MODEL_TYPES.get(str(config.get("model_type")))
    if config.get("quantization") and not (isinstance(quantized, dict) and quantized.get("quant_method")):
        reason = "it is an MLX conversion, for Apple's MLX: take the original model"
    if not any(map(is_weights, files)):
        if "adapter_config.json" in files:
            base = read("adapter_config.json").get("base_model_name_or_path") or "its base model"
            way = "load both with peft, `merge_and_unload()`, save the result and the processor, and give that folder"
            reason = f"it is an adapter (LoRA) of {base}, not a model: {way}"
        elif any(name.endswith(".gguf") for name in files):
            reason = "it is a GGUF conversion, for llama.cpp: take the original model, with safetensors weights"
    if reason is not None:
        raise UnsupportedModelError(f"{model} cannot be used: {reason.format(model=model.rstrip('/'))}")


def is_weights(name: str) -> bool:
    """Return whether a file of a repository contains weights of the model, by its name."""
    return name.endswith(".safetensors") and not name.startswith("adapter_") and "/" not in name
