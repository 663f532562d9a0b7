"""A summary of many checks: numbers of captions and objects, those below the threshold, the worst."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sira_cli.look.claims import unsupported


@dataclass(frozen=True)
class Doubted:
    """A caption with an object of little support.

    Attributes:
        name: of the picture, as in its record.
        support: of the least supported object.
        things: objects below the threshold with their support, the least supported first.
    """

    name: str
    support: float
    things: tuple[tuple[str, float], ...]


@dataclass
class Summary:
    """Counts over records of checks.

    Attributes:
        captions, failed: checked, and not.
        objects, below: numbers of objects, each once per caption: all, and those below the threshold.
        unrecognised: captions that name no object of the word list.
        without_probabilities: captions checked by a server that gives no probabilities.
        doubted: captions with an object below the threshold, in the order of the records.
    """

    captions: int = 0
    failed: int = 0
    objects: int = 0
    below: int = 0
    unrecognised: int = 0
    without_probabilities: int = 0
    doubted: list[Doubted] = field(default_factory=list)

    def add(self, record: Mapping[str, Any]) -> None:
        """Count a record of a check."""
        if record["status"] != "ok":
            self.failed += 1
            return
        below = sorted((float(one["support"]), str(one["thing"])) for one in unsupported(record))
        self.captions += 1
        self.objects += len(record["objects"])
        self.below += len(below)
        self.unrecognised += not record["objects"]
        self.without_probabilities += record["verify"].get("source") == "answer"
        if below:
            things = tuple((thing, support) for support, thing in below)
            self.doubted.append(Doubted(record["file_name"], below[0][0], things))

    def worst(self) -> list[Doubted]:
        """Return the captions with an object below the threshold, the least supported first."""
        return sorted(self.doubted, key=lambda doubted: doubted.support)
