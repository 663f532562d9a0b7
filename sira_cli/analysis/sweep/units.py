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
from sira_cli.runs.continued_file import append_whole, check_same, kept_in_place, open_locked

if TYPE_CHECKING:
    from sira_cli.analysis.sweep.questions import QuestionSet
    from sira_cli.models.preset import Preset

SCHEMA = "sira.sweep.units/1"


class Units:
    """Texts of finished units by the unit's name.

    Attributes:
        path: the file, locked against other processes; None: texts are only kept in memory.
    """

    def __init__(self, path: Path | None = None, *, overwrite: bool = False) -> None:
        """Open or create the file, and read it.

        Args:
            path: the file.
            overwrite: start again: the file is not read, and `begin` empties it.

        Raises:
            DataError: it is not a file of a sweep.
            SettingsError: another process writes to it.
            SiraError: the file cannot be opened.
        """
        self.path = path
        self._texts: dict[str, list[str]] = {}
        self._settings: dict[str, Any] = {}
        self._end = 0
        if path is None:
            return
        self._file = open_locked(path)
        if not overwrite:
            try:
                self._scan(path)
            except BaseException:
                self._file.close()
                raise

    def __len__(self) -> int:
        return len(self._texts)

    def __contains__(self, unit: str) -> bool:
        return unit in self._texts

    def __getitem__(self, unit: str) -> list[str]:
        return self._texts[unit]

    def check(self, settings: Mapping[str, Any]) -> None:
        """Check that settings, as far as they are known, are the file's.

        Raises:
            SettingsError: they differ; the message names the differences.
        """
        if self.path is not None:
            check_same(self.path, settings, self._settings)

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Get ready to add: drop a torn last line, or with `overwrite` everything; write the settings if need be.

        Raises:
            SettingsError: as `check`.
            SiraError: the file cannot be written.
        """
        self.check(settings)
        if self.path is None:
            return
        self._file.truncate(self._end)
        if self._end == 0:
            self._append([{"schema": SCHEMA, "settings": dict(settings)}])

    def add(self, units: Mapping[str, Sequence[str]]) -> None:
        """Keep the texts of finished units.

        Raises:
            SiraError: the file cannot be written; it holds what it held before. Or another program has changed or
                replaced it.
        """
        if self.path is not None:
            self._append([{"unit": unit, "texts": list(texts)} for unit, texts in units.items()])
        self._texts |= {unit: list(texts) for unit, texts in units.items()}

    def close(self) -> None:
        """Close the file and release its lock."""
        if self.path is not None:
            self._file.close()

    def _append(self, records: list[dict[str, Any]]) -> None:
        assert self.path is not None
        data = b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records)
        self._file = kept_in_place(self.path, self._file, self._end)
        append_whole(self.path, self._file, self._end, data)
        self._end += len(data)

    def _scan(self, path: Path) -> None:
        """Read settings and units. Whatever follows the last newline is torn."""
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    if not line.endswith(b"\n"):
                        if number == 1 and not line.startswith(b'{"schema": "sira.sweep'[: len(line)]):
                            raise ValueError
                        return
                    record = json.loads(line)
                    if number == 1:
                        if record["schema"] != SCHEMA:
                            raise ValueError
                        self._settings = dict(record["settings"])
                    else:
                        self._texts[record["unit"]] = list(record["texts"])
                except (ValueError, KeyError, TypeError):
                    raise DataError(
                        f"{path}: line {number} was not written by a sweep: "
                        "give another `output=`, or `overwrite=` to replace it"
                    ) from None
                self._end += len(line)


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
