"""All errors that `sira` raises on purpose. Each message names the cause, the expected value and the next step."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path
from shutil import which
from typing import Any
from urllib.parse import unquote, urlsplit


class SiraError(Exception):
    """Base of all errors with a message for the user; `exit_code` is the command line's."""

    exit_code = 1

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the message and the attributes, for another process: `__init__` may take other arguments."""
        return _rebuilt, (type(self), self.args), self.__dict__


def _rebuilt(kind: type[SiraError], args: tuple[Any, ...]) -> SiraError:
    return kind.__new__(kind, *args)


class SettingsError(SiraError, ValueError):
    """A setting is wrong: K, alpha, an image-token rule, a preset, an option."""

    exit_code = 2


class NotCalibratedError(SettingsError):
    """The method needs a calibration of the model, which does not exist yet."""


class UnsupportedModelError(SiraError):
    """The fork cannot follow the model, its attention, its cache or a way to generate exactly."""

    exit_code = 2


class ImageTokenError(SiraError):
    """The prompt's image tokens cannot be found, or are at positions that the fork cannot handle."""


class AttachError(SiraError):
    """`attach` was used in a wrong way: twice on one model, or with a cache from outside the context."""


class ModelNotFoundError(SiraError):
    """The weights are not on this machine and cannot be fetched."""


class DataError(SiraError, ValueError):
    """A data file (questions, annotations, answers, records) cannot be read, or has the wrong content."""

    exit_code = 2


class PictureError(SiraError):
    """One picture cannot be opened."""


class PrivatePictureError(PictureError):
    """A picture's address is not public; `public`: the message without it, for those who may not know this network."""

    def __init__(self, message: str, public: str = "") -> None:
        super().__init__(message)
        self.public = public


class HugePictureError(PictureError):
    """A picture has more pixels than the limit."""


class PictureMemoryError(PictureError):
    """Memory is too small to decode a picture, even alone."""


class LongPromptError(PictureError):
    """A prompt of so many tokens, pictures included, is longer than the model's context. The message names none."""

    def __init__(self, message: str, *, tokens: int) -> None:
        super().__init__(message)
        self.tokens = tokens


class NoAnswerError(PictureError):
    """A server has no usable answer about one picture; others may do better. The message does not name the picture."""


class UnfinishedReasoningError(PictureError):
    """The text about a picture ended inside the model's reasoning, without an answer."""


class UnfinishedJsonError(PictureError):
    """The text about a picture ended before it was a value of its JSON schema."""


class PictureSettingsError(SettingsError, PictureError):
    """A setting does not fit one picture; a run goes on with the others. The message does not name the picture."""


class UntestedModelWarning(UserWarning):
    """The model has the right structure, but its family is not among those that pass the conformance test."""


class GenerationSettingsWarning(UserWarning):
    """The checkpoint's own generation settings pick other tokens than greedy decoding does."""


def install(extra: str) -> str:
    """Return the command that adds an extra where the program is installed: by pipx, uv, uvx, or pip."""
    package, place = f"'sira-cli[{extra}]'", Path(sys.prefix)
    if (place / "pipx_metadata.json").exists():
        return f"pipx install --force {package}"
    if (place / "uv-receipt.toml").exists():
        return f"uv tool install {package}"
    if "archive-v0" in place.parts or "environments-v2" in place.parts:  # the cache of uv
        return f"uvx --from {package} sira"
    try:
        origin = json.loads(metadata.distribution("sira-cli").read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:
        origin = {}
    if origin.get("dir_info", {}).get("editable"):
        package = f"-e '{unquote(urlsplit(origin['url']).path)}[{extra}]'"
    try:
        metadata.distribution("pip")  # `find_spec("pip")` would make a later import of setuptools fail
        command = "pip"
    except metadata.PackageNotFoundError:
        command = "uv pip" if which("uv") else "pip"
    return f"{command} install {package}"
