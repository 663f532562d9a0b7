"""Checks of every request before it is read, and clean-up at its end, whatever its outcome."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from sira_cli.serve.metrics import Metrics
from sira_cli.serve.protocol import RequestError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


class RequestMiddleware:
    """Refuses requests with a foreign `Host`, and closes the resources of a request.

    `Host` exposes a page whose name was rebound to this machine.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None, metrics: Metrics) -> None:
        """Wrap an application.

        Args:
            app: the application.
            hosts: accepted names in `Host`; None: any.
            metrics: the server's counters.
        """
        self._app, self._hosts, self._metrics = app, hosts, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; `scope["state"]["exits"]` is closed once it has its answer or its client has gone."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._hosts is not None and _host(scope) not in self._hosts:
            self._metrics.requests.labels("400").inc()
            names = " or ".join(self._hosts)
            error = RequestError(
                f"Host: this server is called {names}; another name needs `api_key=`", code="wrong_host"
            )
            await JSONResponse(error.to_json(scope["path"]), error.status)(scope, receive, send)
            return
        with ExitStack() as exits:
            scope.setdefault("state", {})["exits"] = exits
            await self._app(scope, receive, send)


def _host(scope: Scope) -> str:
    """Return the name in `Host`, without a port."""
    host = Headers(scope=scope).get("host", "").lower()
    return host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
