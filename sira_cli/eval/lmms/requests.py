"""Requests of lmms-eval in sira's terms: pictures, a prompt, and the settings of their text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sira_cli.errors import SettingsError
from sira_cli.methods.prompts import Conversation, Prompt, Turn
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.sources import as_picture

# Settings of generation that change texts and that are not ours; others in tasks are about other programs.
REFUSED = ("frequency_penalty", "presence_penalty", "length_penalty", "diversity_penalty", "num_beam_groups")


@dataclass(frozen=True)
class Wanted:
    """The settings of a text: requests with equal ones may be decoded together.

    Attributes:
        settings: of the preset, as sorted pairs; a system message is one of them.
        until: the text ends before the first of these.
    """

    settings: tuple[tuple[str, Any], ...] = ()
    until: tuple[str, ...] = ()


@dataclass(frozen=True)
class Request:
    """One request: the model's input, and the settings of its text.

    Attributes:
        name: the task and the document, for messages.
        pictures: in the order of the turns that have them.
        prompt: a text about the pictures, or a conversation.
    """

    name: str
    pictures: tuple[Picture, ...]
    prompt: Prompt
    wanted: Wanted = Wanted()


def request_of(
    name: str, messages: Sequence[Mapping[str, Any]], generation: Mapping[str, Any] | None = None
) -> Request:
    """Return the request of a task's messages.

    The pictures of a message of the user come before its text, whatever their order in the message.
    """
    system: list[str] = []
    turns: list[Turn] = []
    pictures: list[Picture] = []
    for message in messages:
        turn, seen = _turn(name, message)
        if message["role"] == "system":
            system.append(turn.text)
        else:
            turns.append(turn)
            pictures += seen
    if not pictures:
        raise SettingsError(f"{name}: has no picture, and SIRA is about what a picture supports: leave this task out")
    if turns[-1].role != "user":
        raise SettingsError(f"{name}: the last message is not the user's, so there is nothing to answer")
    prompt = turns[0].text if len(turns) == 1 else Conversation(tuple(turns))
    return Request(name, tuple(pictures), prompt, wanted_of(name, generation or {}, "\n".join(system)))


def plain_request(name: str, text: str, images: Sequence[Any], generation: Mapping[str, Any] | None = None) -> Request:
    """Return the request of a text about pictures, as models of lmms-eval without messages get it."""
    parts = [*({"type": "image", "url": image} for image in images), {"type": "text", "text": text}]
    return request_of(name, [{"role": "user", "content": parts}], generation)


def wanted_of(name: str, generation: Mapping[str, Any], system: str = "") -> Wanted:
    """Return the settings of a text from a task's `generation_kwargs`; those that are missing are the preset's."""
    given = {key: value for key, value in generation.items() if value is not None}
    sampled = given.get("do_sample", True) and given.get("temperature", float(given.get("do_sample", False))) > 0
    if refused := [key for key in REFUSED if given.get(key)]:
        raise SettingsError(f"{name}: sira has no {refused[0]}: leave it out of the task's generation_kwargs")
    settings: dict[str, Any] = {
        key: given[key] for key in ("max_new_tokens", "num_beams", "repetition_penalty") if key in given
    }
    settings["temperature"] = float(given.get("temperature", 1.0)) if sampled else 0.0
    shares = {"top_p": float, "top_k": int, "min_p": float}
    settings |= {key: kind(given[key]) for key, kind in shares.items() if sampled and key in given}
    settings |= {"system": system} if system else {}
    until = given.get("until", ())
    return Wanted(tuple(sorted(settings.items())), (until,) if isinstance(until, str) else tuple(filter(None, until)))


def _turn(name: str, message: Mapping[str, Any]) -> tuple[Turn, list[Picture]]:
    """Return the turn of a message, and its pictures."""
    role, content = message["role"], message["content"]
    texts: list[str] = []
    pictures: list[Picture] = []
    for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
        if part["type"] == "text":
            texts.append(part["text"])
        elif part["type"] == "image" and role == "user":
            pictures.append(as_picture(part["url"]))
        else:
            raise SettingsError(f"{name}: has {part['type']} of the {role}, expected text, and pictures of the user")
    words = "\n".join(filter(None, texts))
    return Turn("assistant" if role == "assistant" else "user", words, len(pictures)), pictures
