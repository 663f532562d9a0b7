"""SIRA decoding for Hugging Face vision-language models: fewer hallucinations, no training, one pass.

from sira_cli import SiraConfig, attach, load

print(load("llava-1.5-7b").caption("photo.jpg").text)

with attach(model, SiraConfig(k=14, alpha=0.5)):
    model.generate(**inputs)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sira_cli._version import __version__

if TYPE_CHECKING:
    from sira_cli.config import SiraConfig
    from sira_cli.errors import (
        AttachError,
        ImageTokenError,
        ModelNotFoundError,
        PictureError,
        SettingsError,
        SiraError,
        UnsupportedModelError,
        UntestedModelWarning,
    )
    from sira_cli.fork import Fork, Step, attach
    from sira_cli.image_tokens import Between, ImageTokens
    from sira_cli.loading import load
    from sira_cli.lvlm import Lvlm
    from sira_cli.presets import Preset
    from sira_cli.results import Result

# Where each public name lives. They are imported on first use: `sira --help` must not wait for torch.
_HOMES = {
    "AttachError": "errors",
    "Between": "image_tokens",
    "Fork": "fork",
    "ImageTokenError": "errors",
    "ImageTokens": "image_tokens",
    "Lvlm": "lvlm",
    "ModelNotFoundError": "errors",
    "PictureError": "errors",
    "Preset": "presets",
    "Result": "results",
    "SettingsError": "errors",
    "SiraConfig": "config",
    "SiraError": "errors",
    "Step": "fork",
    "UnsupportedModelError": "errors",
    "UntestedModelWarning": "errors",
    "attach": "fork",
    "load": "loading",
}

__all__ = [
    "AttachError",
    "Between",
    "Fork",
    "ImageTokenError",
    "ImageTokens",
    "Lvlm",
    "ModelNotFoundError",
    "PictureError",
    "Preset",
    "Result",
    "SettingsError",
    "SiraConfig",
    "SiraError",
    "Step",
    "UnsupportedModelError",
    "UntestedModelWarning",
    "__version__",
    "attach",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"sira_cli.{_HOMES[name]}"), name)
