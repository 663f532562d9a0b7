"""Where a server listens."""

from __future__ import annotations

import errno
import socket

from sira_cli.errors import SettingsError

LOOPBACK = ("127.0.0.1", "localhost")  # nobody else reaches these


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        SettingsError: it cannot.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise SettingsError(f"--port {port}: is taken by another program: give another one, or 0") from error
        raise SettingsError(f"--host {host} --port {port}: cannot listen there: {error.strerror}") from error


def address_of(host: str, listener: socket.socket) -> str:
    """Return the address of a page at a socket that listens, as browsers take it."""
    port = listener.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
