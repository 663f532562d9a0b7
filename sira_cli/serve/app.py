"""The server: OpenAI's and Ollama's protocols (`PROTOCOLS`), `/health` and `/metrics`, and a page at `/`.

request --> Host, key --> body --> protocol --> a Job --> the decoder's thread
                                              pieces <--'     (an asyncio queue per request)
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from sira_cli._version import __version__
from sira_cli.errors import SiraError
from sira_cli.methods.base import Method
from sira_cli.methods.prompts import Prompt
from sira_cli.models.preset import Preset
from sira_cli.models.schema import Schema
from sira_cli.pictures.web import WebSource, is_web
from sira_cli.run.lvlm import Lvlm
from sira_cli.serve.answers import Answering, Piece, as_request_error
from sira_cli.serve.decoder import Decoder
from sira_cli.serve.http import bearer_key, is_key, says_json
from sira_cli.serve.jobs import Job
from sira_cli.serve.limits import Limits, check_length, check_parts, too_large
from sira_cli.serve.metrics import Metrics
from sira_cli.serve.ollama import OllamaChat, OllamaGenerate, OllamaRequest
from sira_cli.serve.page.files import add_page, page_settings
from sira_cli.serve.pictures import Pictures, receive
from sira_cli.serve.protocol import MOST_ECHOED, OLLAMA, ChatRequest, Options, RequestError, shortened
from sira_cli.serve.served import ServedModel, ShowRequest, short_name
from sira_cli.serve.settings import prompt_of, schema_of, settings_of

ClientRequest = ChatRequest | OllamaChat | OllamaGenerate
PROTOCOLS: dict[str, type[ClientRequest]] = {
    "/v1/chat/completions": ChatRequest,
    "/api/chat": OllamaChat,
    "/api/generate": OllamaGenerate,
}
RETRY_AFTER = 2  # seconds
DOWNLOADS = 8  # at once

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
        most_waiting: int = 64,
        limits: Limits | None = None,
        api_key: str | None = None,
        hosts: list[str] | None = None,
        allow_urls: bool = False,
    ) -> None:
        """Make a server; its thread starts when the app does."""
        self._lvlm, self._limits, self._api_key = lvlm, limits or Limits(), api_key
        self._batch_size, self._most_waiting, self._allow_urls = batch_size, most_waiting, allow_urls
        self._reading = 0  # requests that are not at the decoder yet
        self._metrics = Metrics(lambda: self._reading + self._decoder.waiting())
        self._decoder: Decoder
        self._downloads: ThreadPoolExecutor
        self._longest_prompt = min(self._limits.prompt, lvlm.context or self._limits.prompt)
        self._served = served = ServedModel(lvlm, self._longest_prompt)
        self.app = FastAPI(
            title="sira", version=__version__, lifespan=self._lifespan, docs_url=None, redoc_url=None, openapi_url=None
        )
        if hosts is not None:
            self.app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
        add_page(self.app)
        posts = {path: functools.partial(self._answer, protocol) for path, protocol in PROTOCOLS.items()}
        self._add("POST", {**posts, "/api/show": self._show})
        told = {"/v1/models": served.models, "/api/tags": served.tags, "/api/ps": served.running}
        told |= {"/api/version": served.version, "/settings": functools.partial(page_settings, lvlm)}
        self._add("GET", {path: functools.partial(self._told, content) for path, content in told.items()})
        self._add("GET", {"/v1/models/{name:path}": self._model, "/health": self._health, "/metrics": self._counted})
        self.app.add_exception_handler(RequestError, self._refused)
        self.app.add_exception_handler(HTTPException, self._not_found)
        # The framework logs only errors handled as `Exception`.
        for kind in (SiraError, MemoryError, ClientDisconnect, Exception):
            self.app.add_exception_handler(kind, self._broken)

    def _add(self, method: str, routes: Mapping[str, Callable[[Request], Awaitable[Response]]]) -> None:
        for path, endpoint in routes.items():
            self.app.add_route(path, endpoint, methods=[method])

    @asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        self._decoder = Decoder(self._lvlm, self._batch_size, 2 * self._limits.pixels, self._metrics)
        self._downloads = ThreadPoolExecutor(DOWNLOADS, "sira-download")
        yield
        self._downloads.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._decoder.close)

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _counted(self, request: Request) -> Response:
        self._check_key(request)
        return PlainTextResponse(self._metrics.text(), media_type="text/plain; version=0.0.4")

    async def _told(self, content: Callable[[], dict[str, Any]], request: Request) -> Response:
        self._check_key(request)
        return JSONResponse(content())

    async def _model(self, request: Request) -> Response:
        self._check_key(request)
        return JSONResponse(self._served.model(request.path_params["name"]))

    async def _show(self, request: Request) -> Response:
        return JSONResponse(self._served.show(await self._read(ShowRequest, request)))

    def _check_key(self, request: Request) -> None:
        if self._api_key is not None and not is_key(bearer_key(request.headers), self._api_key):
            raise RequestError("wrong or missing API key", 401, code="invalid_api_key")

    async def _answer(self, protocol: type[ClientRequest], request: Request) -> Response:
        """Answer a request of any protocol; each is translated to a chat."""
        until = time.monotonic() + self._limits.seconds
        self._check_key(request)
        if (waiting := self._reading + self._decoder.waiting()) >= self._most_waiting:
            raise RequestError(f"{waiting} requests wait already: try again later", 429, code="busy")
        self._reading += 1
        try:
            async with asyncio.timeout(self._limits.seconds):
                asked = await self._read(protocol, request)
                if isinstance(asked, OllamaRequest) and asked.is_empty():
                    return self._loaded(asked)
                chat = await asyncio.to_thread(asked.chat)
                answering = await self._begin(chat, request, until)
        except TimeoutError:
            raise RequestError("the request took too long to arrive", 504, code="timeout") from None
        finally:
            self._reading -= 1
        first = await answering.next()  # errors are found before a stream begins
        if chat.stream:
            return _Stream(answering, asked.lines(answering.chunks(first)), media_type=asked.streamed)
        return JSONResponse(asked.answer(await answering.whole(first)))

    def _loaded(self, asked: OllamaRequest) -> Response:
        self._served.check(short_name(asked.model))
        self._metrics.requests.labels("200").inc()
        return JSONResponse(asked.loaded())

    async def _read(self, kind: type[_Request], request: Request) -> _Request:
        """Return the request in a body."""
        self._check_key(request)
        if not (says_json(request.headers) or _is_ollama_client(request)):
            message = "expected a body of type application/json: send the header Content-Type: application/json"
            raise RequestError(message, 415, code="unsupported_media_type")
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > self._limits.data:
                raise too_large(f"the request has more than {self._limits.data:,} bytes", param=None)
        check_parts(body, self._limits.parts)
        return await asyncio.to_thread(kind.read, bytes(body))

    async def _begin(self, chat: ChatRequest, request: Request, until: float) -> Answering:
        """Queue a request."""
        self._served.check(chat.model)
        preset, method, prompt, schema = await asyncio.to_thread(self._settled, chat)
        pieces: asyncio.Queue[Piece] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def tell(piece: Piece) -> None:
            with suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        job = Job(
            pictures=await self._pictures(chat.pictures()),
            prompt=prompt,
            longest_prompt=self._longest_prompt,
            preset=preset,
            method=method,
            stops=chat.stops(),
            schema=schema,
            task=chat.sira.task,
            top_logprobs=(chat.top_logprobs or 0) if chat.logprobs else None,
            words=chat.sira.words,
            verify=chat.sira.look(),
            tell=tell,
        )
        self._decoder.submit(job)
        return Answering(request, job, pieces, until, chat, self._served.names[0], self._metrics)

    def _settled(self, chat: ChatRequest) -> tuple[Preset, Method, Prompt, Schema | None]:
        """Return the settings that decide the text of a request, without its pictures."""
        check_length(chat, self._lvlm.vocabulary, self._longest_prompt)
        preset, method = settings_of(chat, self._lvlm.preset, self._lvlm.method, self._limits.tokens, self._lvlm.layers)
        prompt = prompt_of(chat, preset.prompts)
        self._lvlm.check_prompt(prompt, len(chat.pictures()))
        schema = schema_of(chat, preset, method, self._limits.schema)
        self._lvlm.following(schema)  # a schema that the model's tokens cannot follow is refused before it meets others
        return preset, method, prompt, schema

    async def _pictures(self, urls: Sequence[str]) -> Pictures:
        """Return the pictures of a request; those at URLs are downloaded."""
        if len(urls) > self._limits.pictures:
            raise too_large(f"{len(urls)} pictures; this server takes {self._limits.pictures} in one conversation")
        downloaded: dict[str, bytes] = {}
        for url in filter(is_web, urls) if self._allow_urls else ():
            if url not in downloaded:
                read = WebSource(url, url).read
                downloaded[url] = await asyncio.get_running_loop().run_in_executor(self._downloads, read)
        return await asyncio.to_thread(receive, urls, self._limits, downloaded)

    async def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestError)
        self._metrics.requests.labels(str(error.status)).inc()
        headers = {}
        if error.status == 429 or error.code == "out_of_memory":
            headers["Retry-After"] = str(RETRY_AFTER)
        if error.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        path = request.url.path
        return JSONResponse(error.to_json(path, PROTOCOLS.get(path, ChatRequest).renamed_keys), error.status, headers)

    async def _not_found(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = request.url.path
        if path.startswith(OLLAMA):
            here = (route.path for route in self.app.routes if isinstance(route, Route))
            more = f"; this server has {', '.join(known for known in here if known.startswith(OLLAMA))}"
        else:
            more = ""
        message = f"{request.method} {shortened(path, MOST_ECHOED)}: {error.detail}{more}"
        code = "method_not_allowed" if error.status_code == 405 else "not_found"
        answer = await self._refused(request, RequestError(message, error.status_code, code=code))
        answer.headers.update(error.headers or {})  # of status 405: the allowed methods
        return answer

    async def _broken(self, request: Request, error: Exception) -> Response:
        return await self._refused(request, as_request_error(error))


class _Stream(StreamingResponse):
    """A stream that ends the text when the client leaves, even before its first line."""

    def __init__(self, answering: Answering, lines: AsyncIterator[str], **more: Any) -> None:
        super().__init__(lines, **more)
        self._answering = answering

    async def __call__(self, *given: Any) -> None:
        try:
            await super().__call__(*given)
        finally:
            self._answering.leave()


def _is_ollama_client(request: Request) -> bool:
    """Return whether a request may lack its content type: some Ollama clients omit it, other sites' pages cannot."""
    foreign = any(name in request.headers for name in ("content-type", "origin", "sec-fetch-site"))
    return request.url.path.startswith(OLLAMA) and not foreign
