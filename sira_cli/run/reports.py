"""Reports of measurements: as JSON, and their tables in words."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import TypeAdapter

from sira_cli._version import __version__
from sira_cli.files import write_whole


class Report:
    """Measurements that are written as one JSON object; subclasses are dataclasses."""

    schema: ClassVar[str]  # such as `sira.sweep/1`
    optional: ClassVar[tuple[str, ...]] = ()  # fields that are left out where they say nothing

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Make a report from the JSON of `to_json`."""
        return TypeAdapter(cls).validate_json(text)

    def to_json(self) -> str:
        """Return the report as one JSON object; figures that are not finite are null."""
        return self.as_json()

    def save(self, path: Path) -> None:
        """Write the report as one JSON object."""
        write_whole(path, self.to_json().encode() + b"\n")

    def as_json(self, first: Mapping[str, Any] | None = None, **changed: Any) -> str:
        """Return the report as one JSON object, between its schema and sira's version."""
        fields = asdict(self) | changed  # type: ignore[call-overload]
        left_out = [name for name, value in changed.items() if value is None]
        left_out += [name for name in self.optional if not fields[name]]
        for name in left_out:
            del fields[name]
        record = {"schema": self.schema, **(first or {}), **fields, "sira_version": __version__}
        return json.dumps(_finite(record), ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    """Return a value with null for figures that are no finite numbers."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True)
class Table:
    """A table of a report, in words: columns of names, then of figures, then of words, each with its head."""

    names: Sequence[str]
    figures: Sequence[str]
    sections: Sequence[Sequence[Sequence[str]]]  # of rows; a line separates sections, a row of one cell is a heading
    title: str | None = None
    chosen: Sequence[str] | None = None  # the row that stands out
    tight: bool = False  # columns stand close to each other
    words: Sequence[str] = ()
