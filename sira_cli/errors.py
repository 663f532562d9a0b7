"""All errors that `sira` raises on purpose. Each message names the cause, the expected value and the next step.

    SiraError
      · SettingsError                 an option, a preset, K, alpha: nothing was begun; also a ValueError
        · NotCalibratedError          `sira calibrate` makes what is missing
        · PictureSettingsError        about one picture; also a PictureError
      · UnsupportedModelError         SIRA cannot follow the model exactly
      · DataError                     a file of questions, answers or records; also a ValueError
      · ModelNotFoundError            weights are missing, and cannot be fetched
      · ImageTokenError               the image's positions in the prompt are not found
      · AttachError                   `attach` was used in a wrong way
      · PictureError                  one picture: a run records it, and goes on with the others
        · HugePictureError
        · PrivatePictureError
        · PictureMemoryError
        · LongPromptError
        · NoAnswerError               of a server
        · UnfinishedReasoningError
        · UnfinishedJsonError
    UserWarning
      · UntestedModelWarning          the structure fits, the family is not tested
      · GenerationSettingsWarning     the checkpoint's settings are not greedy

The command line exits with 2 for the first three kinds and their subclasses, and with 1 for the others.
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packaging.requirements import Requirement

DISTRIBUTION = "sira-cli"  # name of the installed package, for its metadata


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
    """Return the command that installs an extra's packages where the program is: by pipx, uv, uvx, or pip.

    It names these packages and not `sira-cli`, of which no version is published.
    """
    try:
        packages = [f"'{each}'" for each in requirements(extra)]
    except metadata.PackageNotFoundError:  # the package is used from its folder, without being installed
        packages = [f"'{Path(__file__).parents[1]}[{extra}]'"]
    listed, place = " ".join(packages), Path(sys.prefix)
    if (place / "pipx_metadata.json").exists():
        return f"pipx inject {DISTRIBUTION} {listed}"
    if (place / "uv-receipt.toml").exists():
        return f"uv pip install --python '{place}' {listed}"
    if "archive-v0" in place.parts or "environments-v2" in place.parts:  # the cache of uv
        return f"uvx --with {' --with '.join(packages)} --from . sira"
    try:
        metadata.distribution("pip")  # `find_spec("pip")` would make a later import of setuptools fail
        command = "pip"
    except metadata.PackageNotFoundError:
        command = "uv pip" if which("uv") else "pip"
    return f"{command} install {listed}"


def requirements(extra: str) -> list[Requirement]:
    """Return the packages of an extra, with their versions, as `sira` was installed with.

    Raises:
        importlib.metadata.PackageNotFoundError: `sira` is not an installed package.
    """
    from packaging.requirements import Requirement

    found = []
    for line in metadata.distribution(DISTRIBUTION).requires or []:
        requirement = Requirement(line)
        if requirement.marker is not None and requirement.marker.evaluate({"extra": extra}):
            requirement.marker = None  # it is not part of what to type
            found.append(requirement)
    return found
