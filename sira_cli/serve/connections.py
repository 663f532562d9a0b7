"""Connections that are closed if a client leaves a request unfinished."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 30.0  # for the headers of a request, and for the rest of a body whose request has its answer


class Connection(H11Protocol):
    """A connection that is closed if a request that has begun does not arrive in time.

    Headers and bodies may trickle in for ever, and uvicorn limits only the time without data. The body
    of a request that waits for its answer is limited where it is read.

    Requests find it as `scope["state"]["connection"]`.
    """

    seconds = SECONDS

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.app_state = {**self.app_state, "connection": self}
        self._due: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """Whether the client may send another request."""
        return not self.transport.is_closing()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for headers."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Process received data."""
        super().data_received(data)
        self._watch()

    def _unsupported_upgrade_warning(self) -> None:
        """Do not warn: a client that asks for a websocket gets an HTTP answer, and no package is missing."""

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of this one."""
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        super().connection_lost(exc)
        self._stop()

    def _watch(self) -> None:
        if self.is_open and self._leaves_something():
            if self._due is None:
                self._due = self.loop.call_later(self.seconds, self.transport.close)
        else:
            self._stop()

    def _stop(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _leaves_something(self) -> bool:
        """Return whether a request is incomplete and no other code waits for the rest."""
        state = self.conn.their_state
        if state is h11.IDLE:
            return self.timeout_keep_alive_task is None  # else the next request has not begun
        return state is h11.SEND_BODY and self.cycle.response_complete
