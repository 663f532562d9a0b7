"""Streamers of `generate`: pieces of text, or tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers.generation.streamers import BaseStreamer

from sira_cli.models.answering.reasoning import Parsing


class NewTokens(BaseStreamer):
    """Passes on the new tokens of a step, once they are known."""

    def __init__(self, on_tokens: Callable[[list[int]], None]) -> None:
        self._on_tokens = on_tokens
        self._in_prompt = True

    def put(self, value: torch.Tensor) -> None:
        """Called by `generate` with the prompt, then with each token."""
        if not self._in_prompt:
            self._on_tokens(value.tolist())
        self._in_prompt = False

    def end(self) -> None:
        """Called by `generate` at the end."""


class TextPieces(NewTokens):
    """Passes on the certain part of a text (B = 1), without its reasoning."""

    def __init__(self, parsing: Parsing, on_text: Callable[[str], None]) -> None:
        super().__init__(self._add)
        self._parsing, self._on_text, self._text, self._retracted = parsing, on_text, "", 0

    def end(self) -> None:
        """Called by `generate` at the end."""
        self._tell(final=True)

    def _add(self, tokens: list[int]) -> None:
        self._parsing.add(tokens[0])
        self._tell(final=False)

    def _tell(self, *, final: bool) -> None:
        parsed = self._parsing.parsed(final=final)
        if parsed.retracted > self._retracted:  # text already passed on cannot be taken back: the answer follows it
            self._text, self._retracted = "", parsed.retracted
        if len(parsed.text) > len(self._text):
            self._on_text(parsed.text[len(self._text) :])
            self._text = parsed.text
