"""A check by a model on a server that speaks OpenAI's chat protocol: yes or no, with probabilities if it tells them.

The package `openai` sends the requests: it reads the key (`OPENAI_API_KEY`), tries again, and limits the time.
"""

from __future__ import annotations

import base64
import io
import math
import os
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from PIL import ExifTags, Image

from sira_cli.errors import NoAnswerError, SettingsError, SiraError, install
from sira_cli.interrupts import in_time
from sira_cli.look import claims
from sira_cli.look.claims import LIST_TOKENS, Claim, ObjectFinder, best_of
from sira_cli.look.words import Thing
from sira_cli.models.texts import Answer
from sira_cli.pictures.colours import conversion_of
from sira_cli.pictures.opening import whole
from sira_cli.pictures.picture import File
from sira_cli.run.check import Check
from sira_cli.run.engines import Engine
from sira_cli.run.items import Batch, Item, Task
from sira_cli.run.records import Result
from sira_cli.run.runner import ConcurrentRunner

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown

T = TypeVar("T")

CONCURRENCY = 4  # questions at once, each about another picture
_EVERYWHERE = {"JPEG": "jpeg", "PNG": "png"}  # read by every server, as kinds of `image/`
_LOSSLESS = 2**22  # pixels; a larger picture that is encoded again becomes a JPEG
_SHORT = 200  # characters of a server's message
_TOPS = [20, 5, 0]  # likeliest tokens to ask for: OpenAI's limit, that of stricter servers, and none
_COMPLETION = "max_completion_tokens"  # the name that some servers have for `max_tokens`
_SPACES = " \u2581\u0120"  # the space itself, and its marks in vocabularies
# Asks for an answer without contrast and reasoning, in the words of a kind of server (`owned_by` of its models). Others
# do not get it: OpenAI's refuses requests with unknown keys.
_UNTHINKING = {"chat_template_kwargs": {"enable_thinking": False}}
_OWN_WORDS: dict[str, dict[str, Any]] = {
    "sira": {"sira": {"method": "greedy", "think": False}},
    "vllm": _UNTHINKING,
    "sglang": _UNTHINKING,
    "llamacpp": _UNTHINKING,
    "library": {"reasoning_effort": "none"},  # Ollama
}


class Reply(NamedTuple):
    """An answer of a server: its text, and the likeliest first tokens with their log-probabilities; none, if untold."""

    text: str
    top: list[tuple[str, float]]


class Endpoint(Engine):
    """A model on a server, asked about the objects that captions name: no model is loaded here."""

    revision = "endpoint"  # in records: the files of the model are not known here

    def __init__(self, address: str, model: str | None = None) -> None:
        """Prepare to ask."""
        place = urlsplit(address)
        if place.scheme not in ("http", "https") or not place.hostname or place.query:
            raise SettingsError("`endpoint=` is not an address: expected one such as http://localhost:11434/v1")
        # Without password.
        self.server = place._replace(netloc=place.netloc.rpartition("@")[2], fragment="").geturl()
        try:
            import openai
        except ImportError:
            needs = "needs the package openai, which is not installed"
            raise SettingsError(f"`endpoint=` {needs}: {install('serve')}") from None
        self._openai, self._ended = openai, threading.Event()
        self._key = os.environ.get("OPENAI_API_KEY", "")
        self._client = openai.OpenAI(base_url=address, api_key=self._key or "none")
        self.system = ""
        self._limit = "max_tokens"
        self._top = _TOPS[0]
        self._scored = False
        self._more: dict[str, Any] = {}
        self.model = model or self._only_model()

    def begin(self, task: Task[Result], done: Callable[[str], str]) -> Result:
        """Ask the server a first question, to learn how it answers."""
        assert isinstance(task, Check)
        assert task.verify is not None
        self._finder = ObjectFinder(task.verify, task.preset)
        self._words = task.preset.verify.answers
        source = self.learn(self._finder.question(Thing("dog", (), "dog")))
        about = {each.name: getattr(task, each.name) for each in fields(Check)} | {"source": source}
        checking = ServerCheck(**about, endpoint=self).at(self.revision, self.server)
        self._runner = ConcurrentRunner(None, checking, CONCURRENCY, done=done)
        return checking.blank()

    def facts(self) -> dict[str, Any]:
        """Return where the model runs, for the run's report."""
        return {"model": {"revision": self.revision}, "device": self.server, "batch_size": CONCURRENCY}

    def end(self) -> None:
        """Abandon running requests, and close the connections."""
        self._ended.set()
        self._client.close()

    def learn(self, question: str) -> str:
        """Ask about an empty picture, and return where the support of answers comes from: `logprobs` or `answer`."""
        owners = self._models()
        self._more = _OWN_WORDS.get(owners.get(self.model, next(iter(owners.values()), "")), {})
        picture, reply = encoded(Image.new("RGB", (64, 64), "grey")), None
        while reply is None:
            try:
                reply = self.reply(picture, question)
            except NoAnswerError as error:
                if self._limit == "max_tokens" and _COMPLETION in str(error):
                    self._limit = _COMPLETION
                elif self._top and "logprob" in str(error):
                    self._top = _TOPS[_TOPS.index(self._top) + 1]
                else:
                    raise SiraError(str(error)) from None
        self._scored = bool(reply.top)
        self._top *= self._scored
        return "logprobs" if self._scored else "answer"

    def reply(self, picture: str, text: str, max_tokens: int = 1) -> Reply:
        """Return the likeliest answer."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        content = [{"type": "image_url", "image_url": {"url": picture}}, {"type": "text", "text": text}]
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [*system, {"role": "user", "content": content}],
            self._limit: max_tokens,
            "temperature": 0,
            **({"logprobs": True, "top_logprobs": self._top} if self._top else {}),
        }
        completion = self._sent(lambda: self._client.chat.completions.create(**body, extra_body=self._more))
        try:
            choice = completion.choices[0]
            answer, refusal = choice.message.content or "", getattr(choice.message, "refusal", None)
            if choice.finish_reason == "content_filter":
                refusal = refusal or "its content filter"
        except (AttributeError, IndexError, TypeError):
            sent = self._message(str(completion))
            raise NoAnswerError(f"{self.server} does not answer in OpenAI's chat protocol: {sent!r}") from None
        if refusal:
            raise NoAnswerError(f"{self.server} refuses to answer {text!r}: {_line(refusal)}")
        top: list[tuple[str, float]] = []
        with suppress(AttributeError, IndexError, TypeError):
            first = choice.logprobs.content[0].top_logprobs
            top = [(each.token, each.logprob) for each in first if math.isfinite(each.logprob)]
        if self._top and self._scored and not top:
            raise NoAnswerError(f"{self.server} sent an answer without log-probabilities, unlike before")
        if not answer.strip() and not top:
            raise NoAnswerError(f"{self.server} sent an empty answer to {text!r}")
        return Reply(answer, top)

    def check(self, files: Sequence[File], shown: Shown, text: str) -> claims.Check:
        """Ask about each object of a caption, separately for each picture."""
        images = shown if isinstance(shown, tuple) else (shown,)
        urls = [data_url(data, image) for (_, data), image in zip(files, images, strict=True)]

        def asked(named: Sequence[Thing]) -> list[Claim]:
            return best_of([[self._claim(url, thing) for thing in named] for url in urls])

        return self._finder.check(text, asked, lambda ask: self.reply(urls[0], ask, LIST_TOKENS).text, {})

    def _claim(self, url: str, thing: Thing) -> Claim:
        """Return an object with the probability of yes against no."""
        reply = self.reply(url, question := self._finder.question(thing))
        words = [(token.strip(_SPACES), logprob) for token, logprob in reply.top]
        if not words and (word := re.search(r"\w+", reply.text)):
            words = [(word[0], 0.0)]
        support = read_answers(words, self._words)
        if support is None:
            sent = _line(reply.text or (reply.top[0][0] if reply.top else ""))
            raise NoAnswerError(
                f"{self.model} begins its answer to {question!r} with {sent!r}, expected "
                f"{' or '.join(some[0].lower() for some in self._words)}: choose a model that does not reason first"
            )
        return Claim(thing.name, thing.spans, *support)

    def _models(self) -> dict[str, str]:
        """Return the owners of the server's models by name; nothing if it has no list of them."""
        with suppress(NoAnswerError, AttributeError, TypeError):
            listed = self._sent(lambda: self._client.models.list()).data
            return {str(each.id): str(getattr(each, "owned_by", "")) for each in listed}
        return {}

    def _only_model(self) -> str:
        names = [_line(name) for name in self._models()]
        if len(names) == 1:
            return names[0]
        self.end()
        listed = f"has {len(names)} models: {', '.join(names)[: 5 * _SHORT]}" if names else "lists no models"
        raise SettingsError(f"{self.server} {listed}: choose one by `model=`")

    def _sent(self, send: Callable[[], T]) -> T:
        """Send a request, and return its result; nobody waits for it after `end`."""
        package = self._openai
        try:
            return in_time(send, math.inf, self._check_wanted)
        except package.APIConnectionError as error:
            if isinstance(error, package.APITimeoutError):
                raise NoAnswerError(f"{self.server}: no answer within the time limit of `openai`") from None
            reason = self._message(str(error.__cause__ or error))
            raise SiraError(f"{self.server} cannot be reached: {reason}: is the server running?") from None
        except package.APIStatusError as error:
            status = error.status_code
            sent = f"{self.server} answers {status}: {self._message(error.message)}"
            if status in (401, 403) and "logprob" not in sent:  # else about a field, not about the key
                raise SiraError(f"{sent} (the key is that of OPENAI_API_KEY)") from None
            if status in (404, 405):
                remark = f"(is {self.model!r} a model of this server, and should /v1 end the address?)"
                raise SiraError(f"{sent} {remark}") from None
            raise NoAnswerError(sent) from None
        except package.OpenAIError as error:
            raise NoAnswerError(f"{self.server}: {self._message(str(error))}") from None

    def _check_wanted(self) -> None:
        if self._ended.is_set():
            raise CancelledError

    def _message(self, text: str) -> str:
        """Return a server's message on one line, without the key."""
        return _line(text.replace(self._key, "...") if self._key else text)


@dataclass(frozen=True)
class ServerCheck(Check):
    """A check whose questions a server answers."""

    endpoint: Endpoint = field(kw_only=True, compare=False, repr=False)

    def inputs(self, lvlm: Any, items: Sequence[Item[Result]], images: Sequence[Shown]) -> Any:
        """Return True: questions are made when the objects are known."""
        return True

    def answers(self, lvlm: Any, batch: Batch[Result], on_text: Callable[[str], None] | None = None) -> list[Answer]:
        """Return the caption of each picture, with the objects that it names."""
        answers = []
        for item, shown in zip(batch.items, batch.images, strict=True):
            text = item.picture.caption or ""
            check = self.endpoint.check(item.content(), shown, text)
            answers.append(check.added_to(Answer(text, "stop"), self.how))
        return answers


def data_url(data: bytes | Image.Image, image: Image.Image) -> str:
    """Return a picture's file, decoded as `image`, as a data URL: as it is if all servers can read and show it."""
    if isinstance(data, Image.Image):
        return encoded(image)
    data = whole(data)
    with Image.open(io.BytesIO(data)) as file:
        plain = file.mode in ("RGB", "L") and "transparency" not in file.info and file.size == image.size
        plain = plain and conversion_of(file) is None
        if plain and file.format in _EVERYWHERE and file.getexif().get(ExifTags.Base.Orientation, 1) == 1:
            return _encoded(_EVERYWHERE[file.format], data)
    return encoded(image)


def encoded(image: Image.Image) -> str:
    """Encode a picture as a data URL: PNG, or JPEG if it is large."""
    file = io.BytesIO()
    if image.width * image.height <= _LOSSLESS:
        image.save(file, "png")
        return _encoded("png", file.getvalue())
    image.save(file, "jpeg", quality=95, subsampling=0)
    return _encoded("jpeg", file.getvalue())


def _encoded(kind: str, data: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def read_answers(words: Sequence[tuple[str, float]], answers: Sequence[Sequence[str]]) -> tuple[float, float] | None:
    """Return the probability of the first answer against both, and that of any other word; None if it has neither."""

    def begins(word: str, answer: Sequence[str]) -> bool:
        return bool(word) and any(each.startswith(word) for each in answer)

    scores = [[logprob for word, logprob in words if word in answer] for answer in answers]
    if not any(scores):  # the first tokens of the words, where they tell them apart
        scores = [
            [logprob for word, logprob in words if begins(word, answer) and not begins(word, other)]
            for answer, other in (answers, answers[::-1])
        ]
    every = [*scores[0], *scores[1]]
    if not every:
        return None
    largest = max(every)
    first, second = (math.fsum(math.exp(logprob - largest) for logprob in part) for part in scores)
    other = 1 - math.fsum(map(math.exp, every))
    return first / (first + second), min(1.0, max(0.0, other))


def _line(text: str) -> str:
    """Return a text from elsewhere on one line, without control characters."""
    return "".join(character for character in " ".join(text.split()) if character.isprintable())[:_SHORT]
