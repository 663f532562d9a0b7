"""The socket and address of a server."""

from __future__ import annotations

import errno
import socket

from sira_cli.errors import SettingsError

LOOPBACK = ("127.0.0.1", "localhost", "::1")  # reachable only from this machine


def in_url(host: str) -> str:
    """Return a host as URLs and `Host` headers have it: an address of version 6 in brackets."""
    return f"[{host}]" if ":" in host else host


LOCAL_NAMES = tuple(map(in_url, LOOPBACK))  # in a `Host` header


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        SettingsError: the port is taken, or the address cannot be used.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        made = socket.create_server((host, port), family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise SettingsError(f"--port {port}: is taken by another program: give another one, or 0") from error
        raise SettingsError(f"--host {host} --port {port}: cannot listen at this address: {error.strerror}") from error
    # `create_server` leaves the protocol open, and asyncio sets TCP_NODELAY only where it is TCP: without it the second
    # part of each answer waits 40 ms for the client to acknowledge the first one.
    return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=made.detach())


def address_of(host: str, listener: socket.socket) -> str:
    """Return the URL of the page at a listening socket."""
    return f"http://{in_url(host)}:{listener.getsockname()[1]}"
