"""What `generate` tells while it works: pieces of text, or tokens."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from transformers import TextStreamer
from transformers.generation.streamers import BaseStreamer


class TextPieces(TextStreamer):
    """Hands decoded text on as soon as words are complete."""

    def __init__(self, tokenizer: Any, lock: AbstractContextManager[Any], on_text: Callable[[str], None]) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._lock, self._on_text = lock, on_text

    def put(self, value: torch.Tensor) -> None:
        """Called by `generate` with the prompt, then with each token."""
        with self._lock:
            super().put(value)  # type: ignore[no-untyped-call] # not annotated upstream

    def end(self) -> None:
        """Called by `generate` at the end."""
        with self._lock:
            super().end()  # type: ignore[no-untyped-call]

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Called by `TextStreamer` with each finished piece."""
        if text:
            self._on_text(text)


class NewTokens(BaseStreamer):
    """Hands on the new tokens of a step, once they are known."""

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
