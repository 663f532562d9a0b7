"""How captions stand by the lines of a log: the newest version of each, and the steps before it and taken back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class State:
    """How a picture's caption stands.

    Attributes:
        version: 0 as it came, one more with each change.
        text: of now.
        decision: `accepted`, `rejected`, or empty.
        can_undo: whether there is a change to take back.
        can_redo: whether the last step was to take one back.
    """

    version: int
    text: str
    decision: str = ""
    can_undo: bool = False
    can_redo: bool = False


@dataclass(frozen=True)
class Step:
    """What one version said."""

    text: str
    decision: str


class History:
    """The steps of all captions that a log names.

    Attributes:
        states: how each stands, by id.
    """

    def __init__(self) -> None:
        """Begin without any."""
        self.states: dict[str, State] = {}
        self._before: dict[str, list[Step]] = defaultdict(list)
        self._after: dict[str, list[Step]] = defaultdict(list)  # what was taken back
        self._noted: list[str] = []

    def note(self, record: Mapping[str, Any]) -> None:
        """Take over what a line says.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: it is no line of a log.
        """
        if not record["schema"].startswith("sira.edit/"):
            raise ValueError
        name, was = record["id"], Step(record["before"]["text"], record["before"]["decision"])
        before, after = self._before[name], self._after[name]
        if record["action"] == "undo":
            del before[-1:]
            after.append(was)
        else:
            before.append(was)
            del after[-1 if record["action"] == "redo" else 0 :]
        version, text, decision = int(record["version"]), record["text"], record["decision"]
        self.states[name] = State(version, text, decision, bool(before), bool(after))
        self._noted.append(name)

    def before(self, name: str) -> list[Step]:
        """Return the steps that can be taken back, the last one last."""
        return self._before.get(name, [])

    def after(self, name: str) -> list[Step]:
        """Return the steps that were taken back and can be made again, the next one last."""
        return self._after.get(name, [])

    def noted(self, start: int) -> Iterator[str]:
        """Yield the ids of the lines from number `start` on."""
        yield from self._noted[start:]

    def __len__(self) -> int:
        """Return how many lines there were."""
        return len(self._noted)
