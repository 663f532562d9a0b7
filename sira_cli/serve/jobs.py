"""What a request stands for: preset and method with its changes, prompt, schema, and pictures."""

from __future__ import annotations

import base64
import difflib
import hashlib
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from PIL.Image import Image

from sira_cli.errors import HugePictureError, SettingsError
from sira_cli.methods import find, require
from sira_cli.methods.base import Ability, Method
from sira_cli.methods.prompts import Conversation, Prompt
from sira_cli.models.preset import Preset, Prompts
from sira_cli.models.vocabulary import Vocabulary
from sira_cli.pictures.opening import decode_picture, picture_size
from sira_cli.pictures.picture import digest_of
from sira_cli.pictures.web import WebSource, is_web
from sira_cli.run.task import TASKS, PictureTask
from sira_cli.serve.limits import Limits
from sira_cli.serve.protocol import MOST_ECHOED, ChatRequest, RequestError, SiraOptions, shortened

_COUNTED = 8192  # characters of a text that are tokenized at once: the decoder also needs the tokenizer


@contextmanager
def _about(param: str) -> Iterator[None]:
    """Name a request's key in errors about its value."""
    try:
        yield
    except SettingsError as error:
        raise RequestError(str(error), param=shortened(param, MOST_ECHOED)) from error


def settings_of(chat: ChatRequest, preset: Preset, method: str, most_tokens: int, layers: int) -> tuple[Preset, Method]:
    """Return preset and method with a request's changes."""
    with _about("sira.method"):
        chosen = preset.method(find(chat.sira.method or method).name)
    given = chat.sira.settings()
    for name, value in given.items():
        with _about(f"sira.{name}"):  # each alone: an error of all together has no single key
            known = chosen.all_settings()
            near = difflib.get_close_matches(name, [*SiraOptions.model_fields, *known], n=1)
            if name not in known and near:
                raise SettingsError(f"sira.{name}: no such key; did you mean `{near[0]}`?")
            own = chosen.owns(name) or name not in known  # the method says which settings there are
            tried: Method | Preset = (chosen if own else preset).with_values(**{name: value})
            if name in ("k", "k_fraction") and isinstance(tried, Preset):
                tried.sira_config.layers_after_fork(layers)
    tokens = chat.max_completion_tokens or chat.max_tokens
    changed = preset.with_settings(
        max_new_tokens=tokens and min(tokens, most_tokens),
        temperature=chat.temperature,
        top_p=chat.top_p,
        top_k=chat.top_k and max(chat.top_k, 0),  # -1 is off like 0
        min_p=chat.min_p,
        seed=chat.seed,
        repetition_penalty=chat.repetition_penalty,
        system=chat.system() or None,
        think=chat.thinks(),
    ).with_values(**{name: value for name, value in given.items() if not chosen.owns(name)})
    if chat.seed is None and changed.generation.temperature:
        changed = changed.with_settings(seed=secrets.randbelow(2**31))  # clients that sample expect other texts
    return changed, chosen.with_values(**{name: value for name, value in given.items() if chosen.owns(name)})


def prompt_of(chat: ChatRequest, prompts: Prompts) -> Prompt:
    """Return the model's prompt for a request, in the wording of `sira caption` and `sira ask`."""
    turns = [replace(turn, text=turn.text or prompts.caption * bool(turn.pictures)) for turn in chat.turns()]
    if chat.sira.task == "ask":
        text, (before, _, after) = prompts.asking(turns[-1].text), prompts.ask.partition("{question}")
        parts = tuple(part for part in (before, *turns[-1].parts, after) if part != "") if turns[-1].parts else ()
        turns[-1] = replace(turns[-1], text=text, parts=parts)
    return Conversation(tuple(turns)) if len(turns) > 1 or turns[0].parts else turns[0].text


def task_of(chat: ChatRequest, preset: Preset, method: Method) -> PictureTask:
    """Return the task of a request, without its prompt, if preset and method support it."""
    sira = chat.sira
    if chat.logprobs or sira.words:
        require(method, Ability.TRACES, "logprobs and words")
    schema = chat.response_format.schema_of_text()
    how: dict[str, Any] = {"words": sira.words, "verify": sira.look(), "schema": schema}
    return TASKS[sira.task].of(preset, method, questions=True, **how)


def check_length(chat: ChatRequest, vocabulary: Vocabulary, most: int) -> None:
    """Check first that the text of a request is not too long: a pass takes time quadratic in its length.

    Messages and settings (`role`) are counted in pieces, up to the limit: this overcounts at borders of pieces, and
    leaves out the tokens of pictures and template.
    """
    count = 0
    settings = [value for value in chat.sira.settings().values() if isinstance(value, str)]
    for text in [message.texts() for message in chat.messages] + settings:
        for start in range(0, len(text), _COUNTED):
            count += len(vocabulary.encode(text[start : start + _COUNTED]))
            if count > most:
                raise too_long(f"has {count:,} tokens and more, without its pictures", most)


def too_long(how: str, most: int) -> RequestError:
    """Return the error for a prompt that is too long."""
    message = f"messages: the prompt {how}; this server takes {most:,}, with its pictures. Shorten it"
    return RequestError(message, 413, param="messages", code="context_length_exceeded")


@dataclass(frozen=True)
class Pictures:
    """The pictures of a request, which are decoded when their text begins.

    Attributes:
        files: their bytes, by their names in messages.
        sha256: hash of the picture's bytes; for several, of their hashes.
        pixels: total of all pictures.
    """

    files: Mapping[str, bytes]
    sha256: str
    pixels: int

    @classmethod
    def of(cls, chat: ChatRequest, limits: Limits, *, allow_urls: bool) -> Pictures:
        """Return pictures of which only the headers have been read; those at URLs are downloaded."""
        urls = chat.pictures()
        if len(urls) > limits.pictures:
            raise _too_large(f"{len(urls)} pictures; this server takes {limits.pictures} in one conversation")
        one = len(urls) == 1
        found = {url: picture_data(url, limits.bytes, allow_urls=allow_urls) for url in dict.fromkeys(urls)}
        files = {"the picture" if one else f"picture {number}": found[url] for number, url in enumerate(urls, 1)}
        try:
            sizes = [picture_size(name, data) for name, data in files.items()]
        except HugePictureError as error:
            raise _too_large(str(error)) from None
        pixels = sum(width * height for width, height in sizes)
        if pixels > limits.pixels:
            have = "the picture has" if one else "the pictures have"
            raise _too_large(f"{have} {pixels:,} pixels; this server takes {limits.pixels:,}")
        return cls(files, digest_of([hashlib.sha256(data).hexdigest() for data in files.values()]), pixels)

    def open(self) -> list[Image]:
        """Decode the pictures in RGB, in order."""
        return [decode_picture(name, data)[0] for name, data in self.files.items()]


def picture_data(url: str, most_bytes: int, *, allow_urls: bool = False) -> bytes:
    """Return the bytes of a picture in a request."""
    if allow_urls and is_web(url):
        data = WebSource(url, url).read()
        if len(data) > most_bytes:
            raise _too_large(f"image_url: larger than {most_bytes:,} bytes")
        return data
    head, comma, coded = url.partition(",")
    head, coded = head.strip().lower(), "".join(coded.split())  # MIME, and the command base64, break lines
    if not head.startswith("data:") or not comma or not head.endswith(";base64"):
        raise RequestError(
            f"image_url: expected data:image/...;base64,...; got {url[:40]!r}. This server opens no files, and "
            "fetches URLs only if it was started with `allow_urls=`",
            param="messages",
        )
    try:
        return base64.b64decode(coded + "=" * (-len(coded) % 4), validate=True)
    except ValueError as error:
        raise RequestError(f"image_url: is not base64: {error}", param="messages") from None


def _too_large(message: str) -> RequestError:
    return RequestError(message, 413, param="messages", code="too_large")
