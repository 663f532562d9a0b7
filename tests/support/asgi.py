"""An ASGI application on a real port, in a thread; and one of OpenAI's chat protocol whose answers a test writes."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse


@contextmanager
def served(app: Any, **settings: Any) -> Iterator[str]:
    """Serve until the block ends; yields the address. `settings` are uvicorn's.

    Idle connections live longer than tests pause: after uvicorn's 5 seconds, a request may meet the closing one.
    """
    settings = {"timeout_keep_alive": 120, **settings}
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", **settings))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


class Scripted:
    """A server whose answers a test writes: `script(number, body)` returns status and body, or None to hang."""

    def __init__(self, script, owner):
        self.script, self.owner, self.models, self.bodies, self.keys = script, owner, ["m"], [], []
        self.app = FastAPI()
        self.app.get("/v1/models")(lambda: {"data": [{"id": name, "owned_by": owner} for name in self.models]})
        self.app.add_api_route("/v1/chat/completions", self.chat, methods=["POST"], response_model=None)

    async def chat(self, request: Request):
        self.bodies.append(await request.json())
        self.keys.append(request.headers["authorization"])
        answer = self.script(len(self.bodies) - 1, self.bodies[-1])
        while answer is None and not await request.is_disconnected():
            await asyncio.sleep(0.02)
        status, body = answer or (200, b"")
        return Response(body, status, media_type="text/html") if isinstance(body, bytes) else JSONResponse(body, status)


@contextmanager
def scripted(script, owner="somebody"):
    server = Scripted(script, owner)
    with served(server.app) as address:
        yield server, f"{address}/v1"


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
