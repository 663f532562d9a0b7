"""A server's answer, read as the support of yes or as probabilities of choices."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sira_cli.data.records.record import FinishReason
from sira_cli.errors import SettingsError

YES = ("Yes", "yes", "YES")
NO = ("No", "no", "NO", "Not", "not")
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
        refusal: why there is no text, if the model or a content filter refused; else empty.
    """

    text: str
    reasoning: str | None
    finish_reason: FinishReason
    top: tuple[tuple[str, float], ...]
    prompt_tokens: int
    output_tokens: int
    refusal: str = ""

    @property
    def reasons(self) -> bool:
        """Whether it begins with reasoning, hidden (no text) or marked (`<think>`, `[THINK]`)."""
        return self.reasoning is not None or self.beginning.startswith(("<", "[THINK")) or not self.beginning

    @property
    def beginning(self) -> str:
        """The text, or else the likeliest first token."""
        return self.text.strip() or (self.top[0][0].strip() if self.top else "")

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
                int(usage.get("prompt_tokens") or 0),
                int(usage.get("completion_tokens") or 0),
                str(message.get("refusal") or "")
                or "its content filter" * (choice.get("finish_reason") == "content_filter"),
            )
        except (LookupError, TypeError, ValueError, AttributeError):
            return None


def _likeliest(choice: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    try:
        top = choice["logprobs"]["content"][0]["top_logprobs"]
        found = ((str(each["token"]), float(each["logprob"])) for each in top)
        return tuple((token, logprob) for token, logprob in found if math.isfinite(logprob))  # NaN is no probability
    except (LookupError, TypeError, ValueError):
        return ()


def read_answers(reply: Reply, answers: Sequence[Sequence[str]], *, single: bool) -> tuple[list[float], float] | None:
    """Return the probability of each answer against all answers, and that of any other reply, by the first token.

    Without log-probabilities, the answer at the start of the text has 1.

    Args:
        reply: of the server.
        answers: the spellings of each.
        single: whether a token that only begins a spelling counts only if no token is a whole one.

    Returns:
        None if the reply begins with none of the answers, as far as the server tells.
    """
    words = [(token.strip(_SPACES), logprob) for token, logprob in reply.top] or [(_first_word(reply.text), 0.0)]
    whole: list[list[float]] = [[] for _ in answers]
    begun: list[list[float]] = [[] for _ in answers]
    for word, logprob in words:
        hits = [number for number, spellings in enumerate(answers) if word in spellings]
        starts = [number for number, some in enumerate(answers) if word and any(each.startswith(word) for each in some)]
        if hits:
            whole[hits[0]].append(logprob)
        elif len(starts) == 1:
            begun[starts[0]].append(logprob)
    found = whole if single and any(whole) else [one + other for one, other in zip(whole, begun, strict=True)]
    if not any(found):
        return None
    said = sum(math.exp(logprob) for part in found for logprob in part)
    return _shares(found), min(1.0, max(0.0, 1 - said))


def read_yes(reply: Reply) -> float | None:
    """Return the probability of yes against no; None without probabilities, or if the text begins with neither."""
    if not reply.top or _first_word(reply.text) not in YES + NO:
        return None
    found = read_answers(reply, (YES, NO), single=True)
    return None if found is None else found[0][0]


def check_choices(choices: Sequence[str]) -> None:
    """Check that the first token of an answer can tell choices apart, as `read_choices` needs it.

    Raises:
        SettingsError: two choices begin with the same word.
    """
    for first, choice in itertools.combinations(choices, 2):
        if _beginning(first) == _beginning(choice):
            raise SettingsError(
                f"`choices=` {first!r} and {choice!r} begin with the same word: a server's answer is read by its first "
                "word; reword one"
            )


def read_choices(reply: Reply, choices: Sequence[str]) -> list[float] | None:
    """Return the probability of each choice in any case, as `read_answers` does."""
    folded = Reply(reply.text.lower(), None, "stop", tuple((each.lower(), share) for each, share in reply.top), 0, 0)
    found = read_answers(folded, [(choice.lower(),) for choice in choices], single=False)
    return None if found is None else found[0]


def _first_word(content: str) -> str:
    word = re.search(r"\w+", content)
    return "" if word is None else word[0]


def _beginning(choice: str) -> str:
    """Return the first word in lower case, with the marks before it."""
    return re.sub(r"(\W*\w*).*", r"\1", choice.lower(), count=1, flags=re.DOTALL)


def _shares(parts: Sequence[Iterable[float]]) -> list[float]:
    """Return the sums of probabilities, given as logarithms, divided by the sum of all."""
    highest = max(logprob for part in parts for logprob in part)
    sums = [math.fsum(math.exp(logprob - highest) for logprob in part) for part in parts]
    return [each / math.fsum(sums) for each in sums]
