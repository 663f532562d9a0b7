"""Who waits for the decoder: bodies that are whole, up to a limit, until their turn, their leaving or the end."""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager

import pytest

from sira_cli.serve import Limits, app
from sira_cli.serve.app import Server
from tests.serve.helpers import LONG, PICTURES, PROMPT, counted, held, post, refusal, running, said, streaming, wait_for
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


def sent(address: str, **more) -> AbstractContextManager[socket.socket]:
    """A chat whose client leaves at the end of the block."""
    body = body_of(**more)
    return arriving(address, body, len(body))


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
        assert status == 408
        assert b"the body did not arrive within 0.5 seconds" in data
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


# --- clients that leave


def test_who_leaves_before_their_turn_is_not_decoded(lvlm):
    server = Server(lvlm, 1)
    with served(server.app) as address, ThreadPoolExecutor(1) as pool, held(server, address) as release:
        with sent(address), sent(address, stream=True):
            wait_for(address, 2)
        while counted(address, "sira_waiting_requests"):
            time.sleep(0.01)
        last = pool.submit(post, address, max_tokens=2)
        release(1)
        assert last.result().status_code == 200
        assert counted(address, "sira_batch_texts_sum") == 2  # the first one, which was held, and the last one


@pytest.mark.parametrize(("stream", "sira", "passes"), [(False, {}, [1, 2]), (True, {"verify": "flag"}, [1, 2, 1])])
def test_who_leaves_a_batch_holds_nobody_else_in_it(endless, monkeypatch, stream, sira, passes):
    """A text that would never end. The other one is not decoded again, and only that one is looked at, in one pass.

    The passes are those over more than one token, by their rows; the first is of the text that held the decoder. A look
    goes on from the rows of the picture that decoding has computed: only the questions are new.
    """
    prompts = []

    def see(model, arguments, named):
        if named["input_ids"].shape[1] > 1:
            prompts.append(len(named["input_ids"]))

    monkeypatch.setattr(endless, "preset", endless.preset.with_settings(max_new_tokens=13))
    words = endless.caption(PICTURES[0], PROMPT).text
    stop = words.split()[-2]
    forever = {"max_tokens": LONG, "messages": said(picture=PICTURES[1]), "sira": sira, "stream": stream}
    server = Server(endless, 2, Limits(tokens=LONG))
    hook = endless.model.register_forward_pre_hook(see, with_kwargs=True)
    with served(server.app) as address, ThreadPoolExecutor(1) as pool, held(server, address) as release:
        with sent(address, **forever):
            stays = pool.submit(post, address, 60, max_tokens=LONG, stop=[stop], sira=sira)
            release(2)
            while counted(address, "sira_batch_texts_count") < 2:
                time.sleep(0.01)
        text = stays.result().json()["choices"][0]["message"]["content"]
    hook.remove()
    assert text == words[: words.index(stop)].strip()
    assert prompts == passes


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
