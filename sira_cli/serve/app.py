"""The server: OpenAI's and Ollama's protocols (`PROTOCOLS`), `/health` and `/metrics`, and a page at `/`.

request --> Host, key --> body --> protocol --> a Job --> the queue's thread
                                              pieces <--'     (an asyncio queue per request)
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from sira_cli._version import __version__
from sira_cli.errors import SiraError
from sira_cli.run.lvlm import Lvlm
from sira_cli.serve import ollama
from sira_cli.serve.answers import Answering, Event, as_request_error
from sira_cli.serve.jobs import Pictures, check_length, prompt_of, settings_of, task_of
from sira_cli.serve.limits import Limits
from sira_cli.serve.metrics import Metrics
from sira_cli.serve.ollama import OllamaChat, OllamaGenerate
from sira_cli.serve.page.files import add_page, page_settings
from sira_cli.serve.protocol import MOST_ECHOED, ChatRequest, Options, RequestError, shortened
from sira_cli.serve.queue import Job, Queue
from sira_cli.serve.served import ServedModel, ShowRequest

PROTOCOLS: dict[str, type[ChatRequest | OllamaChat]] = {
    "/v1/chat/completions": ChatRequest,
    "/api/chat": OllamaChat,
    "/api/generate": OllamaGenerate,
}
RETRY_AFTER = 2  # seconds
THREADS = 32  # that read requests and download their pictures

_Request = TypeVar("_Request", bound=Options)


class Server:
    """An HTTP server for the decoder.

    Attributes:
        app: the ASGI application.
    """

    def __init__(
        self,
        lvlm: Lvlm,
        *,
        batch_size: int = 8,
        limits: Limits | None = None,
        api_key: str | None = None,
        hosts: list[str] | None = None,
        allow_urls: bool = False,
    ) -> None:
        """Make a server; its thread starts when the app does."""
        self._lvlm, self._batch_size, self._limits = lvlm, batch_size, limits or Limits()
        self._api_key, self._allow_urls = api_key, allow_urls
        self._reading = 0  # requests that are not in the queue yet
        self._queue: Queue
        self._metrics = Metrics(self._waiting)
        self._longest_prompt = min(self._limits.prompt, lvlm.context or self._limits.prompt)
        self._served = served = ServedModel(lvlm, self._longest_prompt)
        self.app = app = FastAPI(
            title="sira", version=__version__, lifespan=self._lifespan, docs_url=None, redoc_url=None, openapi_url=None
        )
        if hosts is not None:
            app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
        add_page(app)
        app.get("/health")(lambda: {"status": "ok"})
        keyed: dict[str, Any] = {"dependencies": [Depends(self._check_key)], "response_model": None}
        for path in PROTOCOLS:
            app.post(path, **keyed)(self._answer)
        app.post("/api/show", **keyed)(self._show)
        app.get("/v1/models", **keyed)(served.models)
        app.get("/v1/models/{name:path}", **keyed)(served.model)
        app.get("/api/tags", **keyed)(served.tags)
        app.get("/api/ps", **keyed)(served.running)
        app.get("/api/version", **keyed)(served.version)
        app.get("/metrics", **keyed)(self._counted)
        app.get("/settings", **keyed)(lambda: page_settings(lvlm))
        # The framework logs only errors handled as `Exception`.
        for kind in (HTTPException, SiraError, MemoryError, ClientDisconnect, Exception):
            app.add_exception_handler(kind, self._failed)

    @asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS, "sira-request"))
        limits = self._limits
        self._queue = Queue(self._lvlm, self._batch_size, 2 * limits.pixels, self._longest_prompt, self._metrics)
        yield
        await asyncio.to_thread(self._queue.close)

    def _waiting(self) -> int:
        return self._reading + self._queue.waiting()

    def _counted(self) -> Response:
        return PlainTextResponse(self._metrics.text(), media_type="text/plain; version=0.0.4")

    async def _show(self, request: Request) -> dict[str, Any]:
        return self._served.show(await self._read(ShowRequest, request))

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
        until = time.monotonic() + self._limits.seconds
        if (waiting := self._waiting()) >= self._limits.waiting:
            raise RequestError(f"{waiting} requests wait already: try again later", 429, code="busy")
        events: asyncio.Queue[Event] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def tell(event: Event) -> None:
            with suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(events.put_nowait, event)

        self._reading += 1
        try:
            async with asyncio.timeout(self._limits.seconds):
                asked = await self._read(PROTOCOLS[request.url.path], request)
                if isinstance(asked, OllamaChat) and not asked.turns():
                    self._served.check(ollama.short_name(asked.model))
                    self._metrics.requests.labels("200").inc()
                    return JSONResponse(asked.loaded())
                job = await asyncio.to_thread(lambda: self._job(asked.chat(), tell))
                self._queue.submit(job)
        except TimeoutError:
            raise RequestError("the request took too long to arrive", 504, code="timeout") from None
        finally:
            self._reading -= 1
        answering, name = Answering(request, events, until, self._metrics), self._served.names[0]
        if not job.chat.stream:
            return JSONResponse(asked.answer(await answering.answer(job, name)))
        lines = asked.lines(answering.chunks(job, name))
        first = await anext(lines)  # errors are found before a stream begins
        return StreamingResponse(_joined(first, lines), media_type=asked.streamed)

    async def _read(self, kind: type[_Request], request: Request) -> _Request:
        """Return the request in a body. Some Ollama clients omit its content type, which other sites' pages cannot."""
        foreign = any(name in request.headers for name in ("content-type", "origin", "sec-fetch-site"))
        says = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if says != "application/json" and (foreign or not request.url.path.startswith(ollama.PATH)):
            message = "expected a body of type application/json: send the header Content-Type: application/json"
            raise RequestError(message, 415, code="unsupported_media_type")
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > self._limits.bytes:
                raise RequestError(f"the request has more than {self._limits.bytes:,} bytes", 413, code="too_large")
        return await asyncio.to_thread(kind.read, bytes(body))

    def _job(self, chat: ChatRequest, tell: Callable[[Event], None]) -> Job:
        """Check a request and get its pictures."""
        lvlm, limits = self._lvlm, self._limits
        self._served.check(chat.model)
        check_length(chat, lvlm.vocabulary, self._longest_prompt)
        preset, method = settings_of(chat, lvlm.preset, lvlm.method, limits.tokens, lvlm.layers)
        prompt = prompt_of(chat, preset.prompts)
        lvlm.check_prompt(prompt, len(chat.pictures()))
        task = task_of(chat, preset, method)
        lvlm.following(task.schema)  # one that the model's tokens cannot follow is refused before it meets others
        return Job(chat, task, prompt, Pictures.of(chat, limits, allow_urls=self._allow_urls), tell)

    async def _failed(self, request: Request, error: Exception) -> Response:
        """Return an error as the clients of the path expect it."""
        path, headers = request.url.path, dict[str, str]()
        if isinstance(error, HTTPException):
            headers |= error.headers or {}  # of status 405: the allowed methods
            message = f"{request.method} {shortened(path, MOST_ECHOED)}: {error.detail}"
            if path.startswith(ollama.PATH):
                here = [route.path for route in self.app.routes if isinstance(route, Route)]
                message += f"; this server has {', '.join(each for each in here if each.startswith(ollama.PATH))}"
            code = "method_not_allowed" if error.status_code == 405 else "not_found"
            error = RequestError(message, error.status_code, code=code)
        refused = as_request_error(error)
        self._metrics.requests.labels(str(refused.status)).inc()
        if refused.status == 429 or refused.code == "out_of_memory":
            headers["Retry-After"] = str(RETRY_AFTER)
        if refused.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        told = ollama.error_json(refused, path) if path.startswith(ollama.PATH) else refused.to_json()
        return JSONResponse(told, refused.status, headers)


async def _joined(first: str, lines: AsyncIterator[str]) -> AsyncIterator[str]:
    yield first
    async for line in lines:
        yield line
