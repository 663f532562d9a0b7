"""The states of captions by the lines of a log: newest versions, steps before them, and undone steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class State:
    """The state of a picture's caption.

    Attributes:
        version: 0 for the original, incremented by each change.
        text: the present text.
        decision: `accepted`, `rejected`, or empty.
        can_undo: whether there is a change to undo.
        can_redo: whether the last step was an undo.
    """

    version: int
    text: str
    decision: str = ""
    can_undo: bool = False
    can_redo: bool = False


@dataclass(frozen=True)
class Version:
    """Text and decision of one version."""

    text: str
    decision: str


class History:
    """The steps of all captions that a log names.

    Attributes:
        states: the state of each, by id.
    """

    def __init__(self) -> None:
        """Begin without any."""
        self.states: dict[str, State] = {}
        self._before: dict[str, list[Version]] = defaultdict(list)
        self._after: dict[str, list[Version]] = defaultdict(list)  # undone steps
        self._noted: list[str] = []

    def note(self, record: Mapping[str, Any]) -> None:
        """Apply a line.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: it is not a line of a log.
        """
        if not record["schema"].startswith("sira.edit/"):
            raise ValueError
        name, was = record["id"], Version(record["before"]["text"], record["before"]["decision"])
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

    def before(self, name: str) -> list[Version]:
        """Return the steps that can be undone, the last one last."""
        return self._before.get(name, [])

    def after(self, name: str) -> list[Version]:
        """Return the undone steps that can be redone, the next one last."""
        return self._after.get(name, [])

    def noted(self, start: int) -> Iterator[str]:
        """Yield the ids of the lines from number `start` on."""
        yield from self._noted[start:]

    def __len__(self) -> int:
        """Return the number of lines."""
        return len(self._noted)
