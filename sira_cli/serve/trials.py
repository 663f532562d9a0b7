"""Trials of clients' schemas, in a separate process, one at a time.

A trial takes up to two seconds. Requests without a schema, or with one known to be cheap, do not wait for it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from sira_cli.models.lvlm import Lvlm
from sira_cli.models.schemas.schema import Schema
from sira_cli.serve.admission import PendingRequest
from sira_cli.serve.protocol import RequestError

MOST_WAITING = 8  # schemas, that on trial included
MOST_OF_ONE = 6  # of these from one address
CHEAP = 0.2  # seconds of a trial; the start of its process takes 0.06


class Trials:
    """The schemas that are being tried, and those that wait for it. Only the event loop's thread calls it."""

    def __init__(self, lvlm: Lvlm) -> None:
        """Begin without schemas.

        Args:
            lvlm: the server's model.
        """
        self._lvlm = lvlm
        self._waiting: Counter[str] = Counter()  # by address
        self._under_way: dict[str, asyncio.Event] = {}  # by what is tried
        self._thread = ThreadPoolExecutor(1, "sira-schema")

    def close(self) -> None:
        """Wait until the trial has ended."""
        self._thread.shutdown(cancel_futures=True)

    async def wait(self, pending: PendingRequest, schema: Schema) -> None:
        """Wait until a schema has been tried, and the model's tokens can follow it.

        Args:
            pending: the request; while its schema waits, it does not count among the requests that wait.
            schema: schema to try; several requests for one schema share a trial.

        Raises:
            RequestError: the schema cannot be followed, or too many wait.
            SiraError: the process cannot be started.
        """
        while (same := self._under_way.get(schema.grammar)) is not None:
            await same.wait()
        found = schema.tried
        if found is not None and (found.reason or found.seconds < CHEAP):
            await asyncio.to_thread(self._follow, schema)
            return
        host = pending.host
        if self._waiting.total() >= MOST_WAITING or self._waiting[host] >= MOST_OF_ONE:
            message = f"response_format: {self._waiting.total()} new schemas wait already: try again later"
            raise RequestError(message, 429, code="busy", param="response_format")
        self._waiting[host] += 1
        pending.place.give_way()
        ended = self._under_way[schema.grammar] = asyncio.Event()
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._follow, schema)
        finally:
            self._waiting[host] -= 1
            del self._under_way[schema.grammar]
            ended.set()
            pending.place.enter()

    def _follow(self, schema: Schema) -> None:
        try:
            schema.try_out()
            self._lvlm.following(schema)
        except ValueError as error:
            raise RequestError(f"response_format: {error}", param="response_format") from None
