"""What is said to a model about a picture: one text, or a conversation."""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass
from typing import Literal


@dataclass(frozen=True)
class Turn:
    """What one side says.

    Attributes:
        role: who.
        text: what.
        picture: whether the picture comes with it, before the text.
    """

    role: Literal["user", "assistant"]
    text: str
    picture: bool = False


@dataclass(frozen=True)
class Conversation:
    """Several turns about one picture; the last is the user's, and the model answers it."""

    turns: tuple[Turn, ...]

    def __str__(self) -> str:
        """Return a text that no other conversation has."""
        return json.dumps([astuple(turn) for turn in self.turns], ensure_ascii=False)


Prompt = str | Conversation


def turns_of(prompt: Prompt) -> tuple[Turn, ...]:
    """Return the turns of a prompt; a text is one of the user with the picture."""
    return (Turn("user", prompt, picture=True),) if isinstance(prompt, str) else prompt.turns
