"""Ollama's `/api/chat` and `/api/generate`, translated to chats and back, and the model in both protocols' words.

Many captioners speak only this protocol. Not supported: tools, prompts without the model's template, memory of earlier
answers.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, PrivateAttr

from sira_cli.run.lvlm import Lvlm
from sira_cli.run.records import hash_of
from sira_cli.serve.jobs import Logprob, Piece, Reply
from sira_cli.serve.protocol import NO_PICTURE, ChatRequest, Options, RequestError, for_clients, shortened

PATH = "/api/"  # of Ollama's protocol
VERSION = "0.12.11"  # whose requests are understood: the first with `logprobs`
LEVELS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
# Options by their names in a chat. Others are about the server's memory, or ignored.
OPTIONS = {name: name for name in ("temperature", "top_p", "top_k", "min_p", "seed", "stop", "presence_penalty")}
OPTIONS |= {"frequency_penalty": "frequency_penalty", "repetition_penalty": "repeat_penalty"}
OPTIONS |= {"max_tokens": "num_predict"}
# The beginnings of a chat's errors, and what they are here.
CHAT_KEYS = {
    NO_PICTURE: "messages: expected images of the user",
    **{name: f"options.{own}" for name, own in OPTIONS.items()},
    "response_format": "format",
    "image_url": "images",
}
GENERATE_KEYS = CHAT_KEYS | {NO_PICTURE: "images: expected a picture", "messages": "prompt"}
Think = Annotated[bool, BeforeValidator(lambda given: given in ("low", "medium", "high") or given)]
FORMATS = {"": None, "json": {"type": "object"}}
Format = Annotated[
    dict[str, Any] | None,
    BeforeValidator(lambda given: FORMATS.get(given, given) if isinstance(given, str) else given),
]


class OllamaMessage(Options):
    """A message; pictures are base64 without `data:`."""

    role: str
    content: str = ""
    images: Sequence[str] = ()

    def chat(self) -> dict[str, Any]:
        """Return it as a message of a chat."""
        pictures = [{"type": "image_url", "image_url": f"data:;base64,{coded}"} for coded in self.images]
        return {"role": self.role, "content": [*pictures, {"type": "text", "text": self.content}]}


class OllamaChat(Options):
    """A request to `/api/chat`, and the form of its answers."""

    streamed: ClassVar[str] = "application/x-ndjson"

    model: str
    messages: Sequence[OllamaMessage] = ()
    stream: bool = True
    format: Format = None
    options: dict[str, Any] = Field(default_factory=dict)
    think: Think | None = None
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
        chat: dict[str, Any] = {name: self.options.get(key) for name, key in OPTIONS.items()}
        if isinstance(chat["max_tokens"], int):
            chat["max_tokens"] = max(chat["max_tokens"], -1) or None
        chat |= {
            "model": short_name(self.model),
            "messages": [message.chat() for message in self.turns()],
            "stream": self.stream,
            "tools": self.tools,
            "logprobs": self.logprobs,
            "top_logprobs": self.top_logprobs,
            "sira": self.sira,
            "chat_template_kwargs": {"thinking": self.think},
        }
        if self.format is not None:
            chat["response_format"] = {"type": "json_schema", "schema": self.format}
        return ChatRequest.read(chat)

    def loaded(self) -> dict[str, Any]:
        """Return the answer to a request without messages: the model is loaded all the time."""
        unload = re.fullmatch(r"0[0.]*[a-zµ]*", str(self.keep_alive))  # a number of seconds, or "0s"
        return self._line("") | {"done": True, "done_reason": "unload" if unload else "load"}

    def whole(self, pieces: Sequence[Piece], reply: Reply) -> dict[str, Any]:
        """Return the whole answer."""
        logprobs = [logprob for piece in pieces for logprob in piece.logprobs]
        return self._line(reply.answer.text, reply.answer.reasoning, logprobs) | self._end(reply)

    def lines(self, event: Piece | Reply | RequestError | None) -> Iterator[str]:
        """Yield the lines of a stream about an event; None: its begin."""
        parts: list[dict[str, Any]] = []
        if isinstance(event, RequestError):
            parts.append({"error": for_clients(str(event))})
        elif isinstance(event, Reply):
            parts.append(self._line("") | self._end(event))
        elif event is not None:
            if event.reasoning:
                parts.append(self._line("", event.reasoning) | {"done": False})
            if event.text:
                parts.append(self._line(event.text, None, event.logprobs) | {"done": False})
        for part in parts:
            yield json.dumps(part, ensure_ascii=False) + "\n"

    def _line(self, text: str, thought: str | None = None, logprobs: list[Logprob] | None = None) -> dict[str, Any]:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        line: dict[str, Any] = {"model": self.model, "created_at": now}
        line |= self.text(text, {"thinking": thought} if thought else {})
        if self.logprobs and logprobs is not None:
            line["logprobs"] = logprobs
        return line

    def _end(self, reply: Reply) -> dict[str, Any]:
        """Return the keys at the end: times in nanoseconds; `load_duration` is the time without decoding."""
        total = time.monotonic_ns() - self._began
        decoding = round(reply.sira["decoding_seconds"] * 10**9)
        return {
            "done": True,
            "done_reason": reply.finish_reason,
            "eval_duration": decoding,
            "sira": reply.sira,
            "total_duration": total,
            "load_duration": max(total - decoding, 0),
            "prompt_eval_duration": 0,  # the prompt's pass is part of `eval_duration`
            "prompt_eval_count": reply.answer.prompt_tokens,
            "eval_count": reply.answer.output_tokens,
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
        turns = [OllamaMessage(role="user", content=self.prompt, images=self.images)]
        if self.system:
            turns.insert(0, OllamaMessage(role="system", content=self.system))
        return turns

    def text(self, text: str, thought: dict[str, str]) -> dict[str, Any]:
        """Return the key `response`, and `thinking`."""
        return {"response": text, **thought}


def error_json(error: RequestError, path: str) -> dict[str, Any]:
    """Return an error in the form that Ollama's clients expect; it names the keys of their request."""
    message = for_clients(str(error))
    keys = CHAT_KEYS if path.endswith("chat") else GENERATE_KEYS
    for key, name in keys.items():
        if re.match(rf"{re.escape(key)}(?!\w)", message):
            return {"error": name + message[len(key) :]}
    return {"error": message}


def is_ollama(path: str) -> bool:
    """Return whether a path is of Ollama's protocol."""
    return f"{path}/".startswith(PATH)


def short_name(name: str) -> str:
    """Return an Ollama name without its default tag."""
    return name.removesuffix(":latest")


class ServedModel:
    """The names of a server's model, and its description in the words of OpenAI's and Ollama's protocols.

    Lists show `name`; requests may also call it by the others.
    """

    def __init__(self, lvlm: Lvlm, context: int) -> None:
        model = lvlm.model
        began = datetime.now(UTC)
        modified = began.isoformat().replace("+00:00", "Z")
        family = model.config.model_type
        count = model.num_parameters()
        self.names = [name for name in (lvlm.preset.name, lvlm.preset.model) if name]
        self.name = self.names[0]
        self._created = int(began.timestamp())
        details = {
            "parent_model": "",
            "format": "safetensors",
            "family": family,
            "families": [family],
            "parameter_size": f"{count / 10**9:.1f}B" if count >= 10**9 else f"{count / 10**6:.2f}M",
            "quantization_level": lvlm.quantization or LEVELS[lvlm.dtype],
        }
        size = model.get_memory_footprint()
        digest = hash_of(model=lvlm.preset.model, revision=lvlm.revision, quantization=lvlm.quantization)

        def listed(**more: Any) -> dict[str, Any]:
            name = f"{self.name}:latest"
            common = {"size": size, "digest": digest, "details": details}
            return {"models": [{"name": name, "model": name, **common, **more}]}

        self.tags = listed(modified_at=modified)
        self.running = listed(expires_at="9999-12-31T23:59:59Z", size_vram=size, context_length=context)
        self._shown: dict[str, Any] = {
            "modelfile": "",
            "parameters": "",
            "template": "",
            "details": details,
            "model_info": {
                "general.architecture": family,
                "general.parameter_count": count,
                f"{family}.context_length": context,
            },
            "capabilities": ["completion", "vision"],
            "modified_at": modified,
        }

    def check(self, name: str | None) -> None:
        """Check that a name, if one is given, is the model's."""
        if name is not None and name not in self.names:
            has = " or ".join(map(repr, self.names))
            message = f"model {shortened(name)!r} not found; this server has {has}"
            raise RequestError(message, 404, param="model", code="model_not_found")

    def model(self, name: str) -> dict[str, Any]:
        """Return OpenAI's description of the model under one of its names."""
        self.check(name)
        return {"id": name, "object": "model", "created": self._created, "owned_by": "sira"}

    def show(self, name: str) -> dict[str, Any]:
        """Return Ollama's description of the model."""
        self.check(short_name(name))
        return self._shown
