"""A web server on this machine that sends what a test writes, piece by piece."""

from __future__ import annotations

import itertools
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

Answer = Callable[[str], Iterable[bytes]]  # pieces by path, of which a HEAD request gets the first


def reply(status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> list[bytes]:
    fields = {"Content-Length": str(len(body)), "Connection": "close", **(headers or {})}
    return [
        "".join([f"HTTP/1.1 {status} X\r\n", *(f"{name}: {fields[name]}\r\n" for name in fields), "\r\n"]).encode(),
        body,
    ]


class WebServer(socketserver.ThreadingTCPServer):
    daemon_threads, block_on_close = True, False

    def __init__(self, answer: Answer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer, self.asked = answer, list[str]()
        self.address = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_: object) -> None:
        """Who does not wait for the end hangs up."""


class _Handler(socketserver.BaseRequestHandler):
    server: WebServer

    def handle(self) -> None:
        method, path, *_ = self.request.recv(2**16).decode().split()
        self.server.asked.append(f"{method} {path}")
        for piece in itertools.islice(self.server.answer(path), 1 if method == "HEAD" else None):
            self.request.sendall(piece)


@contextmanager
def answering(answer: Answer) -> Iterator[WebServer]:
    with WebServer(answer) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()
