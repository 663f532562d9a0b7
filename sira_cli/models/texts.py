"""Answers of a model, and changes to their texts: whole sentences, a maximum number of them, a prefix and a suffix."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from sentencex import get_sentence_boundaries

FinishReason = Literal["stop", "length", "cut", "error"]


@dataclass(frozen=True)
class Answer:
    """The result of decoding one picture; if it failed, with `error`. Fields without a comment are as in `Result`."""

    text: str = ""  # without surrounding white space
    finish_reason: FinishReason = "error"
    image_tokens: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    error: str = ""  # the reason of a failure
    words: list[dict[str, Any]] | None = None
    choices: list[dict[str, Any]] | None = None
    warnings: tuple[str, ...] = ()
    objects: list[dict[str, Any]] | None = None
    verify: dict[str, Any] | None = None
    draft: str | None = None
    removed: list[dict[str, Any]] | None = None
    candidates: list[dict[str, Any]] | None = None
    added: list[str] | None = None
    forbidden: list[str] | None = None
    reasoning: str | None = None  # None: the model is not known to think
    reasoning_tokens: int = 0  # of `output_tokens`
    tokens: tuple[int, ...] = ()  # as decoded, with the end token
    json_schema: str | None = None  # `Schema.label`
    data: Any = None


# A full stop ends a sentence at the end of the text, or before white space that no small letter follows; a Chinese or
# Japanese one always does. Closing quotes, brackets and Markdown's asterisks after it belong to the sentence.
_CLOSING = "\"')\\]*_\u2019\u201d\u00bb"
_SENTENCE_END = re.compile(
    rf"[.!?\u2026]+[{_CLOSING}]*(?=\s+(?![a-z\u00df-\u00ff\u0430-\u045f])|\s*$)"
    "|[\u3002\uff01\uff1f]+[\u300d\u300f\u2019\u201d\uff09]*"
)
_LIST_NUMBER = re.compile(r"^\s*\d+\.$", re.MULTILINE)  # the full stop belongs to the number
# Up to twelve words, or signs that are words, three times in a row.
_THRICE = re.compile(r"(?<!\w)(\w+(?:\W+\w+){0,11}?)(?:\W+\1(?!\w)){2}|([\u3040-\u30ff\u3400-\u9fff]+?)\2{2}")


class TextSettings(BaseModel):
    """Changes to decoded texts; none by default."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    prefix: str = ""  # put unchanged before each text, such as the trigger word of a training set
    suffix: str = ""
    max_sentences: int | None = Field(default=None, ge=1)
    complete_sentences: bool = False  # drop a last sentence that `max_new_tokens` ended, if not the only one
    lines: Literal["one", "keep"] = "one"  # whether line breaks stay in text files; in records they do

    def given(self) -> dict[str, Any]:
        """Return the settings of texts that differ from the defaults, as JSON values; empty: they are not changed."""
        return self.model_dump(mode="json", exclude_defaults=True, exclude={"lines"})

    def finished(self, answer: Answer) -> Answer:
        """Return an answer with its text and its words' scores, changed by these settings."""
        if not self.given() or answer.error:
            return answer
        text, words, moved = answer.text, answer.words, len(self.prefix)
        ends = sentence_ends(text)
        if self.complete_sentences and answer.finish_reason == "length" and ends:
            text = text[: ends[-1]]
        if self.max_sentences is not None and len(ends) >= self.max_sentences:
            text = text[: ends[self.max_sentences - 1]]
        if words is not None:
            words = [word for word in words if word["end"] <= len(text)]
            words = [{**word, "start": word["start"] + moved, "end": word["end"] + moved} for word in words]
        return replace(answer, text=f"{self.prefix}{text}{self.suffix}", words=words)

    def written(self, text: str) -> tuple[int, int]:
        """Return the start and the end of the decoded part of a text in its final form."""
        first = len(self.prefix) if text.startswith(self.prefix) else 0
        return first, len(text) - (len(self.suffix) if text.endswith(self.suffix) else 0)


def sentence_ends(text: str) -> list[int]:
    """Return the ends of a text's sentences, with the abbreviations of English: positions after their full stops."""
    found = [match for match in _SENTENCE_END.finditer(text) if not _LIST_NUMBER.search(text[: match.end()])]
    # Of sentences, without the white space before them; sentencex leaves closing signs to the next sentence.
    starts = {_following(text, one["end_index"]) for one in get_sentence_boundaries("en", text)} | {0, len(text)}

    def ends(match: re.Match[str]) -> bool:  # a full stop may be that of an abbreviation
        after = range(match.start() + 1, _following(text, match.end()) + 1)
        return match[0][0] != "." or not starts.isdisjoint(after)

    return [match.end() for match in filter(ends, found)]


def repetition(text: str) -> str:
    """Return words, other than numbers, that a text says three times in a row; empty without any."""
    repeated = (match for match in _THRICE.finditer(text.lower()) if re.search(r"[^\W\d]", match[0]))
    return next((match[1] or match[2] for match in repeated), "")


def _following(text: str, end: int) -> int:
    return len(text) - len(text[end:].lstrip())
