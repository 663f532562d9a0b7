"""A server of OpenAI's chat protocol whose answers a test writes, on a real socket."""

from __future__ import annotations

import json
import math
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Scripted(ThreadingHTTPServer):
    """A server whose answers a test writes: `script(number, body)` returns status, body and headers, or hangs."""

    daemon_threads = True

    def __init__(self, script, owner):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script, self.owner, self.models = script, owner, ["m"]
        self.bodies, self.keys, self.times = [], [], []
        self.lock, self.under_way, self.most = threading.Lock(), 0, 0
        self.free = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        assert self.path.partition("?")[0] == "/v1/models"
        self.reply(200, {"data": [{"id": name, "owned_by": self.server.owner} for name in self.server.models]})

    def do_POST(self):
        assert self.path.partition("?")[0] == "/v1/chat/completions"
        body, server = json.loads(self.rfile.read(int(self.headers["content-length"]))), self.server
        with server.lock:
            number = len(server.bodies)
            server.bodies.append(body)
            server.keys.append(self.headers["authorization"])
            server.times.append(time.monotonic())
            server.under_way += 1
            server.most = max(server.most, server.under_way)
        answer = server.script(number, body)
        with server.lock:
            server.under_way -= 1
        if answer is None:
            server.free.wait(60)
        else:
            self.reply(*answer)

    def reply(self, status, body, headers=None):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = "text/html" if isinstance(body, bytes) else "application/json"
        self.send_response(status)
        for name, value in {"content-type": kind, "content-length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


@contextmanager
def scripted(script, owner="somebody"):
    server = Scripted(script, owner)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.free.set()
        server.shutdown()
        thread.join()
        server.server_close()


def tokens(top):
    """An answer with the probabilities of first tokens, the likeliest first."""
    entries = [{"token": token, "logprob": math.log(each), "bytes": None} for token, each in top.items()]
    content = [{**entries[0], "top_logprobs": entries}]
    return 200, {"choices": [{"message": {"content": entries[0]["token"]}, "logprobs": {"content": content}}]}


def scored():
    return tokens({"Yes": 0.6, "No": 0.2})


def plain(text):
    return 200, {"choices": [{"message": {"role": "assistant", "content": text}, "logprobs": None}]}


def named(body):
    return body["messages"][-1]["content"][1]["text"]


def refused(message, reason="stop"):
    return 200, {"choices": [{"message": {"content": None, **message}, "finish_reason": reason}]}
