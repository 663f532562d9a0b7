"""Tokens as people read them: their text and bytes, their places in a text, and those that end one."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers.convert_slow_tokenizer import bytes_to_unicode

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_CHARACTERS = {character: byte for byte, character in bytes_to_unicode().items()}  # for bytes, in byte-level ones


class Vocabulary:
    """A tokenizer, seen token by token."""

    def __init__(self, tokenizer: Any) -> None:
        self.lock = threading.Lock()  # held to use the tokenizer: padding and decoding at once is an error in it
        self._tokenizer = tokenizer
        self._special = {int(token) for token in tokenizer.all_special_ids}
        self._added = {int(token): str(added) for token, added in tokenizer.added_tokens_decoder.items()}
        space = tokenizer.convert_tokens_to_ids("Ġ")
        self._byte_level = space is not None and space != tokenizer.unk_token_id

    def is_special(self, token: int) -> bool:
        """Return whether a token is not text, such as an end token."""
        return token in self._special

    @functools.cache  # noqa: B019 (one object per run; the same tokens come back at every step)
    def describe(self, token: int) -> dict[str, Any]:
        """Return `token_id`, `token` (its text) and `bytes` of a token line."""
        data = self.data(token)
        return {"token_id": token, "token": data.decode("utf-8", "replace"), "bytes": list(data)}

    def data(self, token: int) -> bytes:
        """Return the bytes of a token; empty for a token beyond the tokenizer's vocabulary."""
        if token in self._added:
            return self._added[token].encode()
        piece = self._tokenizer.convert_ids_to_tokens(token)
        if piece is None:
            return b""
        if self._byte_level:
            return bytes(_CHARACTERS[character] for character in piece if character in _CHARACTERS)
        byte = _BYTE.fullmatch(piece)
        if byte:
            return bytes([int(byte[1], 16)])
        return str(piece).replace("▁", " ").encode()

    def pieces(self) -> list[bytes]:
        """Return the bytes that each token adds to a text, by its number; none for special tokens."""
        special = set(self._special)
        for token, added in self._tokenizer.added_tokens_decoder.items():
            if added.special:
                special.add(token)
        count = max(self._tokenizer.get_vocab().values()) + 1
        return [b"" if token in special else self.data(token) for token in range(count)]

    def token(self, text: str) -> int | None:
        """Return the token for exactly this text, such as a marker, or None."""
        token: int | None = self._tokenizer.convert_tokens_to_ids(text)
        return None if token == self._tokenizer.unk_token_id else token

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text that starts an answer."""
        with self.lock:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def encode_known(self, text: str) -> list[int]:
        """Return the tokens of a text that starts an answer; empty if a part of it has none."""
        ids = self.encode(text)
        return [] if self._tokenizer.unk_token_id in ids else ids

    def encode_after(self, prompt: Sequence[int], text: str) -> list[int]:
        """Return the tokens of a text that follows a prompt; if the prompt ends in text, it starts with a space."""
        ids = self.encode(text)
        last = prompt[-1]
        if not ids or self.is_special(last) or last in self._added:
            return ids
        if self.data(last)[-1:].isspace() or self.data(ids[0])[:1].isspace():
            return ids
        return self.encode(f" {text}")

    def encode_inside(self, word: str) -> list[int]:
        """Return the tokens of a word inside a text, that is, after a space."""
        before = self.encode("a")
        both = self.encode(f"a {word}")
        if both[: len(before)] != before:
            return self.encode(word)
        return both[len(before) :]

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without special ones."""
        with self.lock:
            text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text

    def spans(self, tokens: Sequence[int]) -> list[tuple[int, int]]:
        """Return each token's place in the text; for a part of a character, the place of the whole one."""
        ends = [len(self.text(tokens[: count + 1]).rstrip("�")) for count in range(len(tokens))]
        starts = [0, *ends][:-1]
        for step in range(len(tokens) - 2, -1, -1):
            if ends[step] == starts[step] and not self.is_special(tokens[step]):
                ends[step] = ends[step + 1]
        return list(zip(starts, ends, strict=True))


@dataclass(frozen=True)
class EndTokens:
    """A checkpoint's settings for the end of texts: the tokens that end one, and the token that pads shorter ones."""

    ids: tuple[int, ...]
    padding: int | None

    @classmethod
    def of(cls, model: Any, tokenizer: Any) -> EndTokens:
        """Read the tokens from the checkpoint's generation config, else from its tokenizer."""
        config = model.generation_config
        end = tokenizer.eos_token_id if config.eos_token_id is None else config.eos_token_id
        if end is None:
            end = ()
        ends = (end,) if isinstance(end, int) else tuple(end)
        for padding in (tokenizer.pad_token_id, config.pad_token_id, *ends):
            if padding is not None:
                return cls(ends, padding)
        return cls(ends, None)

    def until_end(self, tokens: list[int]) -> list[int]:
        """Cut off the padding of a shorter text in a batch; the end token stays."""
        for index, token in enumerate(tokens):
            if token in self.ids:
                return tokens[: index + 1]
        return tokens
