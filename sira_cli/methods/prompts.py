"""Prompts: one text about a picture, or a conversation about one picture or several."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from PIL import Image

    Shown = Image.Image | Sequence[Image.Image]  # with a prompt: its picture, or one for each turn that has one


@dataclass(frozen=True)
class Turn:
    """One message of a conversation.

    Attributes:
        role: the speaker.
        text: the words.
        picture: whether a picture comes before the text.
    """

    role: Literal["user", "assistant"]
    text: str
    picture: bool = False


@dataclass(frozen=True)
class Conversation:
    """Several turns, at least one with a picture; the model answers the last one, the user's."""

    turns: tuple[Turn, ...]

    def __str__(self) -> str:
        """Return a text that is unique to this conversation."""
        return json.dumps([astuple(turn) for turn in self.turns], ensure_ascii=False)


Prompt = str | Conversation


def turns_of(prompt: Prompt) -> tuple[Turn, ...]:
    """Return the turns of a prompt; a text is one turn of the user, with the picture."""
    return (Turn("user", prompt, picture=True),) if isinstance(prompt, str) else prompt.turns


def pictures_of(shown: Shown) -> list[Image.Image]:
    """Return the pictures of a prompt, in order."""
    return list(shown) if isinstance(shown, Sequence) else [shown]


def picture_count(prompt: Prompt) -> int:
    """Return the number of pictures of a prompt."""
    return sum(turn.picture for turn in turns_of(prompt))
