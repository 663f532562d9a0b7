"""Requests to `/v1/chat/completions`: the part of OpenAI's protocol that is about pictures."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from sira_cli.errors import SiraError
from sira_cli.look.verify import Verify
from sira_cli.methods.prompts import Turn
from sira_cli.serve.formats import ResponseFormat
from sira_cli.serve.messages import Message
from sira_cli.serve.reasons import place_of, reason_of

OLLAMA = "/api/"  # where the paths of Ollama's protocol are
MOST_STOPS = 4  # OpenAI's limits
MOST_TOP_LOGPROBS = 20
LONGEST = 1000  # characters of an error message
MOST_ECHOED = 100  # characters of a name in messages
SYSTEM = ("system", "developer")
# Keys of other servers that would change a text, with the values that do not. Empty values count as not given.
REFUSED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("tools", "functions", "logit_bias", "frequency_penalty", "presence_penalty", "audio"), ()),
    **dict.fromkeys(
        ("use_beam_search", "no_repeat_ngram_size", "ignore_eos", "min_tokens", "continue_final_message"), ()
    ),
    **dict.fromkeys(("stop_token_ids", "bad_words", "allowed_token_ids", "logits_processors", "prompt_embeds"), ()),
    **dict.fromkeys(("guided_regex", "guided_choice", "guided_grammar", "truncate_prompt_tokens"), ()),
    **dict.fromkeys(("num_beams", "best_of", "length_penalty"), (1,)),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
}
# In OpenAI's ranges, which are wider than the preset's: -1 is a seed like any other, and 0 leaves the best token only.
# Clients that want no limit send -1 tokens.
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63), AfterValidator(lambda seed: seed % 2**63)]
Tokens = Annotated[int, AfterValidator(lambda tokens: _limit(tokens))]
Share = Annotated[float, Field(ge=0, le=1), AfterValidator(lambda share: share or 1e-9)]


class RequestError(SiraError):
    """A request cannot be answered.

    Attributes:
        status: of HTTP.
        param: the wrong part of the request, if it can be named.
        code: error code for programs.
    """

    def __init__(
        self, message: str, status: int = 400, *, param: str | None = None, code: str = "invalid_value"
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    def to_json(self, path: str = "", keys: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
        """Return the error in the form that a path's clients expect: OpenAI's or Ollama's."""
        message = renamed(for_clients(str(self)), keys)
        if path.startswith(OLLAMA):
            return {"error": message}
        kind = "invalid_request_error" if self.status < 500 and self.status != 429 else "server_error"
        return {
            "error": {
                "message": message,
                "type": kind,
                "param": self.param and renamed(self.param, keys),
                "code": self.code,
            }
        }


def _limit(tokens: int) -> int:
    if tokens < 1 and tokens != -1:
        raise ValueError("expected at least 1, or -1 for as many as this server decodes")
    return sys.maxsize if tokens == -1 else tokens


class Options(BaseModel):
    """A part of a request, where null means a missing key: many clients send all keys."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None or name not in cls.model_fields}

    @classmethod
    def read(cls, given: bytes | Mapping[str, Any]) -> Self:
        """Read a request from its body or from another request."""
        try:
            return cls.model_validate_json(given) if isinstance(given, bytes) else cls.model_validate(given)
        except ValidationError as error:
            # What may be a text or a list says both; the one that looked further in is about what was sent.
            first = max(error.errors(include_url=False, include_input=False), key=lambda each: len(each["loc"]))
            place, reason = place_of(first["loc"]), reason_of(first["msg"])
            message = f"{place}: {reason}" if place else f"the body is no JSON object: {reason}"
            raise RequestError(message, param=place or None) from None


class SiraOptions(Options):
    """The content of `extra_body={"sira": {...}}`: the method, its settings, and scores.

    Every other key is a setting of the method: k, alpha, noise_step, ...
    """

    model_config = ConfigDict(extra="allow")

    method: str | None = None
    task: Literal["caption", "ask"] = "caption"
    words: bool = False
    think: bool | None = None
    verify: Literal["flag", "guide"] | None = None
    min_support: float | None = Field(default=None, ge=0, le=1)

    def settings(self) -> dict[str, Any]:
        """Return the settings of the method."""
        return dict(self.__pydantic_extra__ or {})

    def look(self) -> Verify | None:
        """Return the requested second look."""
        return self.verify and Verify(self.min_support, mode=self.verify)

    def check(self) -> None:
        """Check that second-look keys come with a second look, and that no file is named."""
        if "calibration" in self.settings():
            raise RequestError(
                "sira.calibration: no file is opened for a client; leave it out to use the model's own",
                param="sira.calibration",
            )
        if self.verify is None and self.min_support is not None:
            raise RequestError("sira.min_support: is for a second look; also give verify", param="sira.min_support")
        if self.verify == "guide" and self.task == "ask":
            raise RequestError('sira.verify: "guide" is for captions; take "flag"', param="sira.verify")


class StreamOptions(Options):
    """Options of a stream."""

    include_usage: bool = False


class TemplateOptions(Options):
    """Arguments that other servers pass to the chat template: whether the model reasons before it answers."""

    enable_thinking: bool | None = None
    thinking: bool | None = None


class ChatRequest(Options):
    """A request. Other keys that would change the text are refused in `check`; the rest are ignored."""

    model_config = ConfigDict(extra="allow")
    streamed: ClassVar[str] = "text/event-stream"
    renamed_keys: ClassVar[Mapping[str, str]] = {}

    messages: list[Message] = Field(min_length=1)
    model: str | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: Share | None = None
    top_k: int | None = Field(default=None, ge=-1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    seed: Seed | None = None
    repetition_penalty: float | None = Field(default=None, gt=0)
    stop: str | list[str] | None = None
    response_format: ResponseFormat = ResponseFormat(type="text")
    n: int = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=MOST_TOP_LOGPROBS)
    chat_template_kwargs: TemplateOptions = TemplateOptions()
    sira: SiraOptions = SiraOptions()

    @model_validator(mode="before")
    @classmethod
    def _with_guided_json(cls, given: Any) -> Any:
        """Take the schema that clients of vLLM give, `guided_json` or `structured_outputs: {"json": ...}`."""
        if not isinstance(given, dict) or given.get("response_format"):
            return given
        outputs = given.get("structured_outputs")
        schema = outputs.get("json") if isinstance(outputs, dict) else given.get("guided_json")
        if isinstance(schema, str):
            with suppress(ValueError):
                schema = json.loads(schema)
        if schema is None:
            return given
        return {**given, "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}

    def chat(self) -> Self:
        """Check the request, which is a chat already, and return it."""
        self.check()
        return self

    def answer(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the answer unchanged: it is that of a chat."""
        return answer

    async def lines(self, chunks: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
        """Yield the chunks as server-sent events."""
        async for chunk in chunks:
            yield f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"
        yield "data: [DONE]\n\n"

    def check(self) -> None:
        """Check that all requested features are supported."""
        if self.n != 1:
            raise RequestError("n: one text per request; send the request several times, with other seeds", param="n")
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs: needs logprobs: true", param="top_logprobs")
        if len(self.stops()) > MOST_STOPS or "" in self.stops():
            raise RequestError(f"stop: up to {MOST_STOPS} strings, none empty", param="stop")
        self.sira.check()
        if self.sira.verify not in (None, "flag") and (self.stops() or self.logprobs):
            name = "stop" if self.stops() else "logprobs"
            raise RequestError(
                f'{name}: is about a text as it is decoded, and verify: "{self.sira.verify}" decodes parts again; '
                'leave it out, or take verify: "flag"',
                param=name,
            )
        more = self.__pydantic_extra__ or {}
        for name, neutral in REFUSED.items():
            if more.get(name) and more[name] not in neutral:
                raise RequestError(f"{name}: not supported by this server; leave it out", param=name)
        outputs = more.get("structured_outputs")
        if outputs and not (isinstance(outputs, dict) and {name for name in outputs if outputs[name]} == {"json"}):
            message = 'structured_outputs: only {"json": SCHEMA} is supported by this server; leave out the rest'
            raise RequestError(message, param="structured_outputs")

    def thinks(self) -> bool | None:
        """Return whether the model is to reason; None: the server's default."""
        asked = self.chat_template_kwargs
        given = (self.sira.think, asked.enable_thinking, asked.thinking)
        return next((each for each in given if each is not None), None)

    def stops(self) -> list[str]:
        """Return the strings that end the text."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    def system(self) -> str:
        """Return the system's text; one line per message."""
        return "\n".join(message.texts() for message in self.messages if message.role in SYSTEM)

    def turns(self) -> list[Turn]:
        """Return the turns of user and assistant about pictures."""
        self.pictures()
        said = [message for message in self.messages if message.role not in SYSTEM]
        if said[-1].role != "user":
            raise RequestError("messages: expected the user's as the last one, which is answered", param="messages")
        turns = [
            Turn(
                "assistant" if message.role == "assistant" else "user",
                message.texts(),
                len(message.pictures()),
                message.parts(),
            )
            for message in said
        ]
        if any(turn.role == "user" and not turn.pictures and not turn.text for turn in turns):
            raise RequestError("messages: one of the user has neither text nor picture", param="messages")
        return turns

    def pictures(self) -> list[str]:
        """Return the locations of the pictures, in order."""
        found = [(message.role, message.pictures()) for message in self.messages]
        wrong = ""
        if not any(urls for _, urls in found):
            wrong = "got none. SIRA is about what a picture supports: a request without one has no answer"
        elif others := [role for role, urls in found if urls and role != "user"]:
            wrong = f"got one in a message of role {others[0]}"
        if wrong:
            expected = "messages: expected a part of type image_url in a message of the user"
            raise RequestError(f"{expected}; {wrong}", param="messages")
        return [url for _, urls in found for url in urls]


def for_clients(message: str) -> str:
    """Replace the parameters in a message of the library, `name=`, by keys of a request or options of `sira serve`.

    The middle of a long message is left out.
    """
    message = re.sub(r"`(\w+)=`", lambda found: _key_or_option(found[1]), message)
    message = re.sub(r"[,;:]? (or )?raise PIL\.Image\.MAX_IMAGE_PIXELS in Python", "", message)
    return shortened(message, LONGEST)


def renamed(text: str, keys: Mapping[str, str]) -> str:
    """Rename a key at the start of a text, if it stands there as a whole word."""
    key = next((key for key in keys if re.match(rf"{re.escape(key)}(?!\w)", text)), "")
    return keys.get(key, "") + text[len(key) :]


def shortened(text: str, most: int) -> str:
    """Shorten a text to `most` characters by leaving out its middle: parts of a request may be long."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]} ... {text[-half:]}"


def _key_or_option(name: str) -> str:
    if name == "schema":
        return "response_format"
    if name in SiraOptions.model_fields:
        return f"sira.{name}"
    return name if name in ChatRequest.model_fields else "--" + name.replace("_", "-")
