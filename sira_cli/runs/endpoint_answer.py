"""A server's answer to a yes-or-no question: support from the likeliest first tokens, or from the text."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sira_cli.models.look.claims import NO, YES

_SPACES = " \u2581\u0120"  # the space itself, and its marks in vocabularies


def likeliest(choice: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the likeliest first tokens with their log-probabilities; empty if the server does not tell them."""
    try:
        top = choice["logprobs"]["content"][0]["top_logprobs"]
        return [{"token": str(each["token"]), "logprob": float(each["logprob"])} for each in top]
    except (LookupError, TypeError, ValueError):
        return []


def read_tokens(top: Sequence[Mapping[str, Any]]) -> tuple[float, float] | None:
    """Return support and neither, as `SecondLook.claims` does; None if neither yes nor no is among the tokens `top`."""
    words = [(each["token"].strip(_SPACES), each["logprob"]) for each in top]
    both = [[logprob for word, logprob in words if word in spellings] for spellings in (YES, NO)]
    if not any(both):
        return None
    highest = max(logprob for part in both for logprob in part)
    yes, no = (math.fsum(math.exp(logprob - highest) for logprob in part) for part in both)
    return yes / (yes + no), min(1.0, max(0.0, 1 - (yes + no) * math.exp(highest)))


def read_text(content: str) -> tuple[float, float] | None:
    """Return 1 or 0 as support, and 0; None if the answer begins with neither yes nor no."""
    word = re.search(r"\w+", content)
    if word is None or word[0] not in YES + NO:
        return None
    return float(word[0] in YES), 0.0
