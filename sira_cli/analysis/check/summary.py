"""A summary of many checks: numbers of pictures and objects, those below the line, the worst."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Doubted:
    """A caption with an object of little support.

    Attributes:
        name: of the picture, as in its record.
        support: of the least supported object.
        things: objects below the line with their support, the least supported first.
    """

    name: str
    support: float
    things: tuple[tuple[str, float], ...]


@dataclass
class Summary:
    """Counts over records of checks.

    Attributes:
        line: objects with less support are not supported.
        captions, failed: checked, and not.
        things: number of objects in the captions, each once per caption.
        unsupported: of these, those below the line.
        unrecognised: captions that name nothing that the list of words has.
        without_probabilities: captions checked by a server that only says yes or no.
        emptied: captions of which no sentence would be left.
        doubted: captions with an object below the line, in the order of the records.
    """

    line: float
    captions: int = 0
    failed: int = 0
    things: int = 0
    unsupported: int = 0
    unrecognised: int = 0
    without_probabilities: int = 0
    emptied: int = 0
    doubted: list[Doubted] = field(default_factory=list)

    def add(self, record: Mapping[str, Any]) -> None:
        """Count a record of a check."""
        if record["status"] != "ok":
            self.failed += 1
            return
        claims = sorted((claim["support"], claim["thing"]) for claim in record["objects"])
        below = tuple((thing, support) for support, thing in claims if support < self.line)
        self.captions += 1
        self.things += len(claims)
        self.unsupported += len(below)
        self.unrecognised += not claims
        self.without_probabilities += record["verify"].get("source") == "answer"
        if below:
            self.doubted.append(Doubted(record["file_name"], below[0][1], below))
            self.emptied += not record["fixed"]

    def worst(self) -> list[Doubted]:
        """Return the captions with an object below the line, the least supported first."""
        return sorted(self.doubted, key=lambda doubted: doubted.support)
