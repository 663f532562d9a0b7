"""The finished units of a sweep: in memory, and optionally in a file with one line of JSON per unit.

The first line holds the settings. The file of a killed process is complete, except perhaps for its last line,
which the next run cuts off.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sira_cli.errors import DataError
from sira_cli.run.continued import ContinuedFile, check_same
from sira_cli.run.records import as_line

if TYPE_CHECKING:
    from sira_cli.analysis.sweep.questions import QuestionSet
    from sira_cli.models.loading.preset import Preset

SCHEMA = "sira.sweep.units/1"


class Units:
    """Texts of finished units by the unit's name."""

    def __init__(self, path: Path | None = None, *, overwrite: bool = False) -> None:
        """Open or create the file, and read it."""
        self._texts: dict[str, list[str]] = {}
        self._file = None if path is None else _UnitFile(path, self._texts, overwrite=overwrite)

    def __len__(self) -> int:
        return len(self._texts)

    def __contains__(self, unit: str) -> bool:
        return unit in self._texts

    def __getitem__(self, unit: str) -> list[str]:
        return self._texts[unit]

    def check(self, settings: Mapping[str, Any]) -> None:
        """Check that the known settings equal the file's."""
        if self._file is not None:
            check_same(self._file.path, settings, self._file.settings)

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Get ready to add: drop a torn last line, or with `overwrite` everything; write the settings if need be."""
        self.check(settings)
        if self._file is not None:
            self._file.begin()
            if self._file.is_empty:
                self._file.add(as_line({"schema": SCHEMA, "settings": dict(settings)}))

    def add(self, units: Mapping[str, Sequence[str]]) -> None:
        """Keep the texts of finished units."""
        if self._file is not None:
            lines = (as_line({"unit": unit, "texts": list(texts)}) for unit, texts in units.items())
            self._file.add(b"".join(lines))
        self._texts |= {unit: list(texts) for unit, texts in units.items()}

    def complete(self) -> None:
        """Note that the sweep is complete."""
        if self._file is not None:
            self._file.complete()

    def close(self) -> None:
        """Close the file and release its lock."""
        if self._file is not None:
            self._file.close()


class _UnitFile(ContinuedFile):
    """The file of units. Its first line holds the settings."""

    def __init__(self, path: Path, texts: dict[str, list[str]], *, overwrite: bool) -> None:
        self._texts = texts
        self.settings: dict[str, Any] = {}
        super().__init__(path, overwrite=overwrite)

    @property
    def is_empty(self) -> bool:
        """Whether the settings are missing."""
        return self._end == 0

    def _check_beginning(self, torn: bytes) -> None:
        if not torn.startswith(b'{"schema": "sira.sweep'[: len(torn)]):
            raise self._foreign(1)

    def _read_line(self, number: int, line: bytes) -> None:
        try:
            record = json.loads(line)
            if number > 1:
                self._texts[record["unit"]] = list(record["texts"])
            elif record["schema"] == SCHEMA:
                self.settings = dict(record["settings"])
            else:
                raise ValueError
        except (ValueError, KeyError, TypeError):
            raise self._foreign(number) from None

    def _foreign(self, number: int) -> DataError:
        return DataError(
            f"{self.path}: line {number} was not written by a sweep: "
            "give another `output=`, or `overwrite=` to replace it"
        )


def decisive(preset: Preset, questions: QuestionSet, alphas: Sequence[float], captions: bool) -> dict[str, Any]:
    """Return the settings that decide a sweep's texts, besides K and the checkpoint's revision, as JSON holds them."""
    parts = preset.decisive()
    for swept in ("k", "k_fraction", "alpha"):
        del parts["sira"][swept]
    if not captions:
        del parts["generation"]  # the first token is always the likeliest
    prompts = {"prompts.caption": preset.prompts.caption} if captions else {}
    flat = {
        f"{part}.{name}" if isinstance(values, dict) else part: value
        for part, values in parts.items()
        for name, value in (values if isinstance(values, dict) else {"": values}).items()
    }
    asked = {"prompts.ask": preset.prompts.ask, "captions": captions, "alpha": list(alphas)}
    return {**flat, **prompts, **asked, **questions.settings()}
