"""What a server takes in, in memory: nothing of requests that are refused, files of those that wait."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
from PIL import Image

from sira_cli.errors import PictureError, PictureMemoryError
from sira_cli.serve import admission, pictures
from sira_cli.serve.limits import Limits
from sira_cli.serve.pictures import receive
from tests.serve.conftest import running
from tests.serve.helpers import LONG, PICTURES, PROMPT, ask, data_of, data_uri, said, streaming, waiting

HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n"
)
DAMAGED = "data:image/png;base64,aGVsbG8="
SIDE = 64


def square(number: int) -> Image.Image:
    return Image.new("RGB", (SIDE, SIDE), (20 * number, 100, 200))


def single(lvlm, picture, method="sira", tokens=4) -> str:
    preset = lvlm.preset.with_settings(max_new_tokens=tokens)
    return lvlm.under(preset.method(method), preset).caption(picture, PROMPT).text


def connected(address: str) -> socket.socket:
    host, port = address.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    connection.settimeout(30)
    return connection


@pytest.fixture
def opened(monkeypatch) -> Counter:
    """How often each picture was decoded, by its bytes, in the order of the first time."""
    decode, counted = pictures.decode_picture, Counter()

    def decoding(name, data):
        counted[data] += 1
        return decode(name, data)

    monkeypatch.setattr(pictures, "decode_picture", decoding)
    return counted


@pytest.mark.parametrize(("bodies", "length"), [(8, Limits().data), (70, 100)])
def test_bodies_that_do_not_arrive_take_nothing(address, bodies, length):
    """Neither the bytes that they promise, nor a place of the 64."""
    with contextlib.ExitStack() as stack:
        for _ in range(bodies):
            stack.enter_context(connected(address)).sendall(HEAD % length + b"x")
        answer = httpx.post(f"{address}/v1/chat/completions", json={"messages": said(), "max_tokens": 2}, timeout=30)
        assert (answer.status_code, waiting(address)) == (200, 0)


def test_a_body_has_to_keep_coming(lvlm, monkeypatch):
    monkeypatch.setattr(admission, "GRACE", 0.3)
    body = json.dumps({"messages": said(), "max_tokens": 2}).encode()
    with running(lvlm) as address, connected(address) as slow, connected(address) as steady:
        slow.sendall(HEAD % len(body) + body[:10])
        assert b" 408 " in slow.recv(4096).partition(b"\r\n")[0]
        steady.sendall(HEAD % (len(body) + 40_000))
        for _ in range(4):  # 100 kB per second
            steady.sendall(b" " * 10_000)
            time.sleep(0.1)
        steady.sendall(body)
        assert b" 200 " in steady.recv(4096).partition(b"\r\n")[0]


def test_an_address_has_a_bounded_number_of_unfinished_bodies(lvlm, monkeypatch):
    monkeypatch.setattr(admission, "MOST_UNFINISHED", 2)
    body = json.dumps({"messages": said(), "max_tokens": 2}).encode()
    with running(lvlm) as address, connected(address) as one, connected(address) as other:
        for connection in (one, other):
            connection.sendall(HEAD % len(body) + body[:10])
        sent = {"content": body, "headers": {"Content-Type": "application/json"}}
        url = f"{address}/v1/chat/completions"
        while httpx.post(url, **sent).status_code == 200:
            pass  # the two have not been noticed yet
        assert httpx.post(url, **sent).status_code == 429
        one.sendall(body[10:])
        assert b" 200 " in one.recv(4096).partition(b"\r\n")[0]
        assert httpx.post(url, **sent).status_code == 200


def test_bytes_that_have_arrived_are_bounded(lvlm, monkeypatch):
    """Also of bodies that are not complete."""
    monkeypatch.setattr(Limits, "held", 400_000)
    with running(lvlm) as address, connected(address) as large:
        large.sendall(HEAD % 500_000 + b" " * 400_001)
        assert b" 429 " in large.recv(4096).partition(b"\r\n")[0]
        answer = httpx.post(f"{address}/v1/chat/completions", json={"messages": said(), "max_tokens": 2}, timeout=30)
        assert answer.status_code == 200


def test_nothing_is_read_of_a_request_that_is_refused(endless):
    """Not its body, which need not come, and not its picture, which is none."""
    limits, body = Limits(tokens=LONG), {"messages": said(picture=square(1)), "max_tokens": 4}
    with (
        ThreadPoolExecutor(1) as pool,
        running(endless, limits=limits, batch_size=1, most_waiting=1) as address,
        streaming(address),
    ):
        url = f"{address}/v1/chat/completions"
        second = pool.submit(httpx.post, url, json=body, timeout=60)
        while not waiting(address):
            assert not second.done()
        third = httpx.post(url, json={"messages": said(picture=DAMAGED)}, timeout=60)
        assert (third.status_code, third.json()["error"]["code"]) == (429, "busy")
        with connected(address) as connection:
            connection.sendall(HEAD % 10**6)
            assert connection.recv(100).startswith(b"HTTP/1.1 429")
    assert second.result().status_code == 200


def test_whoever_was_refused_is_let_in_before_others(endless):
    """By the connection on which it was refused; whoever goes makes place."""
    limits, body = Limits(tokens=LONG), {"messages": said(), "max_tokens": 2}
    text = json.dumps(body).encode()
    with (
        ThreadPoolExecutor(2) as pool,
        httpx.Client(timeout=60) as refused,
        httpx.Client(timeout=60) as later,
        running(endless, limits=limits, batch_size=1, most_waiting=2) as address,
        streaming(address),
    ):
        url = f"{address}/v1/chat/completions"
        with connected(address) as gone:
            gone.sendall(HEAD % len(text) + text)
            waits = pool.submit(httpx.post, url, json=body, timeout=60)
            while waiting(address) < 2:
                assert not waits.done()
            assert refused.post(url, json=body).status_code == 429
        while waiting(address) > 1:
            assert not waits.done()
        assert later.post(url, json=body).status_code == 429
        answer = pool.submit(refused.post, url, json=body)
        while waiting(address) < 2:
            assert not answer.done()
    assert (waits.result().status_code, answer.result().status_code) == (200, 200)


def test_pictures_wait_as_files(lvlm, endless, opened):
    """Those of four limits are open, in the order of the line; all others are opened once these have begun."""
    asked = [square(number) for number in range(10)]
    texts = {}
    with running(endless, limits=Limits(tokens=LONG, pixels=SIDE**2), batch_size=1) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=60)

        def one(number: int) -> None:
            texts[number] = ask(client, said(picture=asked[number]), max_tokens=4).choices[0].message.content

        threads = [threading.Thread(target=one, args=(number,)) for number in range(10)]
        with streaming(address, Image.new("RGB", (SIDE, SIDE))):
            for number, thread in enumerate(threads):
                thread.start()
                while waiting(address) <= number:
                    assert thread.is_alive()
            while len(opened) < 1 + 4:
                assert waiting(address) == 10
            time.sleep(0.5)  # more would be open by now
            assert list(opened)[1:] == [data_of(picture) for picture in asked[:4]]
        for thread in threads:
            thread.join()
    assert texts == {number: single(endless, picture) for number, picture in enumerate(asked)}
    assert set(opened.values()) == {1}


@pytest.mark.parametrize("method", ["greedy", "vcd"])
def test_texts_with_large_pictures_begin_few_at_a_time(lvlm, method):
    """As many as have twice the pixels of one request; each text is that of a single one."""
    asked = [square(number) for number in range(8)]
    with running(lvlm, limits=Limits(pixels=SIDE**2)) as address, ThreadPoolExecutor(8) as pool:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=60)
        answers = list(pool.map(lambda one: ask(client, said(picture=one), {"method": method}, max_tokens=4), asked))
        counted = httpx.get(f"{address}/metrics").text
    assert [answer.choices[0].message.content for answer in answers] == [single(lvlm, one, method) for one in asked]
    if method == "vcd":
        assert float(counted.split('sira_batch_texts_bucket{le="2.0"} ')[1].split()[0]) >= 4
        assert 'sira_batch_texts_bucket{le="+Inf"} ' + counted.split('bucket{le="2.0"} ')[1].split()[0] in counted


@pytest.mark.parametrize("error", [MemoryError(), PictureMemoryError("the picture: memory does not suffice")])
def test_a_picture_that_memory_does_not_suffice_for(lvlm, monkeypatch, error):
    """It is not the picture's fault, and may be tried again."""

    def failing(name, data):
        raise error

    with running(lvlm) as address:
        with monkeypatch.context() as patched:
            patched.setattr(pictures, "decode_picture", failing)
            for stream in (False, True):
                body = {"messages": said(), "max_tokens": 2, "stream": stream}
                answer = httpx.post(f"{address}/v1/chat/completions", json=body, timeout=60)
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "out_of_memory")
                assert answer.headers["retry-after"] == "2"
        body = {"messages": said(), "max_tokens": 2}
        assert httpx.post(f"{address}/v1/chat/completions", json=body, timeout=60).status_code == 200


def test_a_body_with_too_many_parts(address):
    """Each of them takes ten times as much memory as bytes."""
    for part in (b"[],", b'{"a":1},'):
        body = b'{"messages": [' + part * 200_000 + b"0]}"
        headers = {"content-type": "application/json"}
        answer = httpx.post(f"{address}/v1/chat/completions", content=body, headers=headers, timeout=60)
        assert answer.status_code == 413
        assert "commas and brackets" in answer.text


def test_files_are_opened_when_they_are_needed_and_forgotten_at_the_end():
    data = data_of(PICTURES[0])
    received = receive([data_uri(PICTURES[0])], Limits(), {})
    assert (received.size, received.pixels, received.is_open) == (len(data), 384 * 384, False)
    assert received.opened().image.tobytes() == Image.open(PICTURES[0]).convert("RGB").tobytes()
    assert received.is_open
    received.close()
    assert not received.is_open
    assert received.open()[0].size == (384, 384)
    received.forget()
    assert (received.is_open, received.open()) == (False, [])
    torn = receive([data_uri(PICTURES[0])[:400]], Limits(), {})  # the header is whole
    with pytest.raises(PictureError, match="the picture: is damaged"):
        torn.open()


def test_closing_does_not_wait_for_a_picture_that_is_being_opened(monkeypatch):
    """The event loop closes pictures whose client has gone."""
    begun, may_end = threading.Event(), threading.Event()

    def slow(name, data):
        begun.set()
        may_end.wait(60)
        return square(1), ()

    monkeypatch.setattr(pictures, "decode_picture", slow)
    received = receive([data_uri(PICTURES[0])], Limits(), {})
    opening, closing = threading.Thread(target=received.open), threading.Thread(target=received.close)
    opening.start()
    begun.wait(60)
    closing.start()
    closing.join(10)
    closed = not closing.is_alive()
    may_end.set()
    opening.join()
    assert closed
    assert received.is_open  # by who opened it, who looks whether it is still wanted
