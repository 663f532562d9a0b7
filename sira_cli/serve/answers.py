"""The answer to one request as OpenAI's clients expect it: whole, or in chunks while the text grows."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect

from sira_cli.errors import PictureError, PictureMemoryError, PrivatePictureError, SettingsError, SiraError
from sira_cli.serve.jobs import Job, Logprob, Reply, TextPiece
from sira_cli.serve.metrics import Metrics
from sira_cli.serve.protocol import ChatRequest, RequestError

Piece = TextPiece | Reply | Exception
LEFT = "499"  # nginx's status of requests whose client has gone, for the counters
POLLED = 0.2  # seconds between checks that the client is connected

_log = logging.getLogger(__name__)


class Answering:
    """Turns the decoder's pieces for one request into OpenAI's objects."""

    def __init__(
        self,
        request: Request,
        job: Job,
        pieces: asyncio.Queue[Piece],
        until: float,
        chat: ChatRequest,
        model: str,
        metrics: Metrics,
    ) -> None:
        """Begin to wait."""
        self._request, self._job, self._pieces, self._until = request, job, pieces, until
        self._chat, self._metrics, self._began = chat, metrics, time.monotonic()
        self._looked, self._streaming = self._began, False
        self._common = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": chat.model or model,
        }

    async def next(self) -> TextPiece | Reply:
        """Wait for the next piece."""
        try:
            while True:
                left = self._until - time.monotonic()
                if left <= 0:
                    raise RequestError("the answer took too long", 504, code="timeout")
                # Pieces may come faster than that. A stream that has begun is ended by the framework if nobody reads.
                if not self._streaming and time.monotonic() - self._looked > POLLED:
                    self._looked = time.monotonic()
                    if await self._request.is_disconnected():
                        raise RequestError("the client has gone", 499, code="gone")
                with suppress(TimeoutError):
                    piece = await asyncio.wait_for(self._pieces.get(), min(POLLED, left))
                    break
        except BaseException:
            self.leave()
            raise
        if isinstance(piece, Exception):
            raise piece if isinstance(piece, RequestError) else as_request_error(piece)
        return piece

    def leave(self) -> None:
        """End the text, as nobody waits for it any more."""
        self._job.gone = True

    async def whole(self, piece: TextPiece | Reply) -> dict[str, Any]:
        """Return the answer as one object, from its first piece on."""
        logprobs: list[Logprob] = []
        while isinstance(piece, TextPiece):
            logprobs += piece.logprobs
            piece = await self.next()
        logprobs += piece.rest.logprobs
        self._count(piece)
        message = {"role": "assistant", "content": piece.answer.text, "refusal": None}
        if piece.answer.reasoning is not None:
            message["reasoning_content"] = piece.answer.reasoning
        choice = {
            "index": 0,
            "message": message,
            "logprobs": self._logprobs(logprobs),
            "finish_reason": _finish_reason(piece),
        }
        return {
            **self._common,
            "object": "chat.completion",
            "choices": [choice],
            "usage": _usage(piece),
            "sira": piece.sira,
        }

    async def chunks(self, piece: TextPiece | Reply) -> AsyncIterator[dict[str, Any]]:
        """Yield the answer in chunks, from its first piece on; an error is the last one."""
        self._streaming = left = True
        try:
            yield self._chunk({"role": "assistant", "content": ""})
            while isinstance(piece, TextPiece):
                for chunk in self._chunks(piece):
                    yield chunk
                piece = await self.next()
            for chunk in self._chunks(piece.rest):
                yield chunk
            yield self._chunk({}, finish_reason=_finish_reason(piece), sira=piece.sira)
            if self._chat.stream_options is not None and self._chat.stream_options.include_usage:
                yield {**self._common, "object": "chat.completion.chunk", "choices": [], "usage": _usage(piece)}
            left = False
            self._count(piece)
        except RequestError as error:
            left = False
            self._metrics.requests.labels(str(error.status)).inc()
            yield error.to_json()
        finally:
            self.leave()
            if left:
                self._metrics.requests.labels(LEFT).inc()

    def _chunks(self, piece: TextPiece) -> Iterator[dict[str, Any]]:
        if piece.reasoning:
            yield self._chunk({"reasoning_content": piece.reasoning})
        if piece.text or piece.logprobs:
            yield self._chunk({"content": piece.text}, piece.logprobs)

    def _chunk(
        self,
        delta: dict[str, Any],
        logprobs: list[Logprob] | None = None,
        finish_reason: str | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        choice = {
            "index": 0,
            "delta": delta,
            "logprobs": self._logprobs(logprobs or []) if "content" in delta else None,
            "finish_reason": finish_reason,
        }
        return {**self._common, "object": "chat.completion.chunk", "choices": [choice], **more}

    def _logprobs(self, found: list[Logprob]) -> dict[str, Any] | None:
        return {"content": found, "refusal": None} if self._chat.logprobs else None

    def _count(self, reply: Reply) -> None:
        self._metrics.tokens.inc(reply.answer.output_tokens)
        self._metrics.requests.labels("200").inc()
        self._metrics.seconds.observe(time.monotonic() - self._began)


def _finish_reason(reply: Reply) -> str:
    """Return the finish reason of a text in OpenAI's words, of which only `length` says that a text is not complete."""
    return "length" if reply.answer.finish_reason in ("length", "cut") else "stop"


def _usage(reply: Reply) -> dict[str, Any]:
    prompt, new = reply.answer.prompt_tokens, reply.answer.output_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": new,
        "total_tokens": prompt + new,
        "completion_tokens_details": {"reasoning_tokens": reply.answer.reasoning_tokens},
    }


def as_request_error(error: Exception) -> RequestError:
    """Return the error for the client; an unexpected one without details."""
    if isinstance(error, MemoryError | PictureMemoryError):
        message = "not enough memory now: try again later, or send a smaller picture"
        return RequestError(message, 503, code="out_of_memory")
    if isinstance(
        error, PrivatePictureError
    ):  # clients may ask for names of this network: where these lead is not told
        return RequestError(error.public)
    if isinstance(error, PictureError | SettingsError):
        return RequestError(str(error))
    if isinstance(error, SiraError):
        return RequestError(str(error), 422, code="unprocessable")
    if isinstance(error, ClientDisconnect):
        return RequestError("the client has gone", 499, code="gone")
    _log.error("a request failed: %s", type(error).__name__, exc_info=error)
    return RequestError("the server failed; its log says why", 500, code="internal_error")
