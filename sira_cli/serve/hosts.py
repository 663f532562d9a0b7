"""The names under which a server without a key may be asked.

A page of another site can let a name of its own lead to this machine (DNS rebinding): its browser then sends that name
as `Host`. An address, or a name that no public DNS server answers for, cannot be such a name. The list is Ollama's.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sira_cli.serve.protocol import RequestError, shortened

LOCAL_DOMAINS = (".localhost", ".local", ".internal")  # host.docker.internal is how a container names this machine
_HOST = re.compile(r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(?::\d+)?")


def is_local(host: str) -> bool:
    """Return whether a `Host` header, with or without a port, names this machine or one of its private network."""
    parts = _HOST.fullmatch(host.lower())
    if parts is None:
        return False
    name = parts["address"] or parts["name"]
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name in ("localhost", socket.gethostname().lower()) or name.endswith(LOCAL_DOMAINS)
    return address.is_private or address.is_loopback or address.is_unspecified


class LocalHosts:
    """A middleware that refuses requests under names of other machines, by the server's own errors."""

    def __init__(self, app: ASGIApp, refusal: Callable[[Request, Exception], Awaitable[Response]]) -> None:
        self._app = app
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with status 400."""
        answer = self._app
        if scope["type"] == "http":
            request = Request(scope)
            host = request.headers.get("host", "")
            if not is_local(host):
                answer = await self._refusal(request, _refused(host))
        await answer(scope, receive, send)


def _refused(host: str) -> RequestError:
    known = "localhost, its own name, a private address, or a name in .local or .internal"
    message = f"the server has no key, so it answers to {known}, not to Host {shortened(host)!r}"
    return RequestError(f"{message}: start it with `api_key=`, and send the key", code="host_not_allowed")
