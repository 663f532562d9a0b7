"""Requests to `/v1/chat/completions`: the part of OpenAI's protocol that is about pictures."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from sira_cli.errors import SiraError
from sira_cli.look.verify import Verify
from sira_cli.methods import METHODS
from sira_cli.methods.prompts import Turn
from sira_cli.serve.formats import ResponseFormat

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
    **dict.fromkeys(("tool_choice", "function_call"), ("none", "auto")),
}
# Reasons of pydantic, one pattern after the other, and what clients that know JSON but not its types are told.
_REASONS = {
    r"^Value error, ": "",
    r"^Input should be a valid boolean.*": "expected true or false",
    r"^Input should be a valid (\w+), .*": r"Input should be a valid \1",
    r"^Input should be (greater than or equal to|at least) ": "expected at least ",
    r"^Input should be (less than or equal to|at most) ": "expected at most ",
    r"^Input should be greater than ": "expected more than ",
    r"^Input should be ": "expected ",
    r"^expected a valid (?=[aeiou])": "expected an ",
    r"^expected a valid ": "expected a ",
    r"^Field required$": "is missing",
    r"^List should have at least (\d+) item.*": r"expected at least \1",
    r"^List should have at most (\d+) item.*": r"expected at most \1",
}
_TYPE = re.compile(r"[A-Z]\w*|str|bool|int|float|dict|.*[\[(].*")  # in a place: a type among several, no key


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

    def to_json(self) -> dict[str, Any]:
        """Return the error in the form that OpenAI's clients expect."""
        kind = "invalid_request_error" if self.status < 500 and self.status != 429 else "server_error"
        return {"error": {"message": for_clients(str(self)), "type": kind, "param": self.param, "code": self.code}}


def for_clients(message: str) -> str:
    """Replace the parameters in a message of the library, `name=`, by keys of a request or options of `sira serve`.

    The middle of a long message is left out.
    """
    message = re.sub(r"`(\w+)=`", lambda found: _key_or_option(found[1]), message)
    message = re.sub(r"[,;:]? (or )?raise PIL\.Image\.MAX_IMAGE_PIXELS in Python", "", message)
    return shortened(message, LONGEST)


def _key_or_option(name: str) -> str:
    if name == "schema":
        return "response_format"
    if name in SiraOptions.model_fields or any(name in method.all_settings() for method in METHODS.values()):
        return f"sira.{name}"
    return name if name in ChatRequest.model_fields else "--" + name.replace("_", "-")


def shortened(text: str, most: int) -> str:
    """Shorten a text to `most` characters by leaving out its middle: parts of a request may be long."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]} ... {text[-half:]}"


def place_of(parts: Sequence[int | str]) -> str:
    """Return a place in a request in JSON's notation: `messages[0].content[1].image_url`."""
    shown = (f"[{part}]" if isinstance(part, int) else "" if _TYPE.fullmatch(part) else f".{part}" for part in parts)
    return "".join(shown).removeprefix(".")


def _tokens(given: int) -> int:
    if given < 1 and given != -1:
        raise ValueError("expected at least 1, or -1 for as many as this server decodes")
    return sys.maxsize if given == -1 else given


# In OpenAI's ranges, which are wider than the preset's: -1 is a seed like any other, and 0 leaves the best token only.
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63), AfterValidator(lambda seed: seed % 2**63)]
Tokens = Annotated[int, AfterValidator(_tokens)]
Share = Annotated[float, Field(ge=0, le=1), AfterValidator(lambda share: share or 1e-9)]


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
            place, reason = place_of(first["loc"]), first["msg"]
            for pattern, words in _REASONS.items():
                reason = re.sub(pattern, words, reason)
            message = f"{place}: {reason}" if place else f"the body is no JSON object: {reason}"
            raise RequestError(message, param=place or None) from None


class ImageUrl(BaseModel):
    """The location of a picture; OpenAI's `detail` is ignored."""

    url: str


class ContentPart(BaseModel):
    """A piece of a message."""

    type: Literal["text", "image_url"]
    text: str | None = None
    image_url: ImageUrl | str | None = None

    @model_validator(mode="after")
    def _with_url(self) -> Self:
        if self.type == "image_url" and not self.url:  # without it, the text would be about another picture
            raise ValueError("image_url: expected the picture's URL, data:image/...;base64,...")
        return self

    @property
    def url(self) -> str:
        """The location of its picture."""
        return self.image_url.url if isinstance(self.image_url, ImageUrl) else self.image_url or ""


class RoleMessage(BaseModel):
    """The role of a message; subclasses hold its content."""

    role: Literal["system", "developer", "user", "assistant"]

    @model_validator(mode="before")
    @classmethod
    def _without_words(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("role") == "assistant" and given.get("content") is None:
            return given | {"content": ""}  # clients send null for an answer without words
        return given


class Message(RoleMessage):
    """A message of a chat."""

    content: str | list[ContentPart]

    def parts(self) -> list[ContentPart]:
        """Return its texts and pictures."""
        parts = [ContentPart(type="text", text=self.content)] if isinstance(self.content, str) else self.content
        return [part for part in parts if part.type == "image_url" or part.text]

    def texts(self) -> str:
        """Return its text; one line per part."""
        return "\n".join(part.text or "" for part in self.parts() if part.type == "text")

    def pictures(self) -> list[str]:
        """Return the locations of its pictures."""
        return [part.url for part in self.parts() if part.type == "image_url"]

    def turn(self) -> Turn:
        """Return it as a turn of user or assistant."""
        parts = tuple(part.text if part.type == "text" else None for part in self.parts())
        seen = [number for number, part in enumerate(parts) if part is None]
        at_one_end = seen in ([*range(len(seen))], [*range(len(parts) - len(seen), len(parts))])
        role: Literal["user", "assistant"] = "assistant" if self.role == "assistant" else "user"
        return Turn(role, self.texts(), len(seen), () if at_one_end else parts)


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


class StreamOptions(Options):
    """Options of a stream."""

    include_usage: bool = False


class TemplateOptions(Options):
    """Arguments that other servers pass to the chat template: whether the model reasons before it answers."""

    enable_thinking: bool | None = None
    thinking: bool | None = None


class ChatRequest(Options):
    """A request. Other keys that would change the text are refused in `chat`; the rest are ignored."""

    model_config = ConfigDict(extra="allow")
    streamed: ClassVar[str] = "text/event-stream"

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
    stream_options: StreamOptions = StreamOptions()
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
        """Check that all requested features are supported, and return the request, which is a chat already."""
        for param, reason in self._refusals():
            raise RequestError(f"{param}: {reason}", param=param)
        return self

    def answer(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the answer unchanged: it is that of a chat."""
        return answer

    async def lines(self, chunks: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
        """Yield the chunks as server-sent events."""
        async for chunk in chunks:
            yield f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"
        yield "data: [DONE]\n\n"

    def _refusals(self) -> Iterator[tuple[str, str]]:
        """Yield the keys that are not supported, each with the reason."""
        sira, more = self.sira, self.__pydantic_extra__ or {}
        if self.n != 1:
            yield "n", "one text per request; send the request several times, with other seeds"
        if self.top_logprobs and not self.logprobs:
            yield "top_logprobs", "needs logprobs: true"
        if len(self.stops()) > MOST_STOPS or "" in self.stops():
            yield "stop", f"up to {MOST_STOPS} strings, none empty"
        if "calibration" in sira.settings():
            yield "sira.calibration", "no file is opened for a client; leave it out to use the model's own"
        if sira.verify is None and sira.min_support is not None:
            yield "sira.min_support", "is for a second look; also give verify"
        if sira.verify == "guide":
            if sira.task == "ask":
                yield "sira.verify", '"guide" is for captions; take "flag"'
            reason = 'is about a text as it is decoded, and verify: "guide" decodes parts again; '
            for name in ("stop", "logprobs"):
                if getattr(self, name):
                    yield name, reason + 'leave it out, or take verify: "flag"'
        for name, neutral in REFUSED.items():
            if more.get(name) and more[name] not in neutral:
                yield name, "not supported by this server; leave it out"
        outputs = more.get("structured_outputs")
        if outputs and not (isinstance(outputs, dict) and {name for name in outputs if outputs[name]} == {"json"}):
            yield "structured_outputs", 'only {"json": SCHEMA} is supported by this server; leave out the rest'

    def thinks(self) -> bool | None:
        """Return whether the model is to reason; None: the server's default."""
        given = (self.sira.think, self.chat_template_kwargs.enable_thinking, self.chat_template_kwargs.thinking)
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
        turns = [message.turn() for message in self.messages if message.role not in SYSTEM]
        if turns[-1].role != "user":
            raise RequestError("messages: expected the user's as the last one, which is answered", param="messages")
        if any(turn.role == "user" and not turn.pictures and not turn.text for turn in turns):
            raise RequestError("messages: one of the user has neither text nor picture", param="messages")
        return turns

    def pictures(self) -> list[str]:
        """Return the locations of the pictures, in order."""
        found = [(message.role, url) for message in self.messages for url in message.pictures()]
        others = [role for role, _ in found if role != "user"]
        if not found or others:
            none = "got none. SIRA is about what a picture supports: a request without one has no answer"
            wrong = f"got one in a message of role {others[0]}" if found else none
            expected = "messages: expected a part of type image_url in a message of the user"
            raise RequestError(f"{expected}; {wrong}", param="messages")
        return [url for _, url in found]
