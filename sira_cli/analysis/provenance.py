"""Reports that say which model they are of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sira_cli.run.lvlm import Lvlm
from sira_cli.run.report import Report


@dataclass(frozen=True)
class Provenance(Report):
    """The model that was measured, as it was loaded. Reports of one model are subclasses."""

    preset: str
    model: str
    revision: str
    quantization: str | None
    dtype: str

    @staticmethod
    def fields_of(lvlm: Lvlm) -> dict[str, Any]:
        """Return the fields of a loaded model."""
        return {
            "preset": lvlm.preset.name,
            "model": lvlm.preset.model,
            "revision": lvlm.revision,
            "quantization": lvlm.quantization,
            "dtype": lvlm.dtype,
        }
