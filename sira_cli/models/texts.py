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
_TITLE = re.compile(r"\b(?:MM?|Mmes?|Mlles?|Pr)\.$")  # French ones that sentencex does not know
_UNIT = re.compile(r"\d\s?(?:[ckm]?m|k?g|ft|in|lb|oz)\.$")  # "3 m." may end a sentence; sentencex takes m. for a title
# Frequent words of languages whose abbreviations end in a full stop: most of its words tell a text's language.
_FREQUENT = {
    "en": "the is are of in on at with and its his her their a an to from by this that there",
    "de": "der die das den dem des und ist sind auf mit von zu im ein eine einen einem einer ihr sein nicht sich",
    "fr": "le la les des du un une et est sont dans sur avec au aux de qui en ses son sa",
    "es": "el la los las un una unos unas y es son en con de del al su sus que por para está",
    "pt": "o a os as um uma uns e é são em com de do da dos das no na nos nas ao que por para está",
    "it": "il lo la gli le un una uno e è sono in con di del della dei delle al alla nel nella su sul sulla che per",
}


class TextSettings(BaseModel):
    """Changes to decoded texts; none by default.

    Attributes:
        prefix, suffix: put unchanged before and after each text, such as the trigger word of a training set.
        max_sentences: keep this number of sentences of a text.
        complete_sentences: drop the unfinished last sentence of a text that `max_new_tokens` ended,
            unless it is the only one.
        lines: `one`: line breaks become blanks in text files; `keep`: they stay. Records keep the text as it is.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    prefix: str = ""
    suffix: str = ""
    max_sentences: int | None = Field(default=None, ge=1)
    complete_sentences: bool = False
    lines: Literal["one", "keep"] = "one"

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
            words = [
                {**word, "start": word["start"] + moved, "end": word["end"] + moved}
                for word in words
                if word["end"] <= len(text)
            ]
        return replace(answer, text=f"{self.prefix}{text}{self.suffix}", words=words)

    def written(self, text: str) -> tuple[int, int]:
        """Return the start and the end of the decoded part of a text in its final form."""
        first = len(self.prefix) if text.startswith(self.prefix) else 0
        return first, len(text) - (len(self.suffix) if text.endswith(self.suffix) else 0)


def sentence_ends(text: str, language: str | None = None) -> list[int]:
    """Return the ends of a text's sentences: positions after their full stops."""
    found = [match for match in _SENTENCE_END.finditer(text) if not _LIST_NUMBER.search(text[: match.end()])]
    if not any(match[0].startswith(".") for match in found):
        return [match.end() for match in found]
    if language is None:
        words = re.findall(r"[^\W\d_]+", text.lower())
        language = max(_FREQUENT, key=lambda code: sum(word in _FREQUENT[code].split() for word in words))

    def following(end: int) -> int:
        return len(text) - len(text[end:].lstrip())

    # Of sentences, without the white space before them.
    starts = {0, len(text), *(following(one["end_index"]) for one in get_sentence_boundaries(language, text))}

    def ends(match: re.Match[str]) -> bool:
        """Return whether a full stop ends a sentence, and not an abbreviation within one."""
        if language == "fr" and _TITLE.search(text[: match.end()]):
            return False
        after = following(match.end())  # sentencex leaves closing signs to the next sentence
        is_end = any(match.start() < start <= after for start in starts)
        return is_end or bool(_UNIT.search(text[: match.start() + 1]))

    return [match.end() for match in found if match[0][0] != "." or ends(match)]


_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")  # or a sign that is one
_TIMES, _LONGEST = 3, 12  # repetitions in a row; words of what is repeated


def repetition(text: str) -> str:
    """Return the words that a text says three times in a row or more; empty without any."""
    words = _WORD.findall(text.lower())
    for size in range(1, _LONGEST + 1):
        equal = 0  # words in a row that are the same as those before
        for place in range(size, len(words)):
            equal = equal + 1 if words[place] == words[place - size] else 0
            if equal == size * (_TIMES - 1):
                said = words[place - size + 1 : place + 1]
                if not "".join(said).isdecimal():
                    return " ".join(said)
    return ""
