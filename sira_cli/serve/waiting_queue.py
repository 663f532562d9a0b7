"""Admission of requests before they are read: a bounded number of places and of bytes.

A refused client that comes again keeps its turn: free places are reserved for refused clients, in the order
of their first refusal.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sira_cli.serve.protocol import RequestError

RETRY_AFTER = 2  # seconds
EARLY = 0.5  # seconds before these that count as then
KEPT = 10.0  # seconds that a turn is kept for a client that does not come back
MOST_TURNS = 1024


class BusyError(RequestError):
    """Too many requests wait already."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} requests wait already: try again later", 429, code="busy")


class Caller(Protocol):
    """A client's connection."""

    @property
    def is_open(self) -> bool:
        """Whether its connection may bring another request."""
        ...


@dataclass(eq=False)
class RefusedTurn:
    """The turn of a refused client.

    Attributes:
        host: of the client.
        caller: its connection, if it is known.
        size: bytes of its request.
        refused: time of the last refusal, by `time.monotonic`.
    """

    host: str
    caller: Caller | None
    size: int
    refused: float


class QueuePlace:
    """The place of one request, from admission to its answer. Repeated calls of its methods do no harm."""

    def __init__(self, queue: WaitingQueue, size: int) -> None:
        """Take the place; see `WaitingQueue.enter`."""
        self._queue, self._size, self._enters = queue, 0, False
        self.enter()
        self.hold(size)

    def enter(self) -> None:
        """Count as waiting: the request is being read."""
        self._queue.entering += not self._enters
        self._enters = True

    def give_way(self) -> None:
        """Stop counting as waiting: the request is now counted elsewhere."""
        self._queue.entering -= self._enters
        self._enters = False

    def hold(self, size: int) -> None:
        """Replace the number of held bytes by `size`."""
        self._queue.held += size - self._size
        self._size = size

    def leave(self) -> None:
        """Give back everything."""
        self.give_way()
        self.hold(0)


class WaitingQueue:
    """The places. Only the event loop's thread calls it.

    Attributes:
        entering: requests that are being read.
        held: bytes of all requests that are being read, wait or are decoded.
    """

    def __init__(self, most: int, most_bytes: int, at_once: int, waiting: Callable[[], int]) -> None:
        """Make a queue.

        Args:
            most: maximum number of waiting requests.
            most_bytes: maximum of held bytes.
            at_once: texts that are decoded together: while fewer wait, any client gets a place.
            waiting: returns the number waiting at the decoder.
        """
        self.entering, self.held = 0, 0
        self._most, self._most_bytes, self._at_once, self._waiting = most, most_bytes, at_once, waiting
        self._turns: list[RefusedTurn] = []  # in the order of the first refusal

    @property
    def has_bytes(self) -> bool:
        """Whether the held bytes are within the limit."""
        return self.held <= self._most_bytes

    def enter(self, host: str, caller: Caller | None, size: int) -> QueuePlace:
        """Admit a request.

        Args:
            host: of the client.
            caller: its connection, if it is known.
            size: bytes of the request.

        Raises:
            BusyError: no place is free, or it is reserved for earlier clients.
        """
        mine = self.check(host, caller, size)
        if mine is not None:
            self._turns.remove(mine)
        return QueuePlace(self, size)

    def check(self, host: str, caller: Caller | None, size: int) -> RefusedTurn | None:
        """Check that a request may enter, and return its client's turn. Arguments as for `enter`.

        Raises:
            BusyError: as `enter`; the client has its turn from now on.
        """
        now = time.monotonic()
        self._turns = [turn for turn in self._turns if turn.refused + RETRY_AFTER + KEPT > now]
        mine = self._turn_of(host, caller, now)
        before = self._turns if mine is None else self._turns[: self._turns.index(mine)]
        if not self._has_room(size, before):
            if mine is not None:
                mine.caller, mine.refused, mine.size = caller, now, size
            elif len(self._turns) < MOST_TURNS:
                self._turns.append(RefusedTurn(host, caller, size, now))
            raise BusyError(self._taken)
        return mine

    def _turn_of(self, host: str, caller: Caller | None, now: float) -> RefusedTurn | None:
        """Return the turn that a client has.

        A client with an open connection is known by it. Clients that open a new one per request can be told from others
        of their host only by the time of their request.
        """
        known = (turn for turn in self._turns if caller is not None and turn.caller is caller)
        others = (
            turn
            for turn in self._turns
            if turn.host == host
            and (turn.caller is None or not turn.caller.is_open)
            and now - turn.refused > RETRY_AFTER - EARLY
        )
        return next(known, None) or next(others, None)

    @property
    def _taken(self) -> int:
        return self.entering + self._waiting()

    def _has_room(self, size: int, before: list[RefusedTurn]) -> bool:
        """Return whether a place is free after the earlier clients have theirs."""
        taken = self._taken
        if taken < min(self._at_once, self._most):  # reserved places must not leave the decoder idle
            before = []
        held = self.held + sum(turn.size for turn in before)
        return taken + len(before) < self._most and (held + size <= self._most_bytes or held == 0)
