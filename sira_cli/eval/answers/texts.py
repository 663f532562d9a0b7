"""The answers of methods, by part and ask."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from sira_cli.eval.base import Benchmark, Part


@dataclass(frozen=True)
class FailedAnswer:
    """A picture about which a method gave no answer, and the reason."""

    method: str
    part: str
    picture: str
    error: str


@dataclass
class UnitTexts:
    """The text of each unit of a part, or the reason why it failed."""

    texts: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def add(self, unit: str, record: dict[str, Any]) -> None:
        """Add a record; it replaces an earlier one of the unit."""
        self.texts.pop(unit, None)
        self.errors.pop(unit, None)
        if record["status"] == "ok":
            self.texts[unit] = record["text"]
        else:
            self.errors[unit] = record["error"]


@dataclass
class Answers:
    """One method's answers.

    Attributes:
        name: of the method, or a label.
        texts: by part and ask; those that failed are missing.
        failures: the asks that failed.
        settings: settings that decided the answers, as far as they are known.
        taken_from: the method whose answers were reused, because this one cannot differ.
    """

    name: str
    texts: dict[str, dict[str, str]] = field(default_factory=dict)
    failures: list[FailedAnswer] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    taken_from: str = ""

    def under(self, name: str) -> Answers:
        """Return the same answers as another method's."""
        failures = [replace(failure, method=name) for failure in self.failures]
        settings = {**self.settings, "method": name}
        return replace(self, name=name, failures=failures, settings=settings, taken_from=self.name)

    def add(self, benchmark: Benchmark, part: Part, found: UnitTexts) -> None:
        """Give every ask of a part the part of its unit's text that counts."""
        texts = {unit: benchmark.reduce(part, text) for unit, text in found.texts.items()}
        self.texts[part.name] = {ask.id: texts[ask.unit] for ask in part.asks if ask.unit in texts}
        failed = {ask.picture: found.errors[ask.unit] for ask in part.asks if ask.unit in found.errors}
        self.failures += [FailedAnswer(self.name, part.name, picture, error) for picture, error in failed.items()]
