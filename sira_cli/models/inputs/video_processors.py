"""A checkpoint's video processor, with or without torchvision."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import re
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import transformers
from PIL import Image
from transformers.video_utils import VideoMetadata

from sira_cli.errors import PictureError
from sira_cli.models.inputs import frame_tensors
from sira_cli.models.inputs.completing import read_settings
from sira_cli.pictures.clip import Rule, Timeline, evenly

_BASE = "transformers.video_processing_utils"
_BACKEND = "transformers.image_processing_backends"
# Arguments of a video processor that have nothing to do with which frames are taken.
_OTHERS = ("input_data_format", "do_convert_rgb", "do_sample_frames", "device", "video_metadata", "return_metadata")


def load_video_processor(folder: Path, model_type: str) -> Any:
    """Return the video processor of a checkpoint; None: the checkpoint has no known one.

    Args:
        folder: a checkpoint's files.
        model_type: of its config.
    """
    found = next((name for name in _names(folder, model_type) if name in _modules()), None)
    if found is None:
        return None
    try:
        made = getattr(_module(_modules()[found]), found)
        return made.from_pretrained(folder, local_files_only=True)
    except (ImportError, OSError):  # it needs more of torchvision than `frame_tensors` has (Ernie), or has no files
        return None


def rule_of(video_processor: Any) -> Rule:
    """Return the rule by which a checkpoint's video processor takes frames of a clip."""
    names = [name for name in video_processor.valid_kwargs.__annotations__ if name not in _OTHERS]
    settings = {name: getattr(video_processor, name, None) for name in names}
    asked = inspect.signature(video_processor.sample_frames).parameters
    by_rule = settings.get("do_sample_frames") or settings.get("fps") or settings.get("num_frames")

    def rule(timeline: Timeline, frames: int | None, fps: float | None) -> Sequence[int]:
        given = {"num_frames": frames, "fps": fps} if frames or fps else {}
        takes = all(name in asked for name, value in given.items() if value is not None)
        if not takes or not (by_rule or given) or (fps and settings.get("num_frames")):
            return evenly(timeline, frames, fps)
        values = settings | given
        if (number := values.get("num_frames")) is not None:
            values["num_frames"] = min(int(number), timeline.count)
        try:
            return list(video_processor.sample_frames(metadata=metadata_of(timeline), **values))
        except ValueError as error:
            raise PictureError(f"the model's rule takes no frames of it: {error}") from error

    return rule


def metadata_of(timeline: Timeline, numbers: Sequence[int] | None = None) -> VideoMetadata:
    """Return a clip's facts in the form of video processors; `numbers`: of the chosen frames."""
    return VideoMetadata(
        total_num_frames=timeline.count,
        fps=timeline.fps,
        width=timeline.width,
        height=timeline.height,
        duration=timeline.seconds,
        frames_indices=None if numbers is None else list(numbers),
    )


def _names(folder: Path, model_type: str) -> Iterator[str]:
    """Yield possible names of the class, in transformers' order: from the files, then from the model's type."""
    own = read_settings(folder, "processor_config.json").get("video_processor") or {}
    videos = read_settings(folder, "video_preprocessor_config.json") | own
    images = read_settings(folder, "preprocessor_config.json")
    for settings in (videos, images):
        if name := settings.get("video_processor_type"):
            yield name
    if name := images.get("image_processor_type"):
        yield re.sub(r"ImageProcessor(Fast|Pil)?$", "VideoProcessor", name)
    yield from (name for name, module in _modules().items() if module.endswith(f".video_processing_{model_type}"))


@functools.cache
def _modules() -> dict[str, str]:
    """Return the modules of transformers' video processors by the names of their classes, without importing them."""
    root = Path(transformers.__file__).parent / "models"
    return {
        name: f"transformers.models.{file.parent.name}.{file.stem}"
        for file in sorted(root.glob("*/video_processing_*.py"))
        for name in re.findall(r"^class (\w+VideoProcessor)\(", file.read_text(encoding="utf-8"), re.MULTILINE)
    }


def _module(name: str) -> Any:
    """Import a video processor's module; without torchvision, `frame_tensors` takes its place."""
    if importlib.util.find_spec("torchvision") is not None:
        return importlib.import_module(name)
    with _stood_in():
        modules = [importlib.import_module(each) for each in (_BACKEND, _BASE, name)]
    for module in modules:
        vars(module).setdefault("tvF", frame_tensors)
    modes = frame_tensors.InterpolationMode
    vars(modules[0])["is_torchvision_greater_or_equal"] = lambda version: True  # `frame_tensors` has all it asks for
    vars(modules[0])["pil_torch_interpolation_mapping"] = {
        Image.Resampling.NEAREST: modes.NEAREST_EXACT,
        Image.Resampling.BILINEAR: modes.BILINEAR,
        Image.Resampling.BICUBIC: modes.BICUBIC,
        Image.Resampling.LANCZOS: modes.LANCZOS,
    }
    return modules[-1]


@contextmanager
def _stood_in() -> Iterator[None]:
    """Inside this context, imports of torchvision's functions find `frame_tensors`."""
    names = ["torchvision", "torchvision.transforms", "torchvision.transforms.v2"]
    stand_ins: dict[str, Any] = {name: types.ModuleType(name) for name in names}
    for name in names[1:]:
        stand_ins[name].functional = frame_tensors
        stand_ins[name].InterpolationMode = frame_tensors.InterpolationMode
        stand_ins[f"{name}.functional"] = frame_tensors
    stand_ins["torchvision"].transforms = stand_ins["torchvision.transforms"]
    stand_ins["torchvision.transforms"].v2 = stand_ins["torchvision.transforms.v2"]
    utilities: Any = transformers.utils
    available = utilities.is_torchvision_v2_available
    sys.modules.update(stand_ins)
    utilities.is_torchvision_v2_available = lambda: True  # modules name its types in annotations
    try:
        yield
    finally:
        utilities.is_torchvision_v2_available = available
        for name in stand_ins:
            del sys.modules[name]
