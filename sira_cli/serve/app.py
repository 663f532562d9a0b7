"""The server: OpenAI's and Ollama's protocols (`PROTOCOLS`), `/health` and `/metrics`.

request --> Host, key --> a place in the queue --> protocol --> a Job --> the decoder's thread
                                                            pieces <--'     (an asyncio queue per request)

A page at `/` uses the server (`serve/page`), with `/settings` and `/report`.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from sira_cli._version import __version__
from sira_cli.errors import SiraError
from sira_cli.methods.base import Method
from sira_cli.methods.prompts import Prompt
from sira_cli.models.loading.preset import Preset
from sira_cli.models.lvlm import Lvlm
from sira_cli.models.schemas.schema import Schema
from sira_cli.serve.admission import Admission, PendingRequest
from sira_cli.serve.answers import Answering, as_request_error
from sira_cli.serve.decoder import Decoder
from sira_cli.serve.downloads import Downloads
from sira_cli.serve.http import bearer_key, is_key
from sira_cli.serve.jobs import Job, Reply, TextPiece, prompt_of, schema_of, settings_of
from sira_cli.serve.limits import Limits, check_length
from sira_cli.serve.metrics import Metrics
from sira_cli.serve.middleware import RequestMiddleware
from sira_cli.serve.ollama import OllamaChat, OllamaGenerate, OllamaRequest
from sira_cli.serve.page.files import UNKEPT, add_page
from sira_cli.serve.page.settings import page_settings
from sira_cli.serve.pictures import Received
from sira_cli.serve.protocol import OLLAMA, ChatRequest, RequestError, shortened
from sira_cli.serve.report import ReportRequest, report_of
from sira_cli.serve.served import MOST_ECHOED, ServedModel, ShowRequest, short_name
from sira_cli.serve.trials import Trials
from sira_cli.serve.waiting_queue import RETRY_AFTER, WaitingQueue

ClientRequest = ChatRequest | OllamaChat | OllamaGenerate
PROTOCOLS: dict[str, type[ClientRequest]] = {
    "/v1/chat/completions": ChatRequest,
    "/api/chat": OllamaChat,
    "/api/generate": OllamaGenerate,
}


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
        """Make a server; its thread starts when the app does.

        Args:
            lvlm: the loaded model, under the default method.
            batch_size: maximum number of texts decoded together.
            most_waiting: maximum number of waiting requests; further ones get 429.
            limits: of one request.
            api_key: key that clients must send; None: no key.
            hosts: accepted names in `Host`; None: any.
            allow_urls: download pictures at URLs in requests, from public addresses only.
        """
        self._lvlm, self._limits, self._api_key = lvlm, limits or Limits(), api_key
        self._batch_size, self._most_waiting, self._allow_urls = batch_size, most_waiting, allow_urls
        self._metrics = Metrics()
        self._decoder: Decoder
        self._admission: Admission
        self._trials: Trials
        self._longest_prompt = min(self._limits.prompt, lvlm.context or self._limits.prompt)
        self._served = served = ServedModel(lvlm, self._longest_prompt)
        self.app = FastAPI(
            title="sira", version=__version__, lifespan=self._lifespan, docs_url=None, redoc_url=None, openapi_url=None
        )
        self.app.add_middleware(RequestMiddleware, hosts=hosts, metrics=self._metrics)
        add_page(self.app)
        posts = {path: functools.partial(self._answer, protocol) for path, protocol in PROTOCOLS.items()}
        self._add("POST", {**posts, "/api/show": self._show, "/report": self._report})
        told = {"/v1/models": served.models, "/api/tags": served.tags, "/api/ps": served.running}
        told["/api/version"] = served.version
        self._add("GET", {path: functools.partial(self._told, content) for path, content in told.items()})
        self._add("GET", {"/v1/models/{name:path}": self._model, "/settings": self._settings})
        self._add("GET", {"/health": self._health, "/metrics": self._counted})
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
        self._decoder = Decoder(self._lvlm, self._batch_size, self._limits.begun, self._metrics)
        queue = WaitingQueue(self._most_waiting, self._limits.held, self._batch_size, self._decoder.waiting)
        downloads = Downloads(self._most_waiting, self._metrics) if self._allow_urls else None
        self._admission = Admission(self._limits, queue, downloads)
        self._trials = Trials(self._lvlm)
        yield
        await asyncio.to_thread(self._admission.close)
        await asyncio.to_thread(self._trials.close)
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
        pending = self._admit(request)
        return JSONResponse(self._served.show(await self._admission.read(pending, ShowRequest.read)))

    def _check_key(self, request: Request) -> None:
        if self._api_key is not None and not is_key(bearer_key(request.headers), self._api_key):
            raise RequestError("wrong or missing API key", 401, code="invalid_api_key")

    async def _settings(self, request: Request) -> Response:
        self._check_key(request)
        limits = {"bytes": self._limits.data, "pixels": self._limits.pixels, "tokens": self._limits.tokens}
        return JSONResponse(page_settings(self._lvlm, limits), headers=UNKEPT)

    async def _report(self, request: Request) -> Response:
        pending = self._admit(request)
        asked = await self._admission.read(pending, lambda body: ReportRequest.read(body).chat())
        jobs: list[Job] = []
        for chat in asked.chats():
            job, answer = await self._begin(pending, chat, trace=True, received=jobs[0].pictures if jobs else None)
            await answer.next()
            jobs.append(job)
        page = await asyncio.to_thread(report_of, jobs, asked.title)
        self._metrics.requests.labels("200").inc()
        return HTMLResponse(page, headers=UNKEPT)

    async def _answer(self, protocol: type[ClientRequest], request: Request) -> Response:
        """Answer a request of any protocol; each is translated to a chat."""
        pending = self._admit(request)
        read = await self._admission.read(pending, functools.partial(_read, protocol))
        if read[1] is None:
            return self._loaded(read[0])
        asked, chat = read
        _, answer = await self._begin(pending, chat)
        first = await answer.next()  # errors are found before a stream begins
        if chat.stream:
            return StreamingResponse(asked.lines(answer.chunks(first)), media_type=asked.streamed)
        return JSONResponse(asked.answer(await answer.whole(first)))

    def _loaded(self, asked: OllamaRequest) -> Response:
        self._served.check(short_name(asked.model))
        self._metrics.requests.labels("200").inc()
        return JSONResponse(asked.loaded())

    def _admit(self, request: Request) -> PendingRequest:
        """Give a request a place.

        Raises:
            RequestError: the request is refused, or too many wait.
        """
        self._check_key(request)
        return self._admission.admit(request)

    async def _begin(
        self, pending: PendingRequest, chat: ChatRequest, *, trace: bool = False, received: Received | None = None
    ) -> tuple[Job, Answering]:
        """Queue a request, and remove the pictures from its messages.

        Args:
            pending: the request.
            chat: its content.
            trace: trace the text.
            received: the pictures of the request, if they are known.

        Raises:
            SiraError: the request is wrong, or it took too long.
        """
        self._served.check(chat.model)
        preset, method, prompt, schema = await self._admission.apart(self._settled, chat)
        if schema is not None:
            await self._trials.wait(pending, schema)
        if received is None:
            received = await self._admission.receive(pending, chat.pictures())
            for message in chat.messages:
                message.forget_pictures()
        pieces: asyncio.Queue[TextPiece | Reply | Exception] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def put(piece: TextPiece | Reply | Exception) -> None:
            pieces.put_nowait(piece)
            if isinstance(piece, Reply) and not trace:  # a client may take its time to read the rest
                received.forget()
                pending.place.hold(0)

        def tell(piece: TextPiece | Reply | Exception) -> None:
            with suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(put, piece)

        job = Job(
            pictures=received,
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
            trace=[] if trace else None,
        )
        self._decoder.submit(job)
        pending.place.give_way()
        pending.request.scope["state"]["exits"].callback(self._decoder.drop, job)
        return job, Answering(pending.request, job, pieces, pending.until, chat, self._served.names[0], self._metrics)

    def _settled(self, chat: ChatRequest) -> tuple[Preset, Method, Prompt, Schema | None]:
        """Return the settings that decide the text of a request, without its pictures.

        Raises:
            SiraError: the request is wrong.
        """
        check_length(chat, self._lvlm.vocabulary, self._longest_prompt)
        preset, method = settings_of(chat, self._lvlm.preset, self._lvlm.method, self._limits.tokens, self._lvlm.layers)
        prompt = prompt_of(chat, preset.prompts)
        self._lvlm.check_prompt(prompt, len(chat.pictures()))
        return preset, method, prompt, schema_of(chat, preset, method, self._limits.schema)

    async def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestError)
        self._metrics.requests.labels(str(error.status)).inc()
        headers = {}
        if error.status == 429 or error.code == "out_of_memory":
            headers["Retry-After"] = str(RETRY_AFTER)
        if error.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if error.status == 408:
            headers["Connection"] = "close"  # more of the body may come for ever
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


def _read(protocol: type[ClientRequest], body: bytes) -> tuple[ClientRequest, ChatRequest] | tuple[OllamaRequest, None]:
    """Return the request in a body, and its chat, if it asks for one."""
    asked = protocol.read(body)
    if isinstance(asked, OllamaRequest) and asked.is_empty():
        return asked, None
    return asked, asked.chat()
