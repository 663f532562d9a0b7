"""Tokens as people read them: their text and bytes, and the words that they form."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

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
        if byte := _BYTE.fullmatch(piece):
            return bytes([int(byte[1], 16)])
        return str(piece).replace("▁", " ").encode()

    def pieces(self) -> list[bytes]:
        """Return the bytes that each token adds to a text, by its number; none for special tokens."""
        added = self._tokenizer.added_tokens_decoder.items()
        special = {token for token, each in added if each.special} | self._special
        tokens = range(max(self._tokenizer.get_vocab().values()) + 1)
        return [b"" if token in special else self.data(token) for token in tokens]

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
        last = b"\n" if self.is_special(prompt[-1]) or prompt[-1] in self._added else self.data(prompt[-1])
        if ids and not last[-1:].isspace() and not self.data(ids[0])[:1].isspace():
            return self.encode(f" {text}")
        return ids

    def encode_inside(self, word: str) -> list[int]:
        """Return the tokens of a word inside a text, that is, after a space."""
        before, both = self.encode("a"), self.encode(f"a {word}")
        return both[len(before) :] if both[: len(before)] == before else self.encode(word)

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without special ones."""
        with self.lock:
            text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text

    def words(self, tokens: Sequence[int], cuts: Sequence[tuple[int, int]] = ()) -> list[Word]:
        """Return the words of the stripped text, each with its tokens."""
        text, spans = self.text(tokens), self.spans(tokens)
        for start, end in reversed(cuts):
            text = text[:start] + text[end:]
            spans = [(_moved(first, start, end), _moved(last, start, end)) for first, last in spans]
        margin = len(text) - len(text.lstrip())
        words = []
        for match in re.finditer(r"\S+", text):
            steps = [step for step, (start, end) in enumerate(spans) if start < match.end() and end > match.start()]
            if steps:
                start, end = match.start() - margin, match.end() - margin
                words.append(Word(match[0], start, end, steps[0], steps[-1] + 1))
        return words

    def spans(self, tokens: Sequence[int]) -> list[tuple[int, int]]:
        """Return each token's place in the text; for a part of a character, the place of the whole one."""
        ends = [len(self.text(tokens[: count + 1]).rstrip("�")) for count in range(len(tokens))]
        starts = [0, *ends][:-1]
        for step in range(len(tokens) - 2, -1, -1):
            if ends[step] == starts[step] and not self.is_special(tokens[step]):
                ends[step] = ends[step + 1]
        return list(zip(starts, ends, strict=True))


class Detokenizer:
    """The text of tokens that come one by one, at constant cost per token."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Begin without tokens."""
        self._vocabulary = vocabulary
        self._before: list[int] = []  # decoded already; decoded again with the next token, as a space may depend on it
        self._new: list[int] = []

    def add(self, token: int) -> str:
        """Return the text that a token adds; empty for a part of a character, until it is complete."""
        self._new.append(token)
        read = self._vocabulary.text(self._before)
        text = self._vocabulary.text([*self._before, *self._new])
        if len(text) <= len(read) or text.endswith("�"):
            return ""
        self._before, self._new = self._new, []
        return text[len(read) :]


@dataclass(frozen=True)
class Word:
    """A word, delimited by white space: its characters of the stripped text, and its tokens."""

    text: str
    start: int
    end: int
    first: int
    last: int  # exclusive


def _moved(place: int, start: int, end: int) -> int:
    """Return a place in a text after a part of it is removed."""
    return place if place <= start else max(place, end) - (end - start)


@dataclass(frozen=True)
class EndTokens:
    """A checkpoint's settings for the end of texts: the tokens that end one, and the token that pads shorter ones."""

    ids: tuple[int, ...]
    padding: int | None

    @classmethod
    def of(cls, model: Any, tokenizer: Any) -> EndTokens:
        """Read the tokens from the checkpoint's generation config, else from its tokenizer."""
        own = model.generation_config
        end = tokenizer.eos_token_id if own.eos_token_id is None else own.eos_token_id
        ends = () if end is None else (end,) if isinstance(end, int) else tuple(end)
        pads = (tokenizer.pad_token_id, own.pad_token_id, *ends)
        return cls(ends, next((pad for pad in pads if pad is not None), None))

    def finish_reason(self, tokens: list[int]) -> Literal["stop", "length"]:
        """Return `stop` if the model ended the text itself."""
        return "stop" if tokens and tokens[-1] in self.ids else "length"

    def until_end(self, tokens: list[int]) -> list[int]:
        """Cut off the padding of a shorter text in a batch; the end token stays."""
        ends = (index for index, token in enumerate(tokens) if token in self.ids)
        return tokens[: next(ends, len(tokens)) + 1]
