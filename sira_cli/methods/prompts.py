"""Prompts: one text about a picture or about several, or a conversation about them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from PIL import Image

    Shown = Image.Image | Sequence[Image.Image]  # with a prompt: its picture, or several in order


@dataclass(frozen=True)
class Turn:
    """One message of a conversation."""

    role: Literal["user", "assistant"]  # the speaker
    text: str  # the words
    pictures: int = 0  # number of its pictures
    # its texts, with None for each picture, where pictures stand between words; empty: the pictures come before
    # the text
    parts: tuple[str | None, ...] = ()

    @property
    def content(self) -> tuple[str | None, ...]:
        """Its texts and pictures (None) in order."""
        return self.parts or (*[None] * self.pictures, self.text)

    def after(self, words: str) -> Turn:
        """Return it with words before its text, after the pictures that come first."""
        first = next((part for part in self.parts if part is not None), "")
        at = self.parts.index(first) if first else 0
        parts = (*self.parts[:at], f"{words} {first}", *self.parts[at + 1 :]) if first else ()
        return replace(self, text=f"{words} {self.text}", parts=parts)


@dataclass(frozen=True)
class Conversation:
    """Several turns, at least one with a picture; the model answers the last one, the user's."""

    turns: tuple[Turn, ...]

    def __str__(self) -> str:
        """Return a text that is unique to this conversation."""
        turns = []
        for turn in self.turns:
            pictures = turn.pictures if turn.pictures > 1 else bool(turn.pictures)
            turns.append((turn.role, turn.parts or turn.text, pictures))
        return json.dumps(turns, ensure_ascii=False)


Prompt = str | Conversation


def turns_of(prompt: Prompt, pictures: int = 1) -> tuple[Turn, ...]:
    """Return the turns of a prompt; a text is one turn of the user, with all of its `pictures`."""
    return (Turn("user", prompt, pictures),) if isinstance(prompt, str) else prompt.turns


def pictures_of(shown: Shown) -> list[Image.Image]:
    """Return the pictures of a prompt, in order."""
    return list(shown) if isinstance(shown, Sequence) else [shown]
