"""OpenAI's newer protocol, `/v1/responses`, translated to and from `/v1/chat/completions`.

Some clients use only this protocol (PhotoPrism). Not supported: tools, memory of earlier responses.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from sira_cli.serve.messages import ImageUrl, RoleMessage
from sira_cli.serve.protocol import ChatRequest, Options, RequestError
from sira_cli.serve.response_events import OutputItem, ResponseEvents

NO_PICTURE = "messages: expected a part of type image_url"  # begins a message of `ChatRequest.pictures`
LOGPROBS = "message.output_text.logprobs"  # in `include`


class InputPart(BaseModel):
    """A piece of a message; `output_text` is an earlier answer of the assistant."""

    type: Literal["input_text", "output_text", "input_image"]
    text: str | None = None
    image_url: ImageUrl | str | None = None

    def chat(self) -> dict[str, Any]:
        """Return it as a part of a chat's message."""
        if self.type != "input_image":
            return {"type": "text", "text": self.text or ""}
        return {"type": "image_url", "image_url": self.image_url}


class InputMessage(RoleMessage):
    """A message."""

    type: Literal["message"] = "message"
    content: str | list[InputPart]

    def chat(self) -> dict[str, Any]:
        """Return it as a message of a chat."""
        content = self.content if isinstance(self.content, str) else [part.chat() for part in self.content]
        return {"role": self.role, "content": content}


class OtherItem(BaseModel):
    """Items of earlier responses other than messages: thoughts, which change no text, and references."""

    type: Literal["reasoning", "item_reference"]


class TextFormat(BaseModel):
    """Format of the text."""

    format: dict[str, Any] | None = None


class ResponseRequest(Options):
    """A request. Other keys are those of `ChatRequest`."""

    model_config = ConfigDict(extra="allow")
    streamed: ClassVar[str] = ChatRequest.streamed
    renamed_keys: ClassVar[Mapping[str, str]] = {
        NO_PICTURE: "input: expected a part of type input_image",
        "messages": "input",
        "max_tokens": "max_output_tokens",
        "max_completion_tokens": "max_output_tokens",
        "response_format: json_schema": "text.format.schema",
        "response_format": "text.format",
    }

    input: str | list[InputMessage | OtherItem]
    instructions: str | None = None
    max_output_tokens: int | None = None
    text: TextFormat | None = None
    include: tuple[str, ...] = ()
    previous_response_id: str | None = None
    stream: bool = False
    background: bool = False

    def chat(self) -> ChatRequest:
        """Return the request as a chat, which takes over the pictures.

        Raises:
            RequestError: this server cannot answer it as asked.
        """
        missing = {
            "background": "wait for the answer",
            "previous_response_id": "send the whole conversation",
        }
        for name, way_out in missing.items():
            if getattr(self, name):
                raise RequestError(f"{name}: not supported here; {way_out}", param=name)
        items = [InputMessage(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        if any(item.type == "item_reference" for item in items):
            raise RequestError(
                "input: nothing is kept here that an item_reference could name; send the message itself", param="input"
            )
        said = [item for item in items if isinstance(item, InputMessage)]
        first = [] if self.instructions is None else [{"role": "system", "content": self.instructions}]
        chat = {
            **(self.__pydantic_extra__ or {}),
            "messages": [*first, *(message.chat() for message in said)],
            "max_completion_tokens": self.max_output_tokens,
            "response_format": None if self.text is None else self.text.format,
            "logprobs": LOGPROBS in self.include,
            "stream": self.stream,
            "stream_options": {"include_usage": True},
        }
        self.input = []
        return ChatRequest.read(chat).chat()

    def answer(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Convert the answer of a chat to this endpoint's JSON."""
        (choice,) = answer["choices"]
        number, thought = answer["id"].removeprefix("chatcmpl-"), choice["message"].get("reasoning_content")
        status = "incomplete" if choice["finish_reason"] == "length" else "completed"
        text, logprobs = choice["message"]["content"], (choice["logprobs"] or {"content": []})["content"]
        items = [OutputItem("message", number, text, logprobs, status)]
        if thought:
            items.insert(0, OutputItem("reasoning", number, thought, status="completed" if text else status))
        return self.respond(answer, status, items, usage=answer["usage"], sira=answer["sira"])

    def lines(self, chunks: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
        """Return the chunks of a chat as events of a response."""
        return ResponseEvents(self.respond).lines(chunks)

    def respond(
        self,
        answer: dict[str, Any],
        status: str,
        items: Sequence[OutputItem],
        *,
        usage: dict[str, Any] | None = None,
        sira: dict[str, Any] | None = None,
        error: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the current response.

        Args:
            answer: of the chat, or a part of it: its id, time and model are used.
            status: `in_progress`, `completed`, `incomplete` or `failed`.
            items: thoughts and messages.
            usage: the chat's, at the end.
            sira: SIRA's own part of the answer, at the end.
            error: why it failed.
        """
        more = self.__pydantic_extra__ or {}
        return {
            "id": answer["id"].replace("chatcmpl-", "resp_"),
            "object": "response",
            "created_at": answer["created"],
            "status": status,
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "model": answer["model"],
            "output": [item.to_json() for item in items],
            "parallel_tool_calls": False,
            "tool_choice": "none",
            "tools": [],
            "temperature": more.get("temperature"),
            "top_p": more.get("top_p"),
            "text": {"format": (self.text and self.text.format) or {"type": "text"}},
            "usage": usage and _usage(usage),
            "sira": sira,
        }


def _usage(chat: dict[str, Any]) -> dict[str, Any]:
    return {
        "input_tokens": chat["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": chat["completion_tokens"],
        "output_tokens_details": chat["completion_tokens_details"],
        "total_tokens": chat["total_tokens"],
    }
