"""What is done to a text once it is decoded: whole sentences only, no more than so many, words before and behind."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from sira_cli.models.records import Answer

# A full stop ends a sentence if white space without a small letter behind it follows, or nothing; a Chinese or Japanese
# one always does. Quotes, brackets and Markdown's asterisks that close behind it belong to the sentence.
_CLOSING = "\"')\\]*_\u2019\u201d\u00bb"
_SENTENCE_END = re.compile(
    rf"[.!?\u2026]+[{_CLOSING}]*(?=\s+(?![a-z\u00df-\u00ff])|\s*$)"
    "|[\u3002\uff01\uff1f]+[\u300d\u300f\u2019\u201d\uff09]*"
)
# What a full stop may follow inside a sentence: a title before a name, a number that begins the line of a list.
_NO_END = re.compile(r"\b(?:Mr|Mrs|Ms|Dr|Prof|St|Mt|Jr|Sr|vs|etc|e\.g|i\.e)\.$|^\s*\d+\.$", re.MULTILINE)


class TextSettings(BaseModel):
    """What is done to decoded texts; by default nothing.

    Attributes:
        prefix, suffix: put before and behind each text as they are, such as the trigger word of a training set.
        max_sentences: cut a text off behind so many sentences.
        complete_sentences: drop the unfinished last sentence of a text that `max_new_tokens` or the loop guard ended,
            unless it is the only one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    prefix: str = ""
    suffix: str = ""
    max_sentences: int | None = Field(default=None, ge=1)
    complete_sentences: bool = False

    def given(self) -> dict[str, Any]:
        """Return what differs from the defaults, as JSON holds it; empty: texts stay as they are."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def finished(self, answer: Answer) -> Answer:
        """Return an answer with its text, and the scores of its words, as these settings want them."""
        if not self.given() or answer.error:
            return answer
        text = self._cut(answer.text, answer.finish_reason)
        words = answer.words
        if words is not None:
            moved = len(self.prefix)
            words = [
                {**word, "start": word["start"] + moved, "end": word["end"] + moved}
                for word in words
                if word["end"] <= len(text)
            ]
        return replace(answer, text=f"{self.prefix}{text}{self.suffix}", words=words)

    def _cut(self, text: str, finish_reason: str) -> str:
        ends = sentence_ends(text)
        if self.complete_sentences and finish_reason in ("length", "loop") and ends:
            text = text[: ends[-1]]
        if self.max_sentences is not None and len(ends) >= self.max_sentences:
            text = text[: ends[self.max_sentences - 1]]
        return text


def sentence_ends(text: str) -> list[int]:
    """Return where the sentences of a text end: positions behind each one's full stop."""
    return [
        match.end() for match in _SENTENCE_END.finditer(text) if not _NO_END.search(text[: match.end()].rstrip("*_"))
    ]
