"""Requests to `/v1/chat/completions`: the part of OpenAI's protocol that is about pictures, and its errors."""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from sira_cli.errors import SettingsError, SiraError
from sira_cli.methods import METHODS
from sira_cli.methods.prompts import Turn
from sira_cli.models.schema import Schema
from sira_cli.parsing import from_json

MOST_STOPS = 256  # programs for role play send dozens; a text is searched for each, token by token
MOST_TOP_LOGPROBS = 20  # OpenAI's limit
LONGEST = 1000  # characters of an error message
LONGEST_SCHEMA = 2**16  # characters
MOST_ECHOED = 100  # characters of a name in messages
SYSTEM = ("system", "developer")
# Keys of other servers that would change a text, with the values that do not. Empty values count as not given.
REFUSED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("tools", "functions", "logit_bias", "frequency_penalty", "presence_penalty", "audio"), ()),
    **dict.fromkeys(("use_beam_search", "no_repeat_ngram_size", "ignore_eos", "min_tokens", "stop_token_ids"), ()),
    **dict.fromkeys(("continue_final_message", "bad_words", "allowed_token_ids", "logits_processors"), ()),
    **dict.fromkeys(("prompt_embeds", "guided_regex", "guided_choice", "guided_grammar", "truncate_prompt_tokens"), ()),
    **dict.fromkeys(("num_beams", "best_of", "length_penalty"), (1,)),
    **dict.fromkeys(("tool_choice", "function_call"), ("none", "auto")),
}
# Messages of pydantic by pattern, replaced one after the other: clients know JSON, but no types of Python.
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
}
_UNKNOWN = "not supported by this server; leave it out"
_DECODED = (
    'is about a text as it is decoded, and verify: "guide" decodes parts again; leave it out, or take verify: "flag"'
)
NO_PICTURE = "messages: expected a part of type image_url in a message of the user"
_JOINED = {"anyOf", "oneOf", "$ref", "if", "patternProperties", "unevaluatedProperties"}


class RequestError(SiraError):
    """A request cannot be answered: HTTP's `status`, the wrong `param` if it can be named, a `code` for programs."""

    def __init__(self, message: str, status: int = 400, *, param: str = "", code: str = "invalid_value") -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    def to_json(self) -> dict[str, Any]:
        """Return the error in the form that OpenAI's clients expect."""
        kind = "invalid_request_error" if self.status < 500 and self.status != 429 else "server_error"
        return {
            "error": {"message": for_clients(str(self)), "type": kind, "param": self.param or None, "code": self.code}
        }


def for_clients(message: str) -> str:
    """Replace the library's parameters in a message, `name=`, by keys of a request or options of `sira serve`."""

    def key_or_option(match: re.Match[str]) -> str:
        name = match[1]
        if name == "schema":
            return "response_format"
        if name in SiraOptions.model_fields or any(name in method.all_settings() for method in METHODS.values()):
            return f"sira.{name}"
        return name if name in ChatRequest.model_fields else "--" + name.replace("_", "-")

    message = re.sub(r"`(\w+)=`", key_or_option, message)
    message = re.sub(r"[,;:]? (or )?raise PIL\.Image\.MAX_IMAGE_PIXELS in Python", "", message)
    return shortened(message, LONGEST)


def shortened(text: str, most: int = MOST_ECHOED) -> str:
    """Leave out the middle of a text that is longer than `most` characters: parts of a request may be long."""
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-(most // 2) :]}"


def _tokens(given: int) -> int:
    if given < 1 and given != -1:
        raise ValueError("expected at least 1, or -1 for as many as this server decodes")
    return sys.maxsize if given == -1 else given


# In OpenAI's ranges, which are wider than the preset's: -1 is a seed like any other, and 0 leaves the best token only.
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63), AfterValidator(lambda seed: seed % 2**63)]
Tokens = Annotated[int, AfterValidator(_tokens)]
Share = Annotated[float, Field(ge=0, le=1), AfterValidator(lambda share: share or 1e-9)]
Stops = Annotated[list[str], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)]


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
            first = error.errors(include_url=False, include_input=False)[0]
            parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
            place = "".join(parts).removeprefix(".")
            reason = first["msg"]
            for pattern, words in _REASONS.items():
                reason = re.sub(pattern, words, reason)
            message = f"{place}: {reason}" if place else f"the body is no JSON object: {reason}"
            raise RequestError(message, param=place) from None


class ImageUrl(BaseModel):
    """The location of a picture; OpenAI's `detail` is ignored."""

    url: str


class ContentPart(Options):
    """A text or a picture of a message."""

    type: Literal["text", "image_url"]
    text: str = ""
    image_url: Annotated[
        ImageUrl | None, BeforeValidator(lambda given: {"url": given} if isinstance(given, str) else given)
    ] = None

    @model_validator(mode="after")
    def _with_url(self) -> Self:
        if self.type == "image_url" and not (self.image_url and self.image_url.url):  # the text would be about another
            raise ValueError("image_url: expected the picture's URL, data:image/...;base64,...")
        return self

    @property
    def url(self) -> str | None:
        """The location of a picture; None for a text."""
        return self.image_url.url if self.type == "image_url" and self.image_url else None


class Message(Options):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        list[ContentPart],
        BeforeValidator(lambda given: [{"type": "text", "text": given}] if isinstance(given, str) else given),
    ] = []  # clients send null for an answer without words

    def texts(self) -> str:
        """Return its text; one line per part."""
        return "\n".join(part.text for part in self.content if part.text and not part.url)

    def turn(self) -> Turn:
        """Return it as a turn of user or assistant."""
        parts = tuple(None if part.url else part.text for part in self.content if part.url or part.text)
        pictures = [part is None for part in parts]
        between = pictures not in (sorted(pictures), sorted(pictures, reverse=True))
        role: Literal["user", "assistant"] = "assistant" if self.role == "assistant" else "user"
        return Turn(role, self.texts(), sum(pictures), parts if between else ())


class SiraOptions(Options):
    """The content of `extra_body={"sira": {...}}`; every other key is a setting of the method: k, noise_step, ..."""

    model_config = ConfigDict(extra="allow")

    method: str | None = None
    task: Literal["caption", "ask"] = "caption"
    words: bool = False
    think: bool | None = None
    verify: Literal["flag", "guide"] | None = None
    min_support: float | None = Field(default=None, ge=0, le=1)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the method."""
        return self.model_extra or {}


class NamedSchema(BaseModel):
    """A schema; its name and `strict` are ignored: every text follows it to the letter."""

    given: dict[str, Any] = Field(alias="schema")


class ResponseFormat(BaseModel):
    """The format of a text, with its schema; for other servers the schema stands next to the type."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_schema_inside(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("schema") is not None:
            return given | {"json_schema": {"schema": given["schema"]}}
        return given

    @model_validator(mode="after")
    def _with_schema(self) -> Self:
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("json_schema: expected an object with the schema")
        return self

    def schema_of_text(self) -> Schema | None:
        """Return the schema that the text must follow; None for plain text."""
        if self.type == "text":
            return None
        given = {"type": "object"} if self.json_schema is None else closed(self.json_schema.given)
        length = len(json.dumps(given))
        if length > LONGEST_SCHEMA:
            raise SettingsError(f"`schema=`: has {length:,} characters; this server takes {LONGEST_SCHEMA:,}")
        return Schema.of(given)


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose objects have only their listed keys, unless it combines schemas.

    Clients send schemas made from classes, which do not mention other keys; open objects might never end.
    """
    schema = copy.deepcopy(schema)
    parts = list(_parts(schema))
    objects = [part for part in parts if "properties" in part]
    if not any("allOf" in part for part in parts) and all(map(_JOINED.isdisjoint, objects)):
        for part in objects:
            part.setdefault("additionalProperties", False)
    return schema


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and those inside it."""
    if not isinstance(schema, dict):
        return
    yield schema
    inside = [schema.get("items")]
    for name in ("properties", "$defs", "definitions", "anyOf", "oneOf", "prefixItems"):
        named = schema.get(name)
        if isinstance(named, dict):
            inside += named.values()
        elif isinstance(named, list):
            inside += named
    for part in inside:
        yield from _parts(part)


class ChatRequest(Options):
    """A request. Other keys that would change the text are refused; the rest are ignored."""

    model_config = ConfigDict(extra="allow")

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
    stop: Stops = []
    response_format: ResponseFormat = ResponseFormat(type="text")
    n: int = 1
    stream: bool = False
    stream_options: dict[str, Any] = {}
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=MOST_TOP_LOGPROBS)
    sira: SiraOptions = SiraOptions()

    @model_validator(mode="before")
    @classmethod
    def _from_clients_of_vllm(cls, given: Any) -> Any:
        """Take the schema of `guided_json` or `structured_outputs`, and whether to reason of `chat_template_kwargs`."""
        if not isinstance(given, dict):
            return given
        template = given.get("chat_template_kwargs")
        sira = given.get("sira") or {}
        if isinstance(template, dict) and isinstance(sira, dict) and sira.get("think") is None:
            think = template.get("enable_thinking")
            if think is None:
                think = template.get("thinking")
            given = given | {"sira": sira | {"think": think}}
        outputs = given.get("structured_outputs")
        schema = outputs.get("json") if isinstance(outputs, dict) else given.get("guided_json")
        if isinstance(schema, str):
            with suppress(ValueError):
                schema = from_json(schema)
        if schema is None or given.get("response_format"):
            return given
        return given | {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}

    @model_validator(mode="after")
    def _supported(self) -> Self:
        """Refuse what this server does not do."""
        sira = self.sira
        more = self.model_extra or {}
        guides = sira.verify == "guide"
        calibrated = "calibration" in sira.settings
        threshold_alone = sira.verify is None and sira.min_support is not None
        outputs = more.get("structured_outputs")
        others = outputs and not (isinstance(outputs, dict) and {name for name in outputs if outputs[name]} == {"json"})
        refusals = [
            ("n", self.n != 1, "one text per request; send the request several times, with other seeds"),
            ("top_logprobs", self.top_logprobs and not self.logprobs, "needs logprobs: true"),
            ("stop", len(self.stop) > MOST_STOPS or "" in self.stop, f"up to {MOST_STOPS} strings, none empty"),
            ("sira.calibration", calibrated, "no file is opened for a client; leave it out to use the model's own"),
            ("sira.min_support", threshold_alone, "is for a second look; also give verify"),
            ("sira.verify", guides and sira.task == "ask", '"guide" is for captions; take "flag"'),
            ("stop", guides and self.stop, _DECODED),
            ("logprobs", guides and self.logprobs, _DECODED),
            *((name, more.get(name) and more[name] not in neutral, _UNKNOWN) for name, neutral in REFUSED.items()),
            ("structured_outputs", others, 'only {"json": SCHEMA} is supported by this server; leave out the rest'),
        ]
        for param, wrong, reason in refusals:
            if wrong:
                raise RequestError(f"{param}: {reason}", param=param)
        return self

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
        urls = []
        for message in self.messages:
            inside = [part.url for part in message.content if part.url]
            if inside and message.role != "user":
                raise RequestError(f"{NO_PICTURE}; got one in a message of role {message.role}", param="messages")
            urls += inside
        if not urls:
            why = "SIRA is about what a picture supports: a request without one has no answer"
            raise RequestError(f"{NO_PICTURE}; got none. {why}", param="messages")
        return urls
