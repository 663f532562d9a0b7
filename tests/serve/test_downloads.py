"""Pictures at URLs that never come: other requests are answered, and their number has a limit."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from sira_cli.serve import downloads
from sira_cli.serve.limits import Limits
from tests.serve.conftest import running
from tests.serve.helpers import PICTURES, said, waiting


class Silent:
    """A server of the web that takes connections and says nothing until it may."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/a.png"
        self.connections: list[socket.socket] = []
        self.picture: bytes | None = None
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                if self.picture is None:
                    self.connections.append(connection)
                else:
                    self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        connection.recv(10_000)
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(self.picture)}\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode() + self.picture)
        connection.close()

    def speak(self) -> None:
        self.picture = PICTURES[0].read_bytes()
        for connection in self.connections:
            self._answer(connection)

    def close(self) -> None:
        self._listener.close()
        for connection in self.connections:
            connection.close()


@pytest.fixture
def silent(monkeypatch) -> Iterator[Silent]:
    monkeypatch.setattr("sira_cli.pictures.web.is_public", lambda ip: True)
    with contextlib.closing(Silent()) as silent:
        yield silent


def test_slow_urls_delay_no_other_request(lvlm, silent):
    """More of them than may be downloaded at once, which then wait, and than may wait, which are refused."""
    body = {"messages": said(picture=silent.url), "max_tokens": 2}
    with running(lvlm, allow_urls=True, most_waiting=3) as address, ThreadPoolExecutor(12) as pool:
        url = f"{address}/v1/chat/completions"
        slow = []
        for number in range(downloads.THREADS + 3):
            slow.append(pool.submit(httpx.post, url, json=body, timeout=60))
            while waiting(address, "downloading") <= number:
                assert not slow[-1].done()
        while len(silent.connections) < downloads.THREADS:
            assert not any(each.done() for each in slow)
        ordinary = httpx.post(url, json={"messages": said(), "max_tokens": 2}, timeout=60)
        assert ordinary.status_code == 200
        refused = httpx.post(url, json=body, timeout=60)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
        assert len(silent.connections) == downloads.THREADS
        assert not any(each.done() for each in slow)
        silent.speak()
        texts = [each.result().json()["choices"] for each in slow]
    assert texts == [ordinary.json()["choices"]] * len(slow)


def test_a_download_counts_until_its_thread_ends(lvlm, silent, monkeypatch):
    """Also where its request was told that it took too long."""
    monkeypatch.setattr(downloads, "THREADS", 1)
    body = {"messages": said(picture=silent.url), "max_tokens": 2}
    with running(lvlm, allow_urls=True, limits=Limits(seconds=0.5)) as address:
        url = f"{address}/v1/chat/completions"
        for _ in range(2):
            answer = httpx.post(url, json=body, timeout=60)
            assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")
        assert len(silent.connections) == 1
        silent.speak()
    with running(lvlm, allow_urls=True) as address:
        assert httpx.post(f"{address}/v1/chat/completions", json=body, timeout=60).status_code == 200


def test_a_client_that_goes_makes_place_for_other_downloads(lvlm, silent, monkeypatch):
    monkeypatch.setattr(downloads, "THREADS", 1)
    body = {"messages": said(picture=silent.url), "max_tokens": 2}
    with running(lvlm, allow_urls=True, most_waiting=1) as address, ThreadPoolExecutor(1) as pool:
        url = f"{address}/v1/chat/completions"
        first = pool.submit(httpx.post, url, json=body, timeout=60)
        while not silent.connections:
            assert not first.done()
        with pytest.raises(httpx.ReadTimeout):  # it waits for the first one, until it goes
            httpx.post(url, json=body, timeout=0.5)
        while waiting(address, "downloading") > 1:
            assert not first.done()
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url, json=body, timeout=0.5)
        silent.speak()
        assert first.result().status_code == 200
