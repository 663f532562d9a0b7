"""What is said to a model about a picture: one text, or a conversation about one picture or several."""

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
    """What one side says.

    Attributes:
        role: who.
        text: what.
        picture: whether a picture comes with it, before the text.
    """

    role: Literal["user", "assistant"]
    text: str
    picture: bool = False


@dataclass(frozen=True)
class Conversation:
    """Several turns, at least one with a picture; the last is the user's, and the model answers it."""

    turns: tuple[Turn, ...]

    def __str__(self) -> str:
        """Return a text that no other conversation has."""
        return json.dumps([astuple(turn) for turn in self.turns], ensure_ascii=False)


Prompt = str | Conversation


def turns_of(prompt: Prompt) -> tuple[Turn, ...]:
    """Return the turns of a prompt; a text is one of the user with the picture."""
    return (Turn("user", prompt, picture=True),) if isinstance(prompt, str) else prompt.turns


def pictures_of(shown: Shown) -> list[Image.Image]:
    """Return the pictures that are shown with a prompt, in order."""
    return list(shown) if isinstance(shown, Sequence) else [shown]


def picture_count(prompt: Prompt) -> int:
    """Return how many pictures a prompt is about."""
    return sum(turn.picture for turn in turns_of(prompt))
