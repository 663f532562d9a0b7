"""The answer to one request as OpenAI's clients expect it: whole, or in chunks while the text grows."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect

from sira_cli.errors import PictureError, PictureMemoryError, PrivatePictureError, SettingsError, SiraError
from sira_cli.serve.metrics import Metrics
from sira_cli.serve.protocol import RequestError
from sira_cli.serve.queue import Job, Logprob, Piece, Reply

Event = Piece | Reply | Exception
LEFT = 499  # nginx's status of requests whose client has gone, for the counters
POLLED = 0.2  # seconds between checks that the client is connected

_log = logging.getLogger(__name__)


class Answering:
    """Turns what the decoder tells about one request into OpenAI's objects."""

    def __init__(self, request: Request, events: asyncio.Queue[Event], until: float, metrics: Metrics) -> None:
        """Begin to wait for events, until a time."""
        self._request, self._events, self._until, self._metrics = request, events, until, metrics
        self._began = time.monotonic()

    async def answer(self, job: Job, model: str) -> dict[str, Any]:
        """Return the answer as one object."""
        logprobs: list[Logprob] = []
        try:
            while isinstance(event := await self._next(), Piece):
                logprobs += event.logprobs
        except BaseException:
            job.gone = True
            raise
        self._count(event)
        message = {"role": "assistant", "content": event.answer.text, "refusal": None}
        if event.answer.reasoning is not None:
            message["reasoning_content"] = event.answer.reasoning
        shown = {"message": message, "logprobs": _logprobs(job, logprobs), "finish_reason": finish_reason(event)}
        answer = _common(job, model, "chat.completion")
        return {**answer, "choices": [{"index": 0, **shown}], "usage": _usage(event), "sira": event.sira}

    async def chunks(self, job: Job, model: str) -> AsyncIterator[dict[str, Any]]:
        """Yield the answer in chunks. An error is raised before the first one, and later it is the last one."""
        begun, left = False, True
        common = _common(job, model, "chat.completion.chunk")

        def chunk(delta: dict[str, Any], **more: Any) -> dict[str, Any]:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
            return {**common, "choices": [choice | {name: more.pop(name) for name in choice if name in more}], **more}

        try:
            event = await self._next()
            begun = True
            yield chunk({"role": "assistant", "content": ""}, logprobs=_logprobs(job, []))
            while isinstance(event, Piece):
                if event.reasoning:
                    yield chunk({"reasoning_content": event.reasoning})
                if event.text or event.logprobs:
                    yield chunk({"content": event.text}, logprobs=_logprobs(job, event.logprobs))
                event = await self._next(begun=True)
            yield chunk({}, finish_reason=finish_reason(event), sira=event.sira)
            if job.chat.stream_options.include_usage:
                yield {**common, "choices": [], "usage": _usage(event)}
            left = False
            self._count(event)
        except RequestError as error:
            if not begun:
                raise
            left, job.gone = False, True
            self._metrics.requests.labels(str(error.status)).inc()
            yield error.to_json()
        finally:
            if left:
                job.gone = True
                if begun:
                    self._metrics.requests.labels(str(LEFT)).inc()

    async def _next(self, *, begun: bool = False) -> Piece | Reply:
        """Wait for the next event. A stream that has begun is ended by the framework if nobody reads."""
        while True:
            left = self._until - time.monotonic()
            if left <= 0:
                raise RequestError("the answer took too long", 504, code="timeout")
            if not begun and await self._request.is_disconnected():
                raise RequestError("the client has gone", LEFT, code="gone")
            with suppress(TimeoutError):
                event = await asyncio.wait_for(self._events.get(), min(POLLED, left))
                break
        if isinstance(event, Exception):
            raise as_request_error(event)
        return event

    def _count(self, reply: Reply) -> None:
        self._metrics.tokens.inc(reply.answer.output_tokens)
        self._metrics.requests.labels("200").inc()
        self._metrics.seconds.observe(time.monotonic() - self._began)


def _common(job: Job, model: str, kind: str) -> dict[str, Any]:
    created = int(time.time())
    return {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": kind, "created": created, "model": job.chat.model or model}


def _logprobs(job: Job, found: list[Logprob]) -> dict[str, Any] | None:
    return {"content": found, "refusal": None} if job.chat.logprobs else None


def finish_reason(reply: Reply) -> str:
    """Return the finish reason of a text in OpenAI's words, of which only `length` says that a text is not complete."""
    return "length" if reply.answer.finish_reason in ("length", "cut") else "stop"


def _usage(reply: Reply) -> dict[str, Any]:
    prompt, new = reply.answer.prompt_tokens, reply.answer.output_tokens
    details = {"reasoning_tokens": reply.answer.reasoning_tokens}
    counts = {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}
    return {**counts, "completion_tokens_details": details}


def as_request_error(error: Exception) -> RequestError:
    """Return the error for the client; an unexpected one without details."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, MemoryError | PictureMemoryError):
        message = "not enough memory now: try again later, or send a smaller picture"
        return RequestError(message, 503, code="out_of_memory")
    if isinstance(error, PrivatePictureError):  # where a name of this network leads is not told
        return RequestError(error.public)
    if isinstance(error, PictureError | SettingsError):
        return RequestError(str(error))
    if isinstance(error, SiraError):
        return RequestError(str(error), 422, code="unprocessable")
    if isinstance(error, ClientDisconnect):
        return RequestError("the client has gone", LEFT, code="gone")
    _log.error("a request failed: %s", type(error).__name__, exc_info=error)
    return RequestError("the server failed; its log says why", 500, code="internal_error")
