"""Complete the processor files of older checkpoints: missing settings, and names that no longer exist."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from sira_cli.errors import UnsupportedModelError

# Image processors that transformers has renamed: that of the first uploads of Qwen2.5-VL.
RENAMED = {"Qwen2_5_VLImageProcessor": "Qwen2VLImageProcessor"}
SMALL = (".json", ".jinja", ".model", ".txt")  # endings of all files that a processor may need
# Vision towers that put a token before those of the patches. It is counted, even if it is dropped again.
CLASS_TOKENS = {"clip_vision_model": 1}


@contextmanager
def todays_names(folder: Path) -> Iterator[Path]:
    """Yield a folder with the checkpoint's processor files, old names replaced; usually `folder` itself."""
    settings = read_settings(folder, "preprocessor_config.json")
    today = RENAMED.get(settings.get("image_processor_type", ""))
    if today is None:
        yield folder
        return
    with tempfile.TemporaryDirectory() as place:
        for path in folder.iterdir():
            if path.is_file() and path.suffix in SMALL:
                shutil.copy(path, place)
        changed = json.dumps({**settings, "image_processor_type": today})
        (Path(place) / "preprocessor_config.json").write_text(changed, encoding="utf-8")
        yield Path(place)


def complete_processor(processor: Any, folder: Path, *, trust_remote_code: bool) -> None:
    """Set missing processor settings of the checkpoint in `folder` that every picture needs.

    LLaVA's processors count image tokens themselves; files from before autumn 2024 lack the settings for this.
    """
    if hasattr(processor, "num_additional_image_tokens"):
        _complete_counting(processor, folder, trust_remote_code)
    tokenizer = processor.tokenizer
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token is None:
            raise UnsupportedModelError(
                f"the tokenizer in {folder} has neither a padding token nor an end token: name one in "
                "tokenizer_config.json (pad_token)"
            )
        tokenizer.pad_token = tokenizer.eos_token


def read_settings(folder: Path, name: str) -> dict[str, Any]:
    """Return the content of a checkpoint's JSON file; empty if the file does not exist."""
    path = folder / name
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return content


def _complete_counting(processor: Any, folder: Path, trust_remote_code: bool) -> None:
    names = ("patch_size", "vision_feature_select_strategy", "num_additional_image_tokens")
    stated = read_settings(folder, "processor_config.json")
    lacking = [name for name in names if stated.get(name) is None]
    if not lacking:
        return
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=trust_remote_code)
    vision = getattr(config, "vision_config", None)
    known = {
        "patch_size": getattr(vision, "patch_size", None),
        "vision_feature_select_strategy": getattr(config, "vision_feature_select_strategy", None),
        "num_additional_image_tokens": CLASS_TOKENS.get(getattr(vision, "model_type", ""), 0),
    }
    for name in lacking:
        if known[name] is None:
            raise UnsupportedModelError(
                f"{folder}: neither processor_config.json nor config.json has {name}, without which image tokens "
                "cannot be counted: add it to processor_config.json"
            )
        setattr(processor, name, known[name])
