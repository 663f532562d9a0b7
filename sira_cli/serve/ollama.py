"""Ollama's `/api/chat` and `/api/generate`, translated to and from `/v1/chat/completions`.

Many captioners speak only this protocol. Not supported: tools, prompts without the model's template, memory of earlier
answers.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal

from pydantic import Field, PrivateAttr

from sira_cli.serve.protocol import ChatRequest, Options, RequestError, RoleMessage, for_clients

PATH = "/api/"  # of Ollama's protocol
# Options by their names in a chat. Others are about the server's memory, or ignored.
OPTIONS = {name: name for name in ("temperature", "top_p", "top_k", "min_p", "seed", "stop", "presence_penalty")}
OPTIONS |= {"frequency_penalty": "frequency_penalty", "repetition_penalty": "repeat_penalty"}
OPTIONS |= {"max_tokens": "num_predict"}
NO_PICTURE = "messages: expected a part of type image_url in a message of the user"  # as `ChatRequest.pictures` says it
# The beginnings of a chat's errors, and what they are here.
CHAT_KEYS = {
    NO_PICTURE: "messages: expected images of the user",
    **{name: f"options.{own}" for name, own in OPTIONS.items()},
    "response_format": "format",
    "image_url": "images",
}
GENERATE_KEYS = CHAT_KEYS | {NO_PICTURE: "images: expected a picture", "messages": "prompt"}


class OllamaMessage(RoleMessage):
    """A message; pictures are base64 without `data:`."""

    content: str = ""
    images: Sequence[str] | None = None

    def chat(self) -> dict[str, Any]:
        """Return it as a message of a chat."""
        pictures = [{"type": "image_url", "image_url": f"data:;base64,{coded}"} for coded in self.images or ()]
        return {"role": self.role, "content": [*pictures, {"type": "text", "text": self.content}]}


class OllamaChat(Options):
    """A request to `/api/chat`."""

    streamed: ClassVar[str] = "application/x-ndjson"

    model: str
    messages: Sequence[OllamaMessage] = ()
    stream: bool = True
    format: Literal["", "json"] | dict[str, Any] = ""
    options: dict[str, Any] = Field(default_factory=dict)
    think: bool | Literal["low", "medium", "high"] | None = None
    tools: list[Any] | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    sira: dict[str, Any] | None = None
    keep_alive: Any = None  # the model stays; `loaded` tells 0 from the rest
    _began: int = PrivateAttr(default_factory=time.monotonic_ns)

    def turns(self) -> Sequence[OllamaMessage]:
        """Return the messages; empty where clients only load or unload a model."""
        return self.messages

    def text(self, text: str, thought: dict[str, str]) -> dict[str, Any]:
        """Return the keys of an answer with a text and, if there is one, the thought before it."""
        return {"message": {"role": "assistant", "content": text, **thought}}

    def chat(self) -> ChatRequest:
        """Return the request as a chat."""
        options = {name: self.options.get(own) for name, own in OPTIONS.items()}
        if isinstance(most := options["max_tokens"], int):
            options["max_tokens"] = max(most, -1) or None
        form = {"type": "json_schema", "schema": self.format}
        if isinstance(self.format, str):
            form = {"type": "json_object" if self.format else "text"}
        chat = {
            **options,
            "model": short_name(self.model),
            "messages": [message.chat() for message in self.turns()],
            "stream": self.stream,
            "stream_options": {"include_usage": True},
            "chat_template_kwargs": {"thinking": None if self.think is None else bool(self.think)},
            "tools": self.tools,
            "response_format": form,
            "logprobs": self.logprobs,
            "top_logprobs": self.top_logprobs,
            "sira": self.sira,
        }
        return ChatRequest.read(chat).chat()

    def loaded(self) -> dict[str, Any]:
        """Return the answer to a request without messages: the model is loaded all the time."""
        unload = re.fullmatch(r"0[0.]*[a-zµ]*", str(self.keep_alive))  # a number of seconds, or "0s"
        return self._line("") | {"done": True, "done_reason": "unload" if unload else "load"}

    def answer(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Convert the answer of a chat to this endpoint's JSON."""
        (choice,) = answer["choices"]
        message = choice["message"]
        line = self._line(message["content"], message.get("reasoning_content"), choice["logprobs"])
        return line | self._end(choice["finish_reason"], answer)

    async def lines(self, chunks: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
        """Yield the chunks of a chat as lines of JSON."""
        ended: dict[str, Any] = {}
        async for chunk in chunks:
            if "error" in chunk:
                line = {"error": chunk["error"]["message"]}
            elif "usage" in chunk:
                line = self._line("") | self._end(ended["choices"][0]["finish_reason"], ended | chunk)
            else:
                ended, (choice,) = chunk, chunk["choices"]
                text, thought = choice["delta"].get("content", ""), choice["delta"].get("reasoning_content")
                if not (text or thought):
                    continue
                line = self._line(text, thought, choice["logprobs"]) | {"done": False}
            yield json.dumps(line, ensure_ascii=False) + "\n"

    def _line(self, text: str, thought: str | None = None, logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        line = {"model": self.model, "created_at": now, **self.text(text, {"thinking": thought} if thought else {})}
        return line if logprobs is None else line | {"logprobs": logprobs["content"]}

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


class OllamaGenerate(OllamaChat):
    """A request to `/api/generate`: one turn."""

    prompt: str = ""
    images: Sequence[str] = ()
    system: str = ""
    suffix: str = ""
    template: str = ""
    raw: bool = False
    context: Sequence[int] = ()

    def turns(self) -> Sequence[OllamaMessage]:
        """Return the system message, if any, and the prompt with its pictures."""
        if not self.prompt and not self.images:
            return []
        for name in ("suffix", "template", "raw", "context"):
            if getattr(self, name):
                raise RequestError(f"{name}: not supported here; send turns to /api/chat, or leave it out", param=name)
        system = [OllamaMessage(role="system", content=self.system)] if self.system else []
        return [*system, OllamaMessage(role="user", content=self.prompt, images=self.images)]

    def text(self, text: str, thought: dict[str, str]) -> dict[str, Any]:
        """Return the key `response`, and `thinking`."""
        return {"response": text, **thought}


def error_json(error: RequestError, path: str) -> dict[str, Any]:
    """Return an error in the form that Ollama's clients expect; it names the keys of their request."""
    message, keys = for_clients(str(error)), CHAT_KEYS if path.endswith("chat") else GENERATE_KEYS
    key = next((key for key in keys if re.match(rf"{re.escape(key)}(?!\w)", message)), "")
    return {"error": keys.get(key, "") + message[len(key) :]}


def short_name(name: str) -> str:
    """Return an Ollama name without its default tag."""
    return name.removesuffix(":latest")
