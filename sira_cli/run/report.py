"""Reports of measurements as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar, Self

from pydantic import TypeAdapter

from sira_cli._version import __version__


class Report:
    """Measurements that are written as one JSON object; subclasses are dataclasses.

    Attributes:
        schema: such as `sira.sweep/1`.
        optional: fields that are left out where they say nothing.
    """

    schema: ClassVar[str]
    optional: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Make a report from the JSON of `to_json`."""
        return TypeAdapter(cls).validate_json(text)

    def to_json(self) -> str:
        """Return the report as one JSON object; figures that are not finite are null."""
        return self.as_json()

    def as_json(self, first: Mapping[str, Any] | None = None, **changed: Any) -> str:
        """Return the report as one JSON object, between its schema and sira's version."""
        fields = asdict(self) | changed  # type: ignore[call-overload]
        record = {"schema": self.schema, **(first or {}), **fields, "sira_version": __version__}
        left_out = {name for name, value in changed.items() if value is None}
        left_out |= {name for name in self.optional if not fields[name]}
        kept = {name: _finite(value) for name, value in record.items() if name not in left_out}
        return json.dumps(kept, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    """Return a value with null for figures that are no finite numbers."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
