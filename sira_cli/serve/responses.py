"""OpenAI's newer protocol, `/v1/responses`, translated to and from `/v1/chat/completions`.

Some clients use only this one (PhotoPrism). Only whole answers: no events, no tools, no memory of earlier responses.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from sira_cli.serve.messages import ImageUrl, RoleMessage
from sira_cli.serve.protocol import ChatRequest, Options, RequestError

LOGPROBS = "message.output_text.logprobs"  # in `include`


class InputPart(BaseModel):
    """A piece of a message; one of the assistant has `output_text`, as it was answered."""

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

    input: str | list[InputMessage | OtherItem]
    instructions: str | None = None
    max_output_tokens: int | None = None
    text: TextFormat | None = None
    include: tuple[str, ...] = ()
    previous_response_id: str | None = None
    stream: bool = False
    background: bool = False

    def chat(self) -> ChatRequest:
        """Return the request as a chat.

        Raises:
            RequestError: this server cannot answer it as asked.
        """
        missing = {
            "stream": "/v1/chat/completions has streams",
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
        return ChatRequest.parse(
            {
                **(self.__pydantic_extra__ or {}),
                "messages": [*first, *(message.chat() for message in said)],
                "max_completion_tokens": self.max_output_tokens,
                "response_format": None if self.text is None else self.text.format,
                "logprobs": LOGPROBS in self.include,
            }
        )

    def response(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of a chat as the answer to this request.

        Args:
            answer: from `Answering.whole`.
        """
        (choice,) = answer["choices"]
        number, usage = answer["id"].removeprefix("chatcmpl-"), answer["usage"]
        cut = choice["finish_reason"] == "length"
        status = "incomplete" if cut else "completed"
        logprobs = [] if choice["logprobs"] is None else choice["logprobs"]["content"]
        text = {"type": "output_text", "text": choice["message"]["content"], "annotations": [], "logprobs": logprobs}
        more = self.__pydantic_extra__ or {}
        message = {"type": "message", "id": f"msg_{number}", "status": status, "role": "assistant", "content": [text]}
        return {
            "id": f"resp_{number}",
            "object": "response",
            "created_at": answer["created"],
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "model": answer["model"],
            "output": [*_thoughts(number, choice["message"].get("reasoning_content"), status), message],
            "parallel_tool_calls": False,
            "tool_choice": "none",
            "tools": [],
            "temperature": more.get("temperature"),
            "top_p": more.get("top_p"),
            "text": {"format": {"type": "text"}},
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": usage["completion_tokens_details"],
                "total_tokens": usage["total_tokens"],
            },
            "sira": answer["sira"],
        }


def _thoughts(number: str, reasoning: str | None, status: str) -> list[dict[str, Any]]:
    """Return the item with the model's reasoning; empty without reasoning."""
    if not reasoning:
        return []
    content = [{"type": "reasoning_text", "text": reasoning}]
    return [{"type": "reasoning", "id": f"rs_{number}", "summary": [], "content": content, "status": status}]
