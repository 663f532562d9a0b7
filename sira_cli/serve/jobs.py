"""What a request stands for: preset and method with its changes, prompt, schema, pictures; and its text as it grows."""

from __future__ import annotations

import base64
import difflib
import hashlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

from PIL.Image import Image

from sira_cli.errors import HugePictureError, SettingsError
from sira_cli.look.claims import Verify
from sira_cli.methods import find, require
from sira_cli.methods.base import Ability, Method
from sira_cli.methods.prompts import Conversation, Prompt
from sira_cli.models.model import LoadedModel
from sira_cli.models.preset import Preset
from sira_cli.models.reasoning import Parsed
from sira_cli.models.texts import Answer
from sira_cli.models.vocabulary import Vocabulary
from sira_cli.pictures.apart import Decoder, TooManyPixelsError
from sira_cli.pictures.picture import digest_of
from sira_cli.pictures.web import WebSource, is_web
from sira_cli.run.lvlm import Lvlm
from sira_cli.run.records import Result
from sira_cli.run.task import TASKS, PictureTask
from sira_cli.serve import Limits
from sira_cli.serve.protocol import SYSTEM, ChatRequest, RequestError, SiraOptions, shortened

_URL_SAFE = str.maketrans("-_", "+/")  # the other alphabet of RFC 4648
_COUNTED = 8192  # characters of a text that are tokenized at once: the decoder also needs the tokenizer
# Fields of the record that a reply shows with the text.
SHOWN = (
    *("method", "k", "layers", "alpha", "method_settings", "seed"),
    *("finish_reason", "image_tokens", "warnings", "words", "objects", "verify", "draft", "removed"),
    *("candidates", "added", "forbidden"),
)
Logprob = dict[str, Any]  # token, logprob, bytes; top_logprobs


def settings_of(chat: ChatRequest, lvlm: Lvlm, limits: Limits) -> tuple[Preset, Method]:
    """Return preset and method with a request's changes."""
    preset = lvlm.preset
    given = chat.sira.settings
    key = "method"
    try:
        method = preset.method(find(chat.sira.method or lvlm.method).name)
        for key, value in given.items():  # each alone: an error of all together has no single key
            known = method.all_settings()
            near = difflib.get_close_matches(key, [*SiraOptions.model_fields, *known], n=1)
            if key not in known and near:
                raise SettingsError(f"sira.{key}: no such key; did you mean `{near[0]}`?")
            own = method.owns(key) or key not in known  # the method says which settings there are
            tried: Method | Preset = (method if own else preset).with_values(**{key: value})
            if key in ("k", "k_fraction") and isinstance(tried, Preset):
                tried.sira_config.layers_after_fork(lvlm.layers)
    except SettingsError as error:
        raise RequestError(str(error), param=shortened(f"sira.{key}")) from error
    tokens = chat.max_completion_tokens or chat.max_tokens
    system = [message.texts() for message in chat.messages if message.role in SYSTEM]
    of_method = {name: value for name, value in given.items() if method.owns(name)}
    of_preset = {name: value for name, value in given.items() if not method.owns(name)}
    changed = preset.with_settings(
        temperature=chat.temperature,
        top_p=chat.top_p,
        min_p=chat.min_p,
        seed=chat.seed,
        repetition_penalty=chat.repetition_penalty,
        max_new_tokens=tokens and min(tokens, limits.tokens),
        top_k=chat.top_k and max(chat.top_k, 0),  # -1 is off like 0
        system="\n".join(system) or None,
        think=chat.sira.think,
    ).with_values(**of_preset)
    if chat.seed is None and changed.generation.temperature:
        changed = changed.with_settings(seed=secrets.randbelow(2**31))  # clients that sample expect other texts
    return changed, method.with_values(**of_method)


def prompt_of(chat: ChatRequest, preset: Preset) -> Prompt:
    """Return the model's prompt for a request, in the wording of `sira caption` and `sira ask`."""
    prompts = preset.prompts
    turns = []
    for turn in chat.turns():
        if turn.pictures and not turn.text:
            turn = replace(turn, text=prompts.caption)
        turns.append(turn)
    if chat.sira.task == "ask":
        last = turns[-1]
        before, _, after = prompts.ask.partition("{question}")
        parts = tuple(part for part in (before, *last.parts, after) if part != "")
        turns[-1] = replace(last, text=prompts.asking(last.text), parts=parts if last.parts else ())
    if len(turns) == 1 and not turns[0].parts:
        return turns[0].text
    return Conversation(tuple(turns))


def check_length(chat: ChatRequest, vocabulary: Vocabulary, most: int) -> None:
    """Check that the text of a request is not too long, in pieces and without pictures, before a pass takes long."""
    count = 0
    settings = [value for value in chat.sira.settings.values() if isinstance(value, str)]
    for text in [message.texts() for message in chat.messages] + settings:
        for start in range(0, len(text), _COUNTED):
            count += len(vocabulary.encode(text[start : start + _COUNTED]))
            if count > most:
                raise too_long(f"has {count:,} tokens and more, without its pictures", most)


def too_long(how: str, most: int) -> RequestError:
    """Return the error for a prompt that is too long."""
    message = f"messages: the prompt {how}; this server takes {most:,}, with its pictures. Shorten it"
    return _too_large(message, "context_length_exceeded")


def _too_large(message: str, code: str = "too_large") -> RequestError:
    return RequestError(message, 413, param="messages", code=code)


@dataclass(frozen=True)
class Pictures:
    """The files of a request's pictures by name, not looked at yet, and their hash."""

    files: Mapping[str, bytes]
    sha256: str

    @classmethod
    def of(cls, chat: ChatRequest, limits: Limits, *, allow_urls: bool) -> Pictures:
        """Return the pictures of a request; those at URLs are downloaded."""
        urls = chat.pictures()
        if len(urls) > limits.pictures:
            raise _too_large(f"{len(urls)} pictures; this server takes {limits.pictures} in one conversation")
        data = {url: picture_data(url, limits.bytes, allow_urls=allow_urls) for url in dict.fromkeys(urls)}
        files = {}
        for number, url in enumerate(urls, start=1):
            files[f"picture {number}" if len(urls) > 1 else "the picture"] = data[url]
        return cls(files, digest_of([hashlib.sha256(data).hexdigest() for data in files.values()]))

    def open(self, decoder: Decoder, limits: Limits, look: Callable[[], None]) -> list[Image]:
        """Decode the pictures in RGB, in order; an error of `look`, called now and then, ends it."""
        try:
            return decoder.decode(self.files, limits.pixels, look)
        except TooManyPixelsError as error:
            have = "the pictures have" if len(self.files) > 1 else "the picture has"
            raise _too_large(f"{have} {error.args[0]:,} pixels; this server takes {limits.pixels:,}") from None
        except HugePictureError as error:
            raise _too_large(str(error)) from None


def picture_data(url: str, most_bytes: int, *, allow_urls: bool = False) -> bytes:
    """Return the bytes of a picture in a request."""
    if allow_urls and is_web(url):
        data = WebSource(url, url).read()
        if len(data) > most_bytes:
            raise _too_large(f"image_url: larger than {most_bytes:,} bytes")
        return data
    head, comma, coded = url.partition(",")
    head = head.strip().lower()
    coded = "".join(unquote(coded).split())  # MIME, and the command base64, break lines
    if not head.startswith("data:") or not comma or not head.endswith(";base64"):
        expected = f"image_url: expected data:image/...;base64,...; got {url[:40]!r}. This server opens no files, and "
        raise RequestError(f"{expected}fetches URLs only if it was started with `allow_urls=`", param="messages")
    try:
        plain = coded.translate(_URL_SAFE)
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except ValueError as error:
        raise RequestError(f"image_url: is not base64: {error}", param="messages") from None


@dataclass(frozen=True)
class Piece:
    """Final text, its reasoning, and if requested the log-probabilities of its tokens."""

    text: str
    reasoning: str
    logprobs: list[Logprob]


@dataclass(frozen=True)
class Reply:
    """The end of a text, after its last piece: the answer, and what the client sees of its record."""

    answer: Answer
    sira: dict[str, Any]

    @property
    def finish_reason(self) -> str:
        """The reason in OpenAI's words, of which only `length` says that a text is not complete."""
        return "length" if self.answer.finish_reason in ("length", "cut") else "stop"


Event = Piece | Reply | Exception


@dataclass(eq=False)
class Job:
    """A request, and its text as it grows. Jobs with one `key` can be decoded together."""

    chat: ChatRequest
    task: PictureTask  # with every setting in force, but for the prompt
    prompt: Prompt
    pictures: Pictures
    report: Callable[[Event], None]  # called with each `Piece`, then with a `Reply` or an error, in the decoding thread
    images: list[Image] = field(default_factory=list)  # the pictures, when they are decoded
    number: int = 0  # in the order in which the requests came
    gone: bool = False  # set when the client no longer waits for the answer
    _sent: int = 0  # characters of the text, by pieces
    _sent_reasoning: int = 0
    _sent_logprobs: int = 0
    _sent_bytes: int = 0  # of the tokens of these

    def __post_init__(self) -> None:
        preset = self.task.preset
        if not self.task.method.uses_seed:
            preset = preset.with_settings(seed=0)  # each row has its own
        self.key = repr(replace(self.task, preset=preset, schema=None)), self.chat.logprobs

    @property
    def pixels(self) -> int:
        """All pixels of the decoded pictures."""
        return sum(image.width * image.height for image in self.images)

    def begin(self, lvlm: LoadedModel) -> None:
        """Begin the text; another time if a batch has failed, but for what is sent."""
        self._lvlm = lvlm
        self._parsing = lvlm.parser.begin()
        self._tokens = 0
        self._retracted = 0
        self._logprobs: list[Logprob] = []
        self._stopped: int | None = None  # characters before the string that ended the text
        self._ended = False

    @property
    def done(self) -> bool:
        """Whether no further token matters."""
        return self._ended or self._stopped is not None or self.gone

    def add(self, token: int, logprob: Logprob | None) -> None:
        """Take the next token. The end token and other tokens without text have no log-probability for clients."""
        self._tokens += 1
        self._ended = token in self._lvlm.ends.ids
        if not self._parsing.add(token) or self._ended or self._lvlm.vocabulary.is_special(token):
            return
        if logprob is not None:
            self._logprobs.append(logprob)
        if self.chat.stop:
            text = self._parsing.parsed().text
            self._stopped = min((text.find(stop) for stop in self.chat.stop if stop in text), default=None)

    def send_certain(self) -> None:
        """Send the text and the reasoning that no further token changes."""
        parsed = self._parsed()
        if parsed.retracted > self._retracted:  # sent text cannot be taken back: the answer follows it
            self._retracted = parsed.retracted
            self._sent = 0
            self._sent_reasoning = len(parsed.reasoning)
            self._sent_logprobs = len(self._logprobs)
            self._sent_bytes = 0
        text = self._until_stop(parsed.text)
        longest = max(map(len, self.chat.stop), default=1) - 1
        # The rest may be the beginning of a stop; and before a stop, white space is not part of the text.
        certain = text if self.done or not longest else text[: max(0, len(text) - longest)].rstrip()
        if len(certain) > self._sent or len(parsed.reasoning) > self._sent_reasoning:
            self._send(text[: max(len(certain), self._sent)], parsed.reasoning)

    def final(self, answer: Answer) -> Answer:
        """Return a decoded answer up to the string that ended it; of JSON that is not complete, as much as there is."""
        if self.chat.sira.verify == "guide":
            return answer
        if answer.error and answer.finish_reason == "length":
            answer = replace(answer, text=self._lvlm.answer_of(list(answer.tokens)).text, error="")
        if self._stopped is not None:
            text = self._until_stop(self._parsed().text)
            words = answer.words and [word for word in answer.words if word["end"] <= len(text)]
            answer = replace(answer, text=text, finish_reason="stop", output_tokens=self._tokens, words=words)
        if answer.error:
            raise RequestError(answer.error, 422, code="unprocessable")
        return answer

    def finish(self, answer: Answer, result: Result, seconds: float) -> None:
        """Send the rest of the text, and the reply with its decoding time."""
        self._send(answer.text, answer.reasoning or "", last=True)
        record = result.to_record()
        shown = {name: record[name] for name in SHOWN if name in record}
        self.report(Reply(answer, shown | {"decoding_seconds": seconds}))

    def _send(self, text: str, reasoning: str, *, last: bool = False) -> None:
        """Send the unsent part of the text and of its log-probabilities."""
        piece = Piece(text[self._sent :], reasoning[self._sent_reasoning :], self._new_logprobs(text, last))
        self._sent = max(self._sent, len(text))
        self._sent_reasoning = max(self._sent_reasoning, len(reasoning))
        if piece.text or piece.reasoning or piece.logprobs:
            self.report(piece)

    def _new_logprobs(self, text: str, last: bool) -> list[Logprob]:
        """Return the log-probabilities of tokens that, joined, are the text: without white space before it."""
        unsent = self._logprobs[self._sent_logprobs :]
        parsed = self._parsed()
        if not unsent or parsed.cuts:  # tokens of a thought are among them
            return []
        if last and not self._until_stop(parsed.text).startswith(text):
            return unsent  # the preset changed the text: these are the tokens as they were decoded
        shown: list[Logprob] = []
        left = len(text.encode()) - self._sent_bytes
        for logprob in unsent:
            data = bytes(logprob["bytes"])
            if not self._sent_bytes:
                data = data.lstrip()
            if len(data) > left:
                if not last:
                    break
                data = data[:left]
            self._sent_logprobs += 1
            self._sent_bytes += len(data)
            left -= len(data)
            if data:
                shown.append(_cut(logprob, data))
        return shown

    def _until_stop(self, text: str) -> str:
        return text if self._stopped is None else text[: self._stopped].strip()

    def _parsed(self) -> Parsed:
        return self._parsing.parsed(final=self._ended)


def _cut(logprob: Logprob, data: bytes) -> Logprob:
    """Return a token's log-probability with a part of its bytes; also where it is one of the likeliest tokens."""
    part = {"token": data.decode("utf-8", "replace"), "bytes": list(data)}
    top = []
    for likely in logprob["top_logprobs"]:
        top.append(likely | part if likely["bytes"] == logprob["bytes"] else likely)
    return logprob | part | {"top_logprobs": top}


def job_of(
    chat: ChatRequest, lvlm: Lvlm, limits: Limits, report: Callable[[Event], None], *, allow_urls: bool = False
) -> Job:
    """Return the job of a request, if model, preset and method support it, with its pictures."""
    sira = chat.sira
    check_length(chat, lvlm.vocabulary, limits.prompt)
    preset, method = settings_of(chat, lvlm, limits)
    prompt = prompt_of(chat, preset)
    lvlm.check_prompt(prompt, len(chat.pictures()))
    if chat.logprobs or sira.words:
        require(method, Ability.TRACES, "logprobs and words")
    verify = sira.verify and Verify(sira.min_support, mode=sira.verify)
    schema = chat.response_format.schema_of_text()
    task = TASKS[sira.task].of(preset, method, own_prompts=True, words=sira.words, verify=verify, schema=schema)
    lvlm.following(task.schema)  # one that the model's tokens cannot follow is refused before it meets others
    pictures = Pictures.of(chat, limits, allow_urls=allow_urls)
    return Job(chat, task, prompt, pictures, report)
