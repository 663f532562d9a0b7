"""Who waits for the decoder: bodies that are whole, up to a limit, until their turn, their leaving or the end."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from sira_cli.serve import Limits, app
from sira_cli.serve.app import Server
from tests.serve.helpers import LONG, counted, post, refusal, running, said, streaming, wait_for
from tests.support.asgi import served

ONE = {"waiting": 1, "tokens": LONG}

# --- bodies that are not whole


@contextmanager
def arriving(address: str, body: bytes, sent: int) -> Iterator[socket.socket]:
    """A chat whose body has been sent in part."""
    host, port = address.removeprefix("http://").split(":")
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:sent])
        yield connection


def answered(connection: socket.socket) -> tuple[int, bytes]:
    """The status of an answer, and the answer until the server closes the connection or the body is whole."""
    data = b""
    while part := connection.recv(2**16):
        data += part
        head, found, body = data.partition(b"\r\n\r\n")
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        if found and len(body) >= int(lengths[0].split(b":")[1]):
            break
    return int(data.split()[1]), data


def body_of(**more) -> bytes:
    return json.dumps({"messages": said(), "max_tokens": 2, **more}).encode()


def test_half_sent_bodies_take_nobodys_turn(lvlm):
    with running(lvlm, limits=Limits(waiting=1)) as address, ExitStack() as stack:
        *_, last = [stack.enter_context(arriving(address, body_of(), 9)) for _ in range(3)]
        assert post(address, max_tokens=2).status_code == 200
        assert counted(address, "sira_waiting_requests") == 0
        last.sendall(body_of()[9:])
        assert answered(last)[0] == 200  # whoever is slow is answered in the end


def test_a_body_is_refused_where_it_would_be_one_more_to_wait(endless):
    """Before it is sent, and once it is whole if others came while it was sent."""
    with running(endless, limits=Limits(**ONE)) as address, ThreadPoolExecutor(1) as pool:
        with streaming(address), arriving(address, body_of(), 9) as early:
            waiting = pool.submit(post, address, max_tokens=2)
            wait_for(address, 1, waiting)
            with arriving(address, body_of(), 0) as late:
                assert answered(late)[0] == 429
            early.sendall(body_of()[9:])
            assert answered(early)[0] == 429
        assert waiting.result().status_code == 200


def test_a_body_that_does_not_arrive_in_time_is_refused(lvlm, monkeypatch):
    """However it trickles; its connection ends, so that nothing more of it is read."""
    monkeypatch.setattr(app, "BODY_SECONDS", 0.5)
    with running(lvlm) as address, arriving(address, body_of(), 9) as connection:
        connection.settimeout(0.05)
        for byte in body_of()[9:]:
            try:
                status, data = answered(connection)
                break
            except TimeoutError:
                connection.sendall(bytes([byte]))
        assert (status, b"the body did not arrive within 0.5 seconds" in data) == (408, True)
        connection.settimeout(60)
        assert connection.recv(1) == b""


def test_bodies_that_arrive_take_no_more_memory_than_all_that_may_wait(lvlm):
    large = body_of(user="x" * 800_000)
    with running(lvlm, limits=Limits(waiting=1, mb=1)) as address:
        with arriving(address, large, 700_000) as one, arriving(address, large, 700_000) as other:
            (refused,), _, _ = select.select([one, other], [], [])  # whichever was read last
            assert answered(refused)[0] == 429
            kept = other if refused is one else one
            kept.sendall(large[700_000:])
            assert answered(kept)[0] == 200
        assert [post(address, user="x" * 700_000, max_tokens=2).status_code for _ in range(3)] == [200] * 3


# --- the end


def test_who_waits_when_the_server_stops_is_refused_and_who_began_is_not(endless):
    server = Server(endless, 1, Limits(tokens=LONG))
    with served(server.app) as address, ThreadPoolExecutor(2) as pool, streaming(address) as pieces:
        waiting = [pool.submit(post, address, stream=stream, max_tokens=2) for stream in (False, True)]
        wait_for(address, 2, *waiting)
        server.refuse_waiting()
        assert [refusal(each.result(), 503)["code"] for each in waiting] == ["stopping"] * 2
        assert refusal(post(address, timeout=10), 503)["code"] == "stopping"
        assert counted(address, "sira_waiting_requests") == 0
        assert "".join(next(pieces) for _ in range(9)) != ""
