"""Reports as JSON, and the model that they are about."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from sira_cli._version import __version__
from sira_cli.models.lvlm import Lvlm


class Report:
    """Measurements written as one JSON object; subclasses are dataclasses."""

    def as_json(self, schema: str, **changed: Any) -> str:
        """Return the report as one JSON object, between its schema and sira's version.

        Args:
            schema: such as `sira.sweep/1`.
            **changed: fields with another form in JSON; None leaves a field out.
        """
        record = {"schema": schema, **asdict(self), **changed, "sira_version": __version__}  # type: ignore[call-overload]
        left_out = {name for name, value in changed.items() if value is None}
        kept = {name: value for name, value in record.items() if name not in left_out}
        return json.dumps(kept, ensure_ascii=False, allow_nan=False)


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
