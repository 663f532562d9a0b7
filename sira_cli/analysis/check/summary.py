"""A summary of many checks: numbers of pictures and objects, those below the threshold, the worst."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sira_cli.language.things import OBJECTS
from sira_cli.models.look.claims import by_kind, shown, threshold_of
from sira_cli.runs.check_request import FOREIGN


@dataclass(frozen=True)
class Doubted:
    """A caption with a claim of little support.

    Attributes:
        name: of the picture, as in its record.
        support: of the least supported claim.
        things: claims below their thresholds with their support, the least supported first.
    """

    name: str
    support: float
    things: tuple[tuple[str, float], ...]


@dataclass
class Tally:
    """Numbers of claims of one kind: all of them, those below the threshold, and captions with such claims."""

    claims: int = 0
    below: int = 0
    captions: int = 0


@dataclass
class Summary:
    """Counts over records of checks.

    Attributes:
        threshold: claims with less support are not supported; None: the thresholds in the records.
        captions, failed: checked, and not.
        kinds: numbers of claims by kind, each object or claim once per caption.
        unrecognised: captions that name no object of the word list.
        foreign: captions that are not in the language asked for.
        without_probabilities: captions checked by a server that gives no probabilities.
        emptied: captions that would lose all sentences.
        doubted: captions with a claim below the threshold, in the order of the records.
    """

    threshold: float | None = None
    captions: int = 0
    failed: int = 0
    kinds: dict[str, Tally] = field(default_factory=dict)
    unrecognised: int = 0
    foreign: int = 0
    without_probabilities: int = 0
    emptied: int = 0
    doubted: list[Doubted] = field(default_factory=list)

    def add(self, record: Mapping[str, Any]) -> None:
        """Count a record of a check."""
        if record["status"] != "ok":
            self.failed += 1
            return
        verify = record["verify"]
        parts = dict.fromkeys(verify.get("claims", [OBJECTS]), ()) | by_kind(record)
        low = {kind: [claim for claim in part if self._is_below(claim, verify)] for kind, part in parts.items()}
        for kind, part in parts.items():
            tally = self.kinds.setdefault(kind, Tally())
            tally.claims += len(part)
            tally.below += len(low[kind])
            tally.captions += bool(low[kind])
        below = sorted((claim["support"], shown(claim)) for part in low.values() for claim in part)
        self.captions += 1
        self.unrecognised += not any(parts.values())
        self.foreign += any(warning.startswith(FOREIGN) for warning in record.get("warnings") or ())
        self.without_probabilities += verify.get("source") == "answer"
        if below:
            things = tuple((thing, support) for support, thing in below)
            self.doubted.append(Doubted(record["file_name"], below[0][0], things))
            self.emptied += not record["fixed"]

    def _is_below(self, claim: Mapping[str, Any], verify: Mapping[str, Any]) -> bool:
        threshold = threshold_of(claim, verify) if self.threshold is None else self.threshold
        return bool(claim["support"] < threshold)

    def worst(self) -> list[Doubted]:
        """Return the captions with a claim below the threshold, the least supported first."""
        return sorted(self.doubted, key=lambda doubted: doubted.support)
