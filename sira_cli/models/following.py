"""Texts of a batch that follow schemas: before each token, all tokens that would break them are ruled out."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from llguidance import LLTokenizer, TokenizerWrapper
from torch import Tensor
from torch.nn import functional as F
from transformers import LogitsProcessor

from sira_cli.core.rules import cut_off, newest_cut_off
from sira_cli.errors import SettingsError, UnsupportedModelError
from sira_cli.models.reasoning import ReasoningParser
from sira_cli.models.schema import Schema
from sira_cli.models.vocabulary import EndTokens, Vocabulary

_BITS = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)


class _Pieces:
    """A vocabulary as llguidance expects it."""

    bos_token_id = None
    special_token_ids = ()

    def __init__(self, tokens: Sequence[bytes], end: int) -> None:
        self.tokens, self.eos_token_id = tokens, end

    def __call__(self, text: bytes) -> list[int]:
        """Return no tokens: the engine does not need them."""
        return []


@functools.lru_cache(maxsize=4)
def _engine(vocabulary: Vocabulary, markers: frozenset[int], ends: tuple[int, ...]) -> LLTokenizer:
    """Return a vocabulary in the engine's form; this takes a second for a large one."""
    pieces = [b"" if token in markers else piece for token, piece in enumerate(vocabulary.pieces())]
    return LLTokenizer(TokenizerWrapper(_Pieces(pieces, ends[0])), eos_token=list(ends))


class FollowingText:
    """One text of a model that follows a schema, token by token; thoughts before it are free."""

    def __init__(self, parser: ReasoningParser, ends: EndTokens, schema: Schema) -> None:
        if not ends.ids:
            raise UnsupportedModelError("following a schema needs a token that ends a text, but the model has none")
        if parser.expects and (not parser.closing or parser.begins_in in parser.written):
            raise SettingsError(
                "a schema is for the answer after the model's thoughts, but their end is not a token of this model: "
                "switch thinking off, or use another model"
            )
        self._parser, self._thinks, self._may_think = parser, parser.begins_in is not None, parser.expects
        self.engine = _engine(
            parser.vocabulary, frozenset({*parser.opening, *parser.closing, *parser.frames}), tuple(ends.ids)
        )
        try:
            self._matcher = schema.matcher(self.engine)
        except ValueError as error:
            raise SettingsError(f"`schema=` {schema.name}: {error}") from error

    def add(self, token: int) -> None:
        """Take the next token."""
        if self._thinks:
            self._thinks = token not in self._parser.closing
        elif self._may_think and token in self._parser.opening:
            self._thinks = True
        else:
            self._matcher.consume_token(token)
        self._may_think = self._thinks

    def allowed(self) -> bytes | None:
        """Return a bit per token, whether it may be next; None: all may. End tokens may if the JSON is complete."""
        if self._thinks:
            return None
        bits: bytes = self._matcher.compute_bitmask()
        if not self._may_think:
            return bits
        more = bytearray(bits)
        for token in self._parser.opening:
            more[token // 8] |= 1 << token % 8
        return bytes(more)


def masked(texts: Sequence[FollowingText | None], scores: Tensor) -> Tensor:
    """Rule out the tokens that break each text's schema (`ruled_out.without`)."""
    rows = [None if text is None else text.allowed() for text in texts]
    if not any(rows):
        return scores
    width, (count, size) = max(len(row or b"") for row in rows), scores.shape
    packed = torch.frombuffer(bytearray(b"".join(row or bytes(width) for row in rows)), dtype=torch.uint8)
    bits = packed.view(count, width, 1).to(scores.device) & _BITS.to(scores.device)  # [B, W, 8]
    ruled_out = F.pad(bits.flatten(1) == 0, (0, max(0, size - 8 * width)), value=True)[:, :size]  # [B, V]
    ruled_out &= torch.tensor([[row is not None] for row in rows], device=scores.device)
    return without(scores, ruled_out)


class SchemaMask(LogitsProcessor):
    """Lets B texts of `generate` follow their schemas."""

    def __init__(self, texts: Sequence[FollowingText | None], prompt: int) -> None:
        """Begin the texts after `prompt` columns."""
        self._texts, self._read = texts, prompt

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return `scores [B, V]` with -inf at tokens that may not follow; `input_ids [B, S]` are all tokens so far."""
        for text, new in zip(self._texts, input_ids[:, self._read :].tolist(), strict=True):
            if text is not None:
                for token in new:
                    text.add(token)
        self._read = input_ids.shape[1]
        return masked(self._texts, scores)


def without(scores: Tensor, ruled_out: Tensor) -> Tensor:
    """Return scores `[B, V]` with -inf at tokens that are ruled out (bool `[B, V]`).

    If a method's cut-off leaves no other token, it is applied to the other tokens alone.
    """
    left = scores.masked_fill(ruled_out, -math.inf)
    if (own := newest_cut_off()) is not None:
        before, z = (each.masked_fill(ruled_out, -math.inf) for each in uncut(scores))
        nothing_left = (left == -math.inf).all(dim=-1, keepdim=True)  # [B, 1]
        left = torch.where(nothing_left, cut_off(before, z, own[2]), left)
    return left


def uncut(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return a method's scores `[B, V]` before its cut-off, and the logits it goes by; without one, twice `scores`."""
    if (own := newest_cut_off()) is None:
        return scores, scores
    before, z = (each[: len(scores)].to(scores.device) for each in own[:2])
    return before, z
