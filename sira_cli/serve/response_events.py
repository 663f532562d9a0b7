"""The events of `/v1/responses` with `stream`, made from a chat's chunks."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["reasoning", "message"]


@dataclass
class OutputItem:
    """A thought or a message of a response.

    Attributes:
        kind: `reasoning` or `message`.
        number: the response's id, without prefix.
        text: so far.
        logprobs: of its tokens.
        status: `in_progress`, `completed` or `incomplete`.
    """

    kind: Kind
    number: str
    text: str = ""
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    status: str = "in_progress"

    @property
    def id(self) -> str:
        """The item's id."""
        return ("rs_" if self.kind == "reasoning" else "msg_") + self.number

    def part(self) -> dict[str, Any]:
        """Return its only part."""
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs}

    def to_json(self) -> dict[str, Any]:
        """Return the item as JSON in OpenAI's format; its parts are left out until it is complete."""
        parts = [] if self.status == "in_progress" else [self.part()]
        more: dict[str, Any] = {"summary": []} if self.kind == "reasoning" else {"role": "assistant"}
        return {"type": self.kind, "id": self.id, "status": self.status, **more, "content": parts}


class ResponseEvents:
    """Turns the chunks of one chat into events."""

    def __init__(self, respond: Callable[..., dict[str, Any]]) -> None:
        """Begin without events.

        Args:
            respond: `ResponseRequest.respond`.
        """
        self._respond, self._numbers = respond, itertools.count()
        self._begun: dict[str, Any] = {}  # the first chunk
        self._items: list[OutputItem] = []
        self._sira: dict[str, Any] = {}

    async def lines(self, chunks: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
        """Yield the events of all chunks, the last of which has the usage."""
        async for chunk in chunks:
            for event in self._events(chunk):
                name, number = event["type"], next(self._numbers)
                content = json.dumps({**event, "sequence_number": number}, ensure_ascii=False)
                yield f"event: {name}\ndata: {content}\n\n"

    def _events(self, chunk: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if "error" in chunk:
            error = {"code": "server_error", "message": chunk["error"]["message"]}
            yield {"type": "response.failed", "response": self._response("failed", error=error)}
            return
        if not self._begun:
            self._begun = chunk
            for name in ("created", "in_progress"):
                yield {"type": f"response.{name}", "response": self._response("in_progress")}
        for choice in chunk["choices"]:
            logprobs = (choice["logprobs"] or {"content": []})["content"]
            yield from self._grow("reasoning", choice["delta"].get("reasoning_content", ""), [])
            yield from self._grow("message", choice["delta"].get("content", ""), logprobs)
            if choice["finish_reason"] is not None:
                self._sira = chunk["sira"]
                if not self._items or self._items[-1].kind == "reasoning":
                    yield from self._begin("message")
                yield from self._end("incomplete" if choice["finish_reason"] == "length" else "completed")
        if "usage" in chunk:
            status = self._items[-1].status
            response = self._response(status, usage=chunk["usage"], sira=self._sira)
            yield {"type": f"response.{status}", "response": response}

    def _response(self, status: str, **more: Any) -> dict[str, Any]:
        return self._respond(self._begun, status, self._items, **more)

    def _grow(self, kind: Kind, text: str, logprobs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        if not text and not logprobs:
            return
        if not self._items or self._items[-1].kind != kind:
            yield from self._end("completed")
            yield from self._begin(kind)
        item = self._items[-1]
        item.text += text
        item.logprobs += logprobs
        yield self._event("delta", delta=text, **({} if kind == "reasoning" else {"logprobs": logprobs}))

    def _begin(self, kind: Kind) -> Iterator[dict[str, Any]]:
        item = OutputItem(kind, self._begun["id"].removeprefix("chatcmpl-"))
        self._items.append(item)
        yield self._item_event("added")
        yield self._part_event("added")

    def _end(self, status: str) -> Iterator[dict[str, Any]]:
        """End the last item, if there is one."""
        if not self._items:
            return
        item = self._items[-1]
        item.status = status
        part = item.part()
        del part["type"]
        part.pop("annotations", None)
        yield self._event("done", **part)
        yield self._part_event("done")
        yield self._item_event("done")

    def _item_event(self, what: str) -> dict[str, Any]:
        place = {"output_index": len(self._items) - 1}
        return {"type": f"response.output_item.{what}", **place, "item": self._items[-1].to_json()}

    def _part_event(self, what: str) -> dict[str, Any]:
        return {"type": f"response.content_part.{what}", **self._place(), "part": self._items[-1].part()}

    def _event(self, what: str, **content: Any) -> dict[str, Any]:
        return {"type": f"response.{self._items[-1].part()['type']}.{what}", **self._place(), **content}

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._items[-1].id, "output_index": len(self._items) - 1, "content_index": 0}
