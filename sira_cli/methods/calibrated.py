"""Methods that need parameters fitted to a model, and the files that keep them.

A calibration is a safetensors file: tensors, with their origin in the metadata. `sira calibrate` makes it;
`sira_cli.models.presets` finds that of a model.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sira_cli.errors import DataError, SettingsError
from sira_cli.methods.base import Method
from sira_cli.methods.settings import setting
from sira_cli.parsing import from_json

if TYPE_CHECKING:
    from torch import Tensor

SCHEMA = "sira.calibration/1"


@dataclass(frozen=True)
class Origin:
    """The origin of a calibration."""

    kind: str  # the method that it is for
    model: str
    revision: str
    # its data, as JSON values: numbers of pictures and questions, settings, a hash of the files
    made_from: Mapping[str, Any]
    sira_version: str  # version of the command that made it


@dataclass(frozen=True)
class Calibration:
    """A method's parameters for one model: tensors by name, and their origin."""

    origin: Origin
    tensors: Mapping[str, Tensor]

    def write(self, path: Path) -> None:
        """Write the file, and make its folders."""
        from safetensors.torch import save

        from sira_cli.files import replacing

        told = {"schema": SCHEMA, **vars(self.origin)}
        tensors = {name: tensor.contiguous() for name, tensor in self.tensors.items()}
        data = save(tensors, {"sira": json.dumps(told)})
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(data)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file of `write`."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as file:
                told = from_json((file.metadata() or {}).get("sira", "{}"))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            schema = told.pop("schema", None)
            origin = Origin(**told) if schema == SCHEMA else None
        except (OSError, SafetensorError, ValueError, TypeError) as error:
            raise DataError(f"{path}: cannot be read as a calibration: {error}") from error
        if origin is None:
            raise DataError(f"{path}: not a calibration; `sira calibrate` makes one")
        return cls(origin, tensors)


@dataclass(frozen=True)
class Calibrated(Method):
    """A method that needs a calibration."""

    calibration: str | None = setting(
        None, "file made by sira calibrate (none: the model's own)", kind=str, optional=True
    )

    def settings(self) -> dict[str, Any]:
        """Return the settings as JSON values; a file is represented by its content, not its path."""
        settings = super().settings()
        if self.calibration is not None:
            settings["calibration"] = digest(self.calibration)
        return settings

    def stand_in(self, model: Any) -> dict[str, Tensor]:
        """Return random tensors of the right shapes: the method's cost does not depend on their values.

        Raises:
            UnsupportedModelError: the method cannot follow a model of this structure.
        """
        raise NotImplementedError

    def read(self) -> Calibration:
        """Return the calibration."""
        if self.calibration is None:
            raise SettingsError(
                f"method {self.name} needs a calibration of the model: set `calibration=` to a file "
                f"made by `sira calibrate {self.name}`"
            )
        calibration = _read(self.calibration, _changed(self.calibration))
        if calibration.origin.kind != self.name:
            raise SettingsError(f"{self.calibration}: a calibration for {calibration.origin.kind}, not for {self.name}")
        return calibration


def digest(path: str) -> str:
    """Return a name for the content of a file: the beginning of its SHA-256."""
    return _digest(path, _changed(path))


def _changed(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


@functools.lru_cache(maxsize=64)  # each record needs it
def _digest(path: str, changed: int) -> str:
    import hashlib

    return f"sha256:{hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]}"


@functools.lru_cache(maxsize=4)
def _read(path: str, changed: int) -> Calibration:
    return Calibration.read(Path(path))
