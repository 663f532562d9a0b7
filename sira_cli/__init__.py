"""SIRA decoding for Hugging Face vision-language models: fewer hallucinations, no training, one pass.

from sira_cli import SiraConfig, attach, load, run_pictures

lvlm = load("llava-1.5-7b")
print(lvlm.caption("photo.jpg").text)
for event in run_pictures(lvlm, "photos/", output="photos/captions.jsonl", batch_size=8):
    print(event)

with attach(model, SiraConfig(k=14, alpha=0.5)):
    model.generate(**inputs, do_sample=False, repetition_penalty=1.0)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sira_cli._version import __version__

if TYPE_CHECKING:
    from sira_cli.core.config import SiraConfig
    from sira_cli.core.fork import Fork
    from sira_cli.core.image_tokens import Between, ImageTokens
    from sira_cli.core.streams import Step
    from sira_cli.errors import (
        AttachError,
        DataError,
        GenerationSettingsWarning,
        HugePictureError,
        ImageTokenError,
        LongPromptError,
        ModelNotFoundError,
        NoAnswerError,
        NotCalibratedError,
        PictureError,
        PictureMemoryError,
        PictureSettingsError,
        PrivatePictureError,
        SettingsError,
        SiraError,
        UnfinishedJsonError,
        UnfinishedReasoningError,
        UnsupportedModelError,
        UntestedModelWarning,
    )
    from sira_cli.methods.attaching import attach
    from sira_cli.models.preset import Preset
    from sira_cli.run.lvlm import Lvlm, load
    from sira_cli.run.records import Result
    from sira_cli.run.run import run_pictures

__all__ = [
    "AttachError",
    "Between",
    "DataError",
    "Fork",
    "GenerationSettingsWarning",
    "HugePictureError",
    "ImageTokenError",
    "ImageTokens",
    "LongPromptError",
    "Lvlm",
    "ModelNotFoundError",
    "NoAnswerError",
    "NotCalibratedError",
    "PictureError",
    "PictureMemoryError",
    "PictureSettingsError",
    "Preset",
    "PrivatePictureError",
    "Result",
    "SettingsError",
    "SiraConfig",
    "SiraError",
    "Step",
    "UnfinishedJsonError",
    "UnfinishedReasoningError",
    "UnsupportedModelError",
    "UntestedModelWarning",
    "__version__",
    "attach",
    "load",
    "run_pictures",
]

# Where each public name lives. They are imported on first use: `sira --help` must not wait for torch.
_HOMES = dict.fromkeys(__all__, "errors")
_HOMES |= {"SiraConfig": "core.config", "Fork": "core.fork", "Step": "core.streams", "attach": "methods.attaching"}
_HOMES |= {"Between": "core.image_tokens", "ImageTokens": "core.image_tokens", "Preset": "models.preset"}
_HOMES |= {"Lvlm": "run.lvlm", "load": "run.lvlm", "Result": "run.records", "run_pictures": "run.run"}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"sira_cli.{_HOMES[name]}"), name)
