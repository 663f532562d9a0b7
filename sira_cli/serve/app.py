"""The server: OpenAI's and Ollama's protocols (`PROTOCOLS`), `/health` and `/metrics`, and a page at `/`.

request --> Host, key --> body --> protocol --> a Job --> the queue's thread
                                              pieces <--'     (an asyncio queue per request)
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from sira_cli._version import __version__
from sira_cli.errors import PictureError, PictureMemoryError, PrivatePictureError, SettingsError, SiraError
from sira_cli.run.items import out_of_memory
from sira_cli.run.lvlm import Lvlm
from sira_cli.serve import Limits, ollama
from sira_cli.serve.hosts import LocalHosts
from sira_cli.serve.jobs import Event, Job, Logprob, Piece, Reply, job_of
from sira_cli.serve.ollama import OllamaChat, OllamaGenerate, ServedModel
from sira_cli.serve.openers import LEFT, gone
from sira_cli.serve.page import add_page, page_settings
from sira_cli.serve.protocol import ChatRequest, RequestError, shortened
from sira_cli.serve.queue import Queue

PROTOCOLS: dict[str, type[ChatRequest | OllamaChat]] = {
    "/v1/chat/completions": ChatRequest,
    "/api/chat": OllamaChat,
    "/api/generate": OllamaGenerate,
}
RETRY_AFTER = 2  # seconds
BODY_SECONDS = 30  # in which a body arrives
POLLED = 0.2  # seconds between checks that the client is connected
THREADS = 32  # that read requests and download their pictures
USUAL = Limits()
SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120, 300)  # buckets of the counters
TEXTS = (1, 2, 4, 8, 16, 32, 64)
SHOWN_BY = ["GET", "HEAD"]  # HEAD: programs that look whether a server is there

_log = logging.getLogger(__name__)


class Server:
    """An HTTP server for the decoder; `app` is the ASGI application. Its thread starts when the app does."""

    def __init__(
        self,
        lvlm: Lvlm,
        batch_size: int = 8,
        limits: Limits = USUAL,
        *,
        api_key: str | None = None,
        allow_urls: bool = False,
    ) -> None:
        self._limits = replace(limits, prompt=min(limits.prompt, lvlm.context or limits.prompt))
        self._lvlm = lvlm
        self._batch_size = batch_size
        self._api_key = api_key
        self._allow_urls = allow_urls
        self._reading = 0  # requests that are whole and not in the queue yet
        self._arriving = 0  # bytes of bodies that are not whole yet
        self._queue: Queue
        self._served = served = ServedModel(lvlm, self._limits.prompt)
        self._registry = own = CollectorRegistry()
        self._requests = Counter("sira_requests", "Requests by HTTP status.", ["status"], registry=own)
        self._tokens = Counter("sira_output_tokens", "Tokens of finished texts.", registry=own)
        to_end = "Seconds from a request to the end of its answer."
        self._seconds = Histogram("sira_request_seconds", to_end, buckets=SECONDS, registry=own)
        Gauge("sira_waiting_requests", "Requests that wait for their turn.", registry=own).set_function(self._waiting)
        together = "Texts decoded together, counted when they begin."
        self._batches = Histogram("sira_batch_texts", together, buckets=TEXTS, registry=own)

        self.app = app = FastAPI(
            title="sira", version=__version__, lifespan=self._lifespan, docs_url=None, redoc_url=None, openapi_url=None
        )
        if api_key is None:
            app.add_middleware(LocalHosts, refusal=self._failed)
        add_page(app)
        keyed: dict[str, Any] = {"dependencies": [Depends(self._check_key)], "response_model": None}
        for path in PROTOCOLS:
            app.post(path, **keyed)(self._answer)
        app.post("/api/show", **keyed)(self._show)
        shown: dict[str, Callable[..., Any]] = {
            "/v1/models": lambda: {"object": "list", "data": [served.model(served.name)]},
            "/v1/models/{name:path}": served.model,
            "/api/tags": lambda: served.tags,
            "/api/ps": lambda: served.running,
            "/api/version": lambda: {"version": ollama.VERSION},
            "/metrics": lambda: Response(generate_latest(own), media_type="text/plain; version=0.0.4"),
            "/settings": lambda: page_settings(lvlm),
        }
        for path, answer in shown.items():
            app.add_api_route(path, answer, methods=SHOWN_BY, **keyed)
        app.add_api_route("/health", lambda: {"status": "ok"}, methods=SHOWN_BY, response_model=None)
        # The framework logs only errors handled as `Exception`.
        for kind in (HTTPException, SiraError, MemoryError, ClientDisconnect, Exception):
            app.add_exception_handler(kind, self._failed)

    @asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS, "sira-request"))
        self._queue = Queue(self._lvlm, self._batch_size, self._limits, self._batches.observe)
        yield
        await asyncio.to_thread(self._queue.close)

    def refuse_waiting(self) -> None:
        """Refuse the requests that wait, and all that come: the server is stopping."""
        self._queue.refuse_all()

    def _waiting(self) -> int:
        return self._reading + self._queue.waiting()

    async def _show(self, request: Request) -> dict[str, Any]:
        body = await self._body(request)
        return self._served.show((await asyncio.to_thread(OllamaChat.read, body)).model)

    async def _check_key(self, request: Request) -> None:
        if self._api_key is None:
            return
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        with suppress(UnicodeError):
            key = key.encode("latin-1").decode()  # servers read headers as Latin-1, and clients send UTF-8
        if scheme.lower() != "bearer" or not hmac.compare_digest(key.strip().encode(), self._api_key.encode()):
            raise RequestError("wrong or missing API key", 401, code="invalid_api_key")

    async def _answer(self, request: Request) -> Response:
        """Answer a request of any protocol; each is translated to a chat."""
        began = time.monotonic()
        self._check_room()
        body = await self._body(request)
        self._check_room()  # others have come since
        reports: asyncio.Queue[Event] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def report(event: Event) -> None:
            with suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(reports.put_nowait, event)

        def job_of_model(chat: ChatRequest) -> Job:
            self._served.check(chat.model)
            return job_of(chat, self._lvlm, self._limits, report, allow_urls=self._allow_urls)

        self._reading += 1
        try:
            async with asyncio.timeout(self._limits.seconds):
                asked = await asyncio.to_thread(lambda: PROTOCOLS[request.url.path].read(body))
                if not isinstance(asked, ChatRequest) and not asked.turns():
                    self._served.check(ollama.short_name(asked.model))
                    self._requests.labels("200").inc()
                    return JSONResponse(asked.loaded())
                chat = asked if isinstance(asked, ChatRequest) else asked.chat()
                job = await asyncio.to_thread(job_of_model, chat)
                self._queue.submit(job)
        except TimeoutError:
            raise RequestError("the request took too long to read", 504, code="timeout") from None
        finally:
            self._reading -= 1
        form = ChatForm(chat, self._served.name) if isinstance(asked, ChatRequest) else asked
        events = self._events(request, reports, job, began)
        if not chat.stream:
            *pieces, reply = [event async for event in events]
            return JSONResponse(form.whole(pieces, reply))
        first = await anext(events)  # errors are found before a stream begins
        return StreamingResponse(self._lines(form, first, events), media_type=form.streamed)

    async def _events(
        self, request: Request, reports: asyncio.Queue[Event], job: Job, began: float
    ) -> AsyncGenerator[Any]:
        """Yield pieces and the reply, or raise an error. A stream that has begun ends by the framework."""
        streaming = False
        try:
            while True:
                left = began + self._limits.seconds - time.monotonic()
                if left <= 0:
                    raise RequestError("the answer took too long", 504, code="timeout")
                if not streaming and await request.is_disconnected():
                    raise ClientDisconnect
                try:
                    event = await asyncio.wait_for(reports.get(), min(POLLED, left))
                except TimeoutError:
                    continue
                if isinstance(event, Exception):
                    raise as_request_error(event)
                yield event
                streaming = job.chat.stream
                if isinstance(event, Reply):
                    self._tokens.inc(event.answer.output_tokens)
                    self._requests.labels("200").inc()
                    self._seconds.observe(time.monotonic() - began)
                    return
        finally:
            job.gone = True

    async def _lines(
        self, form: ChatForm | OllamaChat, first: Piece | Reply, events: AsyncGenerator[Any]
    ) -> AsyncIterator[str]:
        """Yield the lines of a stream. An error is its last one, and a client that leaves is counted."""
        try:
            async with aclosing(events):
                for line in (*form.lines(None), *form.lines(first)):
                    yield line
                async for event in events:
                    for line in form.lines(event):
                        yield line
        except RequestError as error:
            self._requests.labels(str(error.status)).inc()
            for line in form.lines(error):
                yield line
        except BaseException:
            self._requests.labels(str(LEFT)).inc()
            raise

    def _check_room(self) -> None:
        """Check that one more request may wait."""
        waiting = self._waiting()
        if waiting >= self._limits.waiting:
            raise RequestError(f"{waiting} requests wait already: try again later", 429, code="busy")

    async def _body(self, request: Request) -> bytes:
        """Return a body. Some Ollama clients omit its content type, which other sites' pages cannot."""
        foreign = any(name in request.headers for name in ("content-type", "origin", "sec-fetch-site"))
        says = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if says != "application/json" and (foreign or not ollama.is_ollama(request.url.path)):
            message = "expected a body of type application/json: send the header Content-Type: application/json"
            raise RequestError(message, 415, code="unsupported_media_type")
        try:
            async with asyncio.timeout(BODY_SECONDS):
                return await self._arrived(request)
        except TimeoutError:
            message = f"the body did not arrive within {BODY_SECONDS} seconds: send it faster, or a smaller one"
            raise RequestError(message, 408, code="timeout") from None

    async def _arrived(self, request: Request) -> bytes:
        """Return a body that is whole. Those that are not take no more memory together than all that may wait."""
        body = bytearray()
        most = self._limits.bytes
        try:
            async for part in request.stream():
                body += part
                self._arriving += len(part)
                if len(body) > most:
                    raise RequestError(f"the request has more than {most:,} bytes", 413, code="too_large")
                if self._arriving > most * self._limits.waiting:
                    raise RequestError("too many large requests arrive: try again later", 429, code="busy")
        finally:
            self._arriving -= len(body)
        return bytes(body)

    async def _failed(self, request: Request, error: Exception) -> Response:
        """Return an error as the clients of the path expect it."""
        path = request.url.path
        headers: dict[str, str] = {}
        if isinstance(error, HTTPException):
            headers |= error.headers or {}  # of status 405: the allowed methods
            message = f"{request.method} {shortened(path)}: {error.detail}; this server has {self._paths_like(path)}"
            code = "method_not_allowed" if error.status_code == 405 else "not_found"
            error = RequestError(message, error.status_code, code=code)
        refused = as_request_error(error)
        self._requests.labels(str(refused.status)).inc()
        if refused.status == 429 or refused.code == "out_of_memory":
            headers["Retry-After"] = str(RETRY_AFTER)
        if refused.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if refused.status == 408:
            headers["Connection"] = "close"  # or the rest of the body keeps it open
        body = ollama.error_json(refused, path) if ollama.is_ollama(path) else refused.to_json()
        return JSONResponse(body, refused.status, headers)

    def _paths_like(self, path: str) -> str:
        """Return the paths of the protocol that a path belongs to; of OpenAI's, if of none."""
        start = ollama.PATH if ollama.is_ollama(path) else "/v1/"
        here = [route.path for route in self.app.routes if isinstance(route, Route)]
        return ", ".join(each for each in here if each.startswith(start) and "{" not in each)


def as_request_error(error: Exception) -> RequestError:
    """Return the error for the client; an unexpected one without details."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, PictureMemoryError) or out_of_memory(error):
        message = "not enough memory now: try again later, or send a smaller picture"
        return RequestError(message, 503, code="out_of_memory")
    if isinstance(error, PictureError | SettingsError):  # where a name of this network leads is not told
        return RequestError(error.public if isinstance(error, PrivatePictureError) else str(error))
    if isinstance(error, SiraError):
        return RequestError(str(error), 422, code="unprocessable")
    if isinstance(error, ClientDisconnect):
        return gone()
    _log.error("a request failed: %s", type(error).__name__, exc_info=error)
    return RequestError("the server failed; its log says why", 500, code="internal_error")


class ChatForm:
    """The answer to one chat in the form of OpenAI's protocol, whole or in chunks."""

    streamed = "text/event-stream"

    def __init__(self, chat: ChatRequest, model: str) -> None:
        self._chat = chat
        self._common = {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": "chat.completion", "created": int(time.time())}
        self._common["model"] = chat.model or model

    def whole(self, pieces: Sequence[Piece], reply: Reply) -> dict[str, Any]:
        """Return the whole answer."""
        message = {"role": "assistant", "content": reply.answer.text, "refusal": None}
        if reply.answer.reasoning is not None:
            message["reasoning_content"] = reply.answer.reasoning
        logprobs = self._logprobs([logprob for piece in pieces for logprob in piece.logprobs])
        choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": reply.finish_reason}
        return {**self._common, "choices": [choice], "usage": _usage(reply), "sira": reply.sira}

    def lines(self, event: Piece | Reply | RequestError | None) -> Iterator[str]:
        """Yield the server-sent events of a stream about an event; None: its begin."""
        if isinstance(event, RequestError):
            yield _sent(event.to_json())
        else:
            for part in self._parts(event):
                yield _sent(self._common | {"object": "chat.completion.chunk"} | part)
        if isinstance(event, Reply | RequestError):
            yield "data: [DONE]\n\n"

    def _parts(self, event: Piece | Reply | None) -> Iterator[dict[str, Any]]:
        """Yield the keys of each chunk about an event."""
        if event is None:
            yield _delta({"role": "assistant", "content": ""}, logprobs=self._logprobs([]))
        elif isinstance(event, Reply):
            yield _delta({}, finish_reason=event.finish_reason) | {"sira": event.sira}
            if self._chat.stream_options.get("include_usage"):
                yield {"choices": [], "usage": _usage(event)}
        else:
            if event.reasoning:
                yield _delta({"reasoning_content": event.reasoning})
            if event.text or event.logprobs:
                yield _delta({"content": event.text}, logprobs=self._logprobs(event.logprobs))

    def _logprobs(self, logprobs: list[Logprob]) -> dict[str, Any] | None:
        return {"content": logprobs, "refusal": None} if self._chat.logprobs else None


def _sent(content: dict[str, Any]) -> str:
    """Return a server-sent event."""
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


def _delta(delta: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None} | more]}


def _usage(reply: Reply) -> dict[str, Any]:
    answer = reply.answer
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.output_tokens,
        "total_tokens": answer.prompt_tokens + answer.output_tokens,
        "completion_tokens_details": {"reasoning_tokens": answer.reasoning_tokens},
    }
