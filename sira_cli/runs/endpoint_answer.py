"""A server's answer, and what it says about a question: support of yes, or probabilities of choices."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sira_cli.models.look.claims import NO, YES
from sira_cli.models.records import FinishReason

_SPACES = " \u2581\u0120"  # the space itself, and its marks in vocabularies


@dataclass(frozen=True)
class Reply:
    """An answer of a server.

    Attributes:
        text: as it was sent.
        reasoning: before the text; None without any.
        finish_reason: `length` if the text was cut off.
        top: the likeliest first tokens with their log-probabilities; empty if the server does not tell them.
        prompt_tokens, output_tokens: counts; 0 if the server does not tell them.
    """

    text: str
    reasoning: str | None
    finish_reason: FinishReason
    top: tuple[tuple[str, float], ...]
    prompt_tokens: int
    output_tokens: int

    @classmethod
    def of(cls, body: Any) -> Reply | None:
        """Read the body of a response; None if it is not of OpenAI's chat protocol."""
        try:
            choice = body["choices"][0]
            message, usage = choice.get("message") or {}, body.get("usage") or {}
            return cls(
                str(message.get("content") or ""),
                str(message.get("reasoning_content") or message.get("reasoning") or "") or None,
                "length" if choice.get("finish_reason") == "length" else "stop",
                _likeliest(choice),
                *(int(usage.get(f"{kind}_tokens") or 0) for kind in ("prompt", "completion")),
            )
        except (LookupError, TypeError, ValueError, AttributeError):
            return None


def _likeliest(choice: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    try:
        top = choice["logprobs"]["content"][0]["top_logprobs"]
        return tuple((str(each["token"]), float(each["logprob"])) for each in top)
    except (LookupError, TypeError, ValueError):
        return ()


def read_tokens(top: Sequence[tuple[str, float]]) -> tuple[float, float] | None:
    """Return support and neither, as `SecondLook.claims` does; None if neither yes nor no is among the tokens `top`."""
    words = [(token.strip(_SPACES), logprob) for token, logprob in top]
    both = [[logprob for word, logprob in words if word in spellings] for spellings in (YES, NO)]
    if not any(both):
        return None
    said = sum(math.exp(logprob) for part in both for logprob in part)
    return _shares(both)[0], min(1.0, max(0.0, 1 - said))


def read_text(content: str) -> tuple[float, float] | None:
    """Return 1 or 0 as support, and 0; None if the answer begins with neither yes nor no."""
    word = _first_word(content)
    return None if word not in YES + NO else (float(word in YES), 0.0)


def read_choices(reply: Reply, choices: Sequence[str]) -> list[float] | None:
    """Return the probability of each choice by the first token, together 1.

    A token counts for the choice that it is, in any case, or else for the only one that begins with it. Without
    log-probabilities, the choice that the answer begins with has 1.

    Returns:
        None if the answer begins with none of them, as far as the server tells.
    """
    words = reply.top or ((_first_word(reply.text), 0.0),)
    found: list[list[float]] = [[] for _ in choices]
    for token, logprob in words:
        if (number := _meant(token.strip(_SPACES).lower(), choices)) is not None:
            found[number].append(logprob)
    return _shares(found) if any(found) else None


def _meant(word: str, choices: Sequence[str]) -> int | None:
    """Return the number of the choice that a token in lower case begins; None if it is not clear."""
    lower = [choice.lower() for choice in choices]
    hits = [number for number, choice in enumerate(lower) if choice == word]
    hits = hits or [number for number, choice in enumerate(lower) if word and choice.startswith(word)]
    return hits[0] if len(hits) == 1 else None


def _first_word(content: str) -> str:
    word = re.search(r"\w+", content)
    return "" if word is None else word[0]


def _shares(parts: Sequence[Iterable[float]]) -> list[float]:
    """Return the sums of probabilities, given as logarithms, divided by the sum of all."""
    highest = max(logprob for part in parts for logprob in part)
    sums = [math.fsum(math.exp(logprob - highest) for logprob in part) for part in parts]
    return [each / math.fsum(sums) for each in sums]
