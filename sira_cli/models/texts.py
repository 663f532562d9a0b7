"""Answers of a model, and changes to their texts: whole sentences, a maximum number of them, a prefix and a suffix."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field
from sentencex import get_sentence_boundaries

from sira_cli.models.deciding import Decides, Strict

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


class TextSettings(Strict):
    """Changes to decoded texts; none by default."""

    prefix: str = ""  # put unchanged before each text, such as the trigger word of a training set
    suffix: str = ""
    max_sentences: int | None = Field(default=None, ge=1)
    complete_sentences: bool = False  # drop a last sentence that `max_new_tokens` ended, if not the only one
    # Whether line breaks stay in text files; in records they do.
    lines: Annotated[Literal["one", "keep"], Decides.NEVER] = "one"

    def given(self) -> dict[str, Any]:
        """Return the settings of texts that differ from the defaults, as JSON values; empty: they are not changed."""
        return self.decisive()

    def finished(self, answer: Answer) -> Answer:
        """Return an answer with its text and its words' scores, changed by these settings."""
        if not self.given() or answer.error:
            return answer
        text = answer.text
        ends = sentence_ends(text)
        if self.complete_sentences and answer.finish_reason == "length" and ends:
            text = text[: ends[-1]]
        if self.max_sentences is not None and len(ends) >= self.max_sentences:
            text = text[: ends[self.max_sentences - 1]]
        words = None
        if answer.words is not None:
            words = [self._moved(word) for word in answer.words if word["end"] <= len(text)]
        return replace(answer, text=f"{self.prefix}{text}{self.suffix}", words=words)

    def _moved(self, word: dict[str, Any]) -> dict[str, Any]:
        """Return a scored word at its place after the prefix."""
        by = len(self.prefix)
        return {**word, "start": word["start"] + by, "end": word["end"] + by}

    def written(self, text: str) -> tuple[int, int]:
        """Return the start and the end of the decoded part of a text in its final form."""
        start = len(self.prefix) if text.startswith(self.prefix) else 0
        end = len(text)
        if text.endswith(self.suffix):
            end -= len(self.suffix)
        return start, end


def sentence_ends(text: str) -> list[int]:
    """Return the ends of a text's sentences, with the abbreviations of English: positions after their full stops."""
    # Of sentences, without the white space before them; sentencex leaves closing signs to the next sentence.
    starts = {0, len(text)}
    for boundary in get_sentence_boundaries("en", text):
        starts.add(_following(text, boundary["end_index"]))
    ends = []
    for match in _SENTENCE_END.finditer(text):
        if _LIST_NUMBER.search(text[: match.end()]):
            continue
        after = range(match.start() + 1, _following(text, match.end()) + 1)
        if match[0][0] != "." or not starts.isdisjoint(after):  # a full stop may be that of an abbreviation
            ends.append(match.end())
    return ends


def repetition(text: str) -> str:
    """Return words, other than numbers, that a text says three times in a row; empty without any."""
    for match in _THRICE.finditer(text.lower()):
        if re.search(r"[^\W\d]", match[0]):
            return match[1] or match[2]
    return ""


def _following(text: str, end: int) -> int:
    return len(text) - len(text[end:].lstrip())
