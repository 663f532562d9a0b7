"""A checkpoint's processor (tokenizer, image processor, chat template), from its own files, as it is loaded.

Several families' processors need a video processor, which needs torchvision. They are loaded without it.
"""

from __future__ import annotations

import importlib
import inspect
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig, AutoProcessor
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING, processor_class_from_name
from transformers.processing_utils import ProcessorMixin

from sira_cli.errors import PictureError, SiraError, UnsupportedModelError
from sira_cli.models.hub import first_line
from sira_cli.models.preset import ImageSettings
from sira_cli.models.resizing import limit_size
from sira_cli.parsing import from_json
from sira_cli.pictures.names import one_line

if TYPE_CHECKING:
    pass


def load_processor(folder: Path, *, image: ImageSettings | None = None, trust_remote_code: bool = False) -> Any:
    """Load the processor of the checkpoint in `folder`, without its video part."""
    if trust_remote_code:
        processor = AutoProcessor.from_pretrained(folder, trust_remote_code=True, local_files_only=True)
    else:
        processor_class = _without_video(_processor_class(folder))
        with _todays_names(folder) as files:
            processor = processor_class.from_pretrained(files, local_files_only=True, trust_remote_code=False)
    if hasattr(processor, "num_additional_image_tokens"):
        _complete_counting(processor, folder, trust_remote_code)
    tokenizer = processor.tokenizer
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token is None:
            lacking = "neither a padding token nor an end token: name one in tokenizer_config.json (pad_token)"
            raise UnsupportedModelError(f"the tokenizer in {folder} has {lacking}")
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"  # generation continues at the right end
    limit_size(processor, image or ImageSettings())
    return processor


def pixel_library(processor: Any) -> str:
    """Return the library that makes a picture's pixels, with its version: Pillow and torchvision round differently."""
    library = getattr(processor.image_processor, "backend", "pil").replace("pil", "pillow")
    return f"{library} {version(library)}"


def refused(name: str, error: Exception) -> PictureError:
    """Turn any error of an image processor into the picture's error."""
    return PictureError(f"{one_line(name)}: the image processor refused it: {first_line(error)}")


@contextmanager
def refusing(name: str) -> Iterator[None]:
    """Turn errors of an image processor inside this context into those of the picture of this name."""
    try:
        yield
    except SiraError:
        raise
    except Exception as error:
        raise refused(name, error) from error


def _processor_class(folder: Path) -> Any:
    """Return the class named in the files, in AutoProcessor's order; else that of the model type."""
    for file in ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json"):
        name = read_settings(folder, file).get("processor_class")
        if name is not None:
            named = processor_class_from_name(name)
            if named is None:
                raise UnsupportedModelError(f"{folder / file}: this transformers has no {name!r}")
            return _importable(named)
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if type(config) not in PROCESSOR_MAPPING:
        raise UnsupportedModelError(f"{folder}: {config.model_type!r} has no processor for pictures and text")
    return _importable(PROCESSOR_MAPPING[type(config)])


def _importable(named: Any) -> Any:
    """Return `named`, or the real class if transformers has a dummy because torchvision is missing."""
    if not getattr(named, "is_dummy", False):
        return named
    if named.__name__ != "PixtralProcessor":
        raise UnsupportedModelError(f"{named.__name__} needs torchvision: pip install torchvision")
    package = "transformers.models.pixtral"  # imports a function that the image processor for Pillow also has
    absent = f"{package}.image_processing_pixtral"
    sys.modules[absent] = importlib.import_module(f"{package}.image_processing_pil_pixtral")
    try:
        return importlib.import_module(f"{package}.processing_pixtral").PixtralProcessor
    finally:
        del sys.modules[absent]


class _NoVideo(ProcessorMixin):
    """Base after a processor class in the order of bases: takes a video processor that is None out of its call."""

    def __init__(self, *args: Any, video_processor: None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call] # not annotated upstream


def _without_video(base: Any) -> Any:
    if "video_processor" not in inspect.signature(base.__init__).parameters:
        return base

    def get_attributes(cls: type[Any]) -> list[str]:
        return [name for name in base.get_attributes() if name != "video_processor"]

    def from_args_and_dict(cls: type[Any], /, args: list[Any], settings: dict[str, Any], **more: Any) -> Any:
        # By name: `args` are the parts without the video processor, which may not be the last.
        parts = dict(zip(get_attributes(cls), args, strict=True))
        return base.from_args_and_dict.__func__(cls, [], settings, **parts, video_processor=None, **more)

    changed = {
        "get_attributes": classmethod(get_attributes),
        "from_args_and_dict": classmethod(from_args_and_dict),
        # SmolVLM's own asks the video processor for its settings, then calls this one.
        "apply_chat_template": ProcessorMixin.apply_chat_template,
    }
    return type(base.__name__, (base, _NoVideo), changed)


# Image processors that transformers has renamed: that of the first uploads of Qwen2.5-VL, and of models made of them.
RENAMED = {"Qwen2_5_VLImageProcessor": "Qwen2VLImageProcessor"}
SMALL = (".json", ".jinja", ".model", ".txt")  # endings of all files that a processor may need
# Vision towers that put a token before those of the patches. It is counted, even if it is dropped again.
CLASS_TOKENS = {"clip_vision_model": 1}


@contextmanager
def _todays_names(folder: Path) -> Iterator[Path]:
    """Yield a folder with the checkpoint's processor files, old names replaced; usually `folder` itself."""
    settings = read_settings(folder, "preprocessor_config.json")
    if settings.get("image_processor_type") not in RENAMED:
        yield folder
        return
    settings["image_processor_type"] = RENAMED[settings["image_processor_type"]]
    with tempfile.TemporaryDirectory() as place:
        for path in folder.iterdir():
            if path.is_file() and path.suffix in SMALL:
                shutil.copy(path, place)
        (Path(place) / "preprocessor_config.json").write_text(json.dumps(settings), encoding="utf-8")
        yield Path(place)


def read_settings(folder: Path, name: str) -> dict[str, Any]:
    """Return the content of a checkpoint's JSON file; empty if the file does not exist."""
    path = folder / name
    content: dict[str, Any] = from_json(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return content


def _complete_counting(processor: Any, folder: Path, trust_remote_code: bool) -> None:
    """Set what LLaVA's processors count image tokens by, where files from before autumn 2024 lack it."""
    stated = read_settings(folder, "processor_config.json")
    names = ("patch_size", "vision_feature_select_strategy", "num_additional_image_tokens")
    missing = [name for name in names if stated.get(name) is None]
    if not missing:
        return
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=trust_remote_code)
    vision = getattr(config, "vision_config", None)
    in_config = {
        "patch_size": getattr(vision, "patch_size", None),
        "vision_feature_select_strategy": getattr(config, "vision_feature_select_strategy", None),
        "num_additional_image_tokens": CLASS_TOKENS.get(getattr(vision, "model_type", ""), 0),
    }
    for name in missing:
        if in_config[name] is None:
            raise UnsupportedModelError(
                f"{folder}: image tokens cannot be counted without {name}: add it to processor_config.json"
            )
        setattr(processor, name, in_config[name])
