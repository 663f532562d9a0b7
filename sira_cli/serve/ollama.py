"""Ollama's `/api/chat` and `/api/generate`, translated to and from `/v1/chat/completions`.

Many captioners speak only this protocol. Not supported: tools, prompts without the model's template, memory of earlier
answers.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, PrivateAttr

from sira_cli.serve.messages import RoleMessage
from sira_cli.serve.protocol import ChatRequest, Options, RequestError
from sira_cli.serve.served import short_name

# Options with the names and meanings that they have in a chat. Others are about the server's memory, or ignored.
CHAT_OPTIONS = ("temperature", "top_p", "seed", "stop", "top_k", "min_p", "presence_penalty", "frequency_penalty")


# Names of a chat's keys here, and of those of its messages.
OPTION_KEYS = {name: f"options.{name}" for name in CHAT_OPTIONS} | {"repetition_penalty": "options.repeat_penalty"}
RENAMED_KEYS = {
    **OPTION_KEYS,
    "max_tokens": "options.num_predict",
    "max_completion_tokens": "options.num_predict",
    "response_format": "format",
    "image_url": "images",
}
NO_PICTURE = "messages: expected a part of type image_url in a message of the user"  # as `ChatRequest.pictures` says it


class OllamaOptions(Options):
    """Options that decide the text."""

    model_config = ConfigDict(extra="allow")

    num_predict: int | None = None
    repeat_penalty: float | None = None

    def chat(self) -> dict[str, Any]:
        """Return the options as keys of a chat."""
        more = self.__pydantic_extra__ or {}
        return {
            **{name: more.get(name) for name in CHAT_OPTIONS},
            "max_completion_tokens": max(self.num_predict, -1) if self.num_predict else None,
            "repetition_penalty": self.repeat_penalty,
        }


class OllamaMessage(RoleMessage):
    """A message; pictures are base64 without `data:`."""

    content: str = ""
    images: Sequence[str] | None = None

    def chat(self) -> dict[str, Any]:
        """Return it as a message of a chat."""
        pictures = [{"type": "image_url", "image_url": f"data:;base64,{coded}"} for coded in self.images or ()]
        return {"role": self.role, "content": [*pictures, {"type": "text", "text": self.content}]}


class OllamaRequest(Options):
    """The keys of both requests; subclasses add the messages and the form of the answer's text."""

    streamed: ClassVar[str] = "application/x-ndjson"

    model: str
    stream: bool = True
    format: Literal["", "json"] | dict[str, Any] = ""
    options: OllamaOptions = OllamaOptions()
    think: bool | Literal["low", "medium", "high"] | None = None
    tools: list[Any] | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    sira: dict[str, Any] | None = None
    keep_alive: Any = None  # the model stays; `loaded` tells 0 from the rest
    _began: int = PrivateAttr(default_factory=time.monotonic_ns)

    def chat(self) -> ChatRequest:
        """Return the request as a chat, which takes over the pictures."""
        chat = {
            **self.options.chat(),
            "model": short_name(self.model),
            "messages": [message.chat() for message in self.take_messages()],
            "stream": self.stream,
            "stream_options": {"include_usage": True},
            "chat_template_kwargs": {"thinking": None if self.think is None else bool(self.think)},
            "tools": self.tools,
            "response_format": self._format(),
            "logprobs": self.logprobs,
            "top_logprobs": self.top_logprobs,
            "sira": self.sira,
        }
        return ChatRequest.read(chat).chat()

    def is_empty(self) -> bool:
        """Whether nothing is asked, as clients do to load or unload a model."""
        raise NotImplementedError

    def loaded(self) -> dict[str, Any]:
        """Return the answer to an empty request: the model is loaded all the time."""
        unload = re.fullmatch(r"0[0.]*[a-zµ]*", str(self.keep_alive))  # a number of seconds, or "0s"
        return self._said("") | {"done": True, "done_reason": "unload" if unload else "load"}

    def answer(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Convert the answer of a chat to this endpoint's JSON."""
        (choice,) = answer["choices"]
        message = choice["message"]
        said = self._said(message["content"], message.get("reasoning_content"), choice["logprobs"])
        return said | self._end(choice["finish_reason"], answer)

    async def lines(self, chunks: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
        """Yield the chunks of a chat as lines of JSON."""
        async for said in self._streamed(chunks):
            yield json.dumps(said, ensure_ascii=False) + "\n"

    async def _streamed(self, chunks: AsyncIterator[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
        ended: dict[str, Any] = {}
        async for chunk in chunks:
            if "error" in chunk:
                yield {"error": chunk["error"]["message"]}
            elif "usage" in chunk:
                yield self._said("") | self._end(ended["choices"][0]["finish_reason"], ended | chunk)
            else:
                (choice,) = chunk["choices"]
                text, thought = choice["delta"].get("content", ""), choice["delta"].get("reasoning_content")
                if text or thought:
                    yield self._said(text, thought, choice["logprobs"]) | {"done": False}
                ended = chunk

    def take_messages(self) -> Sequence[OllamaMessage]:
        """Return the messages, and forget them."""
        raise NotImplementedError

    def text(self, text: str, thought: dict[str, str]) -> dict[str, Any]:
        """Return the keys of an answer with a text and, if there is one, the thought before it."""
        raise NotImplementedError

    def _format(self) -> dict[str, Any]:
        if isinstance(self.format, str):
            return {"type": "json_object" if self.format else "text"}
        return {"type": "json_schema", "schema": self.format}

    def _said(self, text: str, thought: str | None = None, logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        rows = {} if logprobs is None else {"logprobs": logprobs["content"]}
        return {
            "model": self.model,
            "created_at": now,
            **self.text(text, {"thinking": thought} if thought else {}),
            **rows,
        }

    def _end(self, reason: str, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the keys at the end: times in nanoseconds; `load_duration` is the time without decoding."""
        total, decoding = time.monotonic_ns() - self._began, round(answer["sira"]["decoding_seconds"] * 10**9)
        return {
            "done": True,
            "done_reason": reason,
            "total_duration": total,
            "load_duration": max(total - decoding, 0),
            "prompt_eval_count": answer["usage"]["prompt_tokens"],
            "prompt_eval_duration": 0,  # the prompt's pass is part of `eval_duration`
            "eval_count": answer["usage"]["completion_tokens"],
            "eval_duration": decoding,
            "sira": answer["sira"],
        }


class OllamaChat(OllamaRequest):
    """A request to `/api/chat`."""

    renamed_keys: ClassVar[Mapping[str, str]] = {NO_PICTURE: "messages: expected images of the user", **RENAMED_KEYS}

    messages: Sequence[OllamaMessage] = ()

    def is_empty(self) -> bool:
        """Whether there is no message."""
        return not self.messages

    def take_messages(self) -> Sequence[OllamaMessage]:
        """Return the messages, and forget them."""
        messages, self.messages = self.messages, ()
        return messages

    def text(self, text: str, thought: dict[str, str]) -> dict[str, Any]:
        """Return the key `message`."""
        return {"message": {"role": "assistant", "content": text, **thought}}


class OllamaGenerate(OllamaRequest):
    """A request to `/api/generate`: one turn."""

    renamed_keys: ClassVar[Mapping[str, str]] = {
        NO_PICTURE: "images: expected a picture",
        "messages": "prompt",
        **RENAMED_KEYS,
    }

    prompt: str = ""
    images: Sequence[str] = ()
    system: str = ""
    suffix: str = ""
    template: str = ""
    raw: bool = False
    context: Sequence[int] = ()

    def is_empty(self) -> bool:
        """Whether there is neither a prompt nor a picture."""
        return not self.prompt and not self.images

    def take_messages(self) -> Sequence[OllamaMessage]:
        """Return the system message, if any, and the prompt with its pictures, and forget them."""
        for name in ("suffix", "template", "raw", "context"):
            if getattr(self, name):
                raise RequestError(f"{name}: not supported here; send turns to /api/chat, or leave it out", param=name)
        system = [OllamaMessage(role="system", content=self.system)] if self.system else []
        images, self.images = self.images, ()
        return [*system, OllamaMessage(role="user", content=self.prompt, images=images)]

    def text(self, text: str, thought: dict[str, str]) -> dict[str, Any]:
        """Return the key `response`, and `thinking`."""
        return {"response": text, **thought}
