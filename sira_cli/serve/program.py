"""The program that listens: uvicorn, which by itself answers every request that it has taken before it ends."""

from __future__ import annotations

import socket

import uvicorn

from sira_cli.serve.app import Server


class Program(uvicorn.Server):
    """uvicorn for a server whose waiting requests are refused as soon as the program is told to end."""

    def __init__(self, server: Server, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._server = server

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse what waits, finish the batch in progress, and end."""
        self._server.refuse_waiting()
        await super().shutdown(sockets)
