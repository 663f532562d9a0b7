"""Methods that have to know something about a model beforehand, and the files in which that is kept.

A calibration is a safetensors file: tensors, and in its metadata what they were made from. `sira calibrate` makes it;
`sira_cli.models.calibrations` finds the one of a model.
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

if TYPE_CHECKING:
    from torch import Tensor

SCHEMA = "sira.calibration/1"


@dataclass(frozen=True)
class Origin:
    """What a calibration was made from.

    Attributes:
        kind: the method that it is for.
        model, revision: as records have them.
        made_from: the rest, as JSON holds it: how many pictures and questions, settings, a hash of the files.
        sira_version: of the command that made it.
    """

    kind: str
    model: str
    revision: str
    made_from: Mapping[str, Any]
    sira_version: str


@dataclass(frozen=True)
class Calibration:
    """What a method has to know about one model: tensors by name, and their origin."""

    origin: Origin
    tensors: Mapping[str, Tensor]

    def write(self, path: Path) -> None:
        """Write the file; folders are made.

        Raises:
            SiraError: it cannot be written.
        """
        from safetensors.torch import save

        from sira_cli.files import replacing

        told = {"schema": SCHEMA, **vars(self.origin)}
        data = save({name: each.contiguous() for name, each in self.tensors.items()}, {"sira": json.dumps(told)})
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(data)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file that `write` made.

        Raises:
            DataError: it cannot be read, or is no calibration.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as file:
                told = json.loads((file.metadata() or {}).get("sira", "{}"))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            schema = told.pop("schema", None)
            origin = Origin(**told) if schema == SCHEMA else None
        except (OSError, SafetensorError, ValueError, TypeError) as error:
            raise DataError(f"{path}: cannot be read as a calibration: {error}") from error
        if origin is None:
            raise DataError(f"{path}: no calibration; `sira calibrate` makes one")
        return cls(origin, tensors)


@dataclass(frozen=True)
class Calibrated(Method):
    """A method that needs a calibration.

    Args:
        calibration: the file; None: that of the model, which `load` finds.
    """

    calibration: str | None = setting(
        None, "file that sira calibrate made (none: the model's own)", kind=str, optional=True
    )

    def settings(self) -> dict[str, Any]:
        """Return the settings as JSON holds them: of a file its content counts, wherever it lies."""
        own = super().settings()
        return own if self.calibration is None else own | {"calibration": digest(self.calibration)}

    def stand_in(self, model: Any) -> dict[str, Tensor]:
        """Return tensors of the right shapes and random values: what the method costs does not depend on them."""
        raise NotImplementedError

    def read(self) -> Calibration:
        """Return the calibration.

        Raises:
            SettingsError: none was given, or it is for another method.
            DataError: the file cannot be read.
        """
        if self.calibration is None:
            raise SettingsError(
                f"method {self.name} needs a calibration of the model: give `calibration=` a file "
                f"that `sira calibrate {self.name}` made"
            )
        found = Calibration.read(Path(self.calibration))
        if found.origin.kind != self.name:
            raise SettingsError(f"{self.calibration}: a calibration for {found.origin.kind}, not for {self.name}")
        return found


def digest(path: str) -> str:
    """Return a name for the content of a file: the beginning of its SHA-256.

    Raises:
        DataError: it cannot be read.
    """
    try:
        changed = Path(path).stat().st_mtime_ns
        return _digest(path, changed)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


@functools.lru_cache(maxsize=64)
def _digest(path: str, changed: int) -> str:
    import hashlib

    return f"sha256:{hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]}"
