"""Connections on which nothing ends: headers, bodies."""

from __future__ import annotations

import socket
import time

import pytest

from sira_cli.serve.connections import Connection
from sira_cli.serve.limits import Limits
from tests.serve.conftest import running

BEGINNING = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
WHOLE = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
UNREAD = b"POST /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
JSON = b"Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n"


@pytest.fixture(scope="module")
def address(lvlm):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Connection, "seconds", 0.5)
        with running(lvlm, limits=Limits(seconds=0.5)) as address:
            yield address


def sent_until_the_end(address: str, *parts: bytes) -> bytes:
    """What comes back before the server closes a connection on which a byte comes every now and then."""
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.settimeout(0.05)
        found, until = b"", time.monotonic() + 30
        for part in parts:
            connection.sendall(part)
            time.sleep(0.1)
        while time.monotonic() < until:
            try:
                connection.sendall(b"x")
                if not (data := connection.recv(10_000)):
                    return found
                found += data
            except TimeoutError:
                continue
            except OSError:
                return found
    raise AssertionError("the connection is still open")


def test_headers_that_never_end(address):
    assert sent_until_the_end(address, b"") == b""
    assert sent_until_the_end(address, BEGINNING, b"a: ") == b""


def test_headers_of_a_second_request_that_never_end(address):
    found = sent_until_the_end(address, WHOLE, BEGINNING, b"a: ")
    assert found.count(b"HTTP/1.1 200 OK") == 1


def test_a_body_that_never_ends(address):
    assert sent_until_the_end(address, BEGINNING + JSON).startswith(b"HTTP/1.1 408")


def test_a_body_that_nobody_reads_and_never_ends(address):
    """Its request is answered at once."""
    assert sent_until_the_end(address, UNREAD).startswith(b"HTTP/1.1 405")


def test_a_connection_on_which_everything_ends_stays_open(address):
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.settimeout(30)
        for _ in range(3):
            connection.sendall(WHOLE)
            found = b""
            while b'"ok"' not in found:
                found += connection.recv(10_000)
            assert found.startswith(b"HTTP/1.1 200")
            time.sleep(0.7)  # longer than headers may take
