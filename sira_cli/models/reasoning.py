"""Reasoning apart from answers: the markers of thoughts, in tokens or written out, and the words of what is left."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sira_cli.models.vocabulary import Vocabulary

Cut = tuple[int, int]  # a part to cut out of a text: start and end in characters


class Markers(NamedTuple):
    """The markers around a thought; `label` is text at its start that is not part of it."""

    opening: str
    closing: str
    label: str = ""


MARKERS = (
    Markers("<think>", "</think>"),  # Qwen, GLM, Kimi K2.5, DeepSeek and most others
    Markers("<|channel>", "<channel|>", "thought\n"),  # Gemma 4
    Markers("◁think▷", "◁/think▷"),  # Kimi-VL
    Markers("[THINK]", "[/THINK]"),  # Mistral
    Markers("<seed:think>", "</seed:think>"),  # Seed
    Markers("<|START_THINKING|>", "<|END_THINKING|>"),  # Cohere
)
# Markers around an answer (GLM), not part of it.
FRAMES = ("<|begin_of_box|>", "<|end_of_box|>", "<answer>", "</answer>")


@dataclass(frozen=True)
class Parsed:
    """A text, separated from its thoughts."""

    text: str  # without surrounding white space
    reasoning: str  # the same; several thoughts are separated by empty lines
    reasoning_tokens: int  # markers included
    inside: bool  # whether it ends inside a thought
    steps: tuple[int, ...]  # the tokens that are not inside a thought with marker tokens
    cuts: tuple[Cut, ...]  # parts of the decoded tokens that are not text
    retracted: int  # number of times that text turned out to be a thought


def left_open(text: str) -> Markers | None:
    """Return the markers of the thought that a text leaves open, or None."""
    last = max(MARKERS, key=lambda markers: text.rfind(markers.opening))
    return last if text.rfind(last.opening) > text.rfind(last.closing) else None


@dataclass(frozen=True)
class Word:
    """A word, delimited by white space: its characters of the stripped text, and its tokens."""

    text: str
    start: int
    end: int
    first: int
    last: int  # exclusive


class ReasoningParser:
    """Separates the reasoning of one model, under one chat template, from its answers.

    A marker that is a token is found by its id, any other by its text: anywhere if the chat template contains it, else
    only at the beginning, as a picture may show `<think>` to a model without thoughts.

    Attributes:
        vocabulary: the tokenizer.
        begins_in: markers of the thought that the prompt opens; None: it opens none.
        expects: whether every record has a `reasoning` field.
        opening, closing, frames: the marker tokens, those of thoughts with their markers.
        written: markers whose closing one is no token.
        named, framed: of the markers that are no tokens, those in the chat template.
    """

    def __init__(self, vocabulary: Vocabulary, template: str = "", tail: str = "", *, think: bool = False) -> None:
        """Read a chat template; `tail`: its text after a user message; `think`: whether reasoning is switched on."""
        self.vocabulary = vocabulary
        self.begins_in = left_open(tail)
        self.expects = think or self.begins_in is not None
        self.opening: dict[int, Markers] = {}
        self.closing: dict[int, Markers] = {}
        self.written: list[Markers] = []
        for markers in MARKERS:
            opening = vocabulary.token(markers.opening)
            if opening is not None:
                self.opening[opening] = markers
            closing = vocabulary.token(markers.closing)
            if closing is None:
                self.written.append(markers)
            else:
                self.closing[closing] = markers
        self.named = [markers for markers in self.written if markers.closing in template]
        self.frames: set[int] = set()
        self.framed: list[str] = []
        for frame in FRAMES:
            token = vocabulary.token(frame)
            if token is not None:
                self.frames.add(token)
            elif frame in template:
                self.framed.append(frame)

    def begin(self, *, skip_thought: bool = False) -> Parsing:
        """Return an empty text; `skip_thought`: it begins with the answer, even if other prompts open a thought."""
        return Parsing(self, None if skip_thought else self.begins_in)

    def parse(self, tokens: Sequence[int], *, skip_thought: bool = False) -> Parsed:
        """Return the text of these tokens, separated from its thoughts; `skip_thought` as for `begin`."""
        parsing = self.begin(skip_thought=skip_thought)
        for token in tokens:
            parsing.add(token)
        return parsing.parsed()

    def words(self, tokens: Sequence[int], *, skip_thought: bool = False) -> list[Word]:
        """Return the words of the stripped text without thoughts, each with its tokens, as for `parse`."""
        parsed = self.parse(tokens, skip_thought=skip_thought)
        outside = [tokens[step] for step in parsed.steps]
        text = _without(self.vocabulary.text(outside), parsed.cuts)
        places = []  # of each token: its step, and its start and end in the text without thoughts
        for step, (start, end) in zip(parsed.steps, self.vocabulary.spans(outside), strict=True):
            places.append((step, _moved(start, parsed.cuts), _moved(end, parsed.cuts)))
        margin = len(text) - len(text.lstrip())
        words = []
        for match in re.finditer(r"\S+", text):
            steps = [step for step, start, end in places if start < match.end() and end > match.start()]
            if steps:
                words.append(Word(match[0], match.start() - margin, match.end() - margin, steps[0], steps[-1] + 1))
        return words


class Parsing:
    """One text and its thoughts, token by token; `inside`: the newest token is in a thought with marker tokens."""

    def __init__(self, parser: ReasoningParser, begins_in: Markers | None) -> None:
        self._parser = parser
        self._begins_in = begins_in if begins_in in parser.written else None  # a thought that no token closes
        self.inside = begins_in is not None and self._begins_in is None
        self._count = 0
        self._retracted = 0
        self._tokens: list[int] = []  # outside thoughts, as their steps
        self._steps: list[int] = []
        self._thoughts: list[str] = []
        self._newest: list[int] = []  # tokens of the current thought
        self._label = ""  # of the current thought

    def add(self, token: int) -> bool:
        """Take the next token; return whether it is outside thoughts with marker tokens."""
        parser = self._parser
        before = len(self._tokens)
        if token in parser.opening:  # the prompt may have opened it already
            self.inside = True
            self._label = parser.opening[token].label
        elif token in parser.closing:
            self._close()
        elif self.inside:
            self._newest.append(token)
        elif token not in parser.frames:
            self._tokens.append(token)
            self._steps.append(self._count)
        self._count += 1
        return len(self._tokens) > before

    def _close(self) -> None:
        if not self.inside:  # it was a thought from the start
            if self._tokens:
                self._retracted += 1
            self._newest = self._tokens
            self._label = ""
            self._tokens = []
            self._steps = []
        self._thoughts.append(self._thought(final=True))
        self.inside = False
        self._newest = []
        self._label = ""

    def parsed(self, *, final: bool = True) -> Parsed:
        """Return the text so far; unless `final`, without an end that may be part of a marker or a character."""
        vocabulary = self._parser.vocabulary
        text = vocabulary.text(self._tokens)
        if not final:
            text = text.rstrip("�")  # a part of a character
        thoughts = [*self._thoughts, self._thought(final)]
        written = WrittenThoughts(self._parser, text, self._begins_in, after_thought=any(thoughts))
        if not final:
            written.hold_back()
        thoughts = [thought.strip() for thought in (*thoughts, *written.thoughts)]
        removed = 0  # tokens of thoughts that are written out
        if final and written.thoughts:
            for first, last in vocabulary.spans(self._tokens):
                removed += any(start <= first and last <= end for start, end in written.cuts)
        return Parsed(
            text=_without(text, written.cuts).strip(),
            reasoning="\n\n".join(filter(None, thoughts)),
            reasoning_tokens=self._count - len(self._steps) + removed,
            inside=self.inside or written.inside is not None,
            steps=tuple(self._steps),
            cuts=tuple(written.cuts),
            retracted=self._retracted + written.retracted,
        )

    def _thought(self, final: bool) -> str:
        """Return the newest thought; unless `final`, nothing while it may be a part of the label."""
        text = self._parser.vocabulary.text(self._newest)
        if final:
            return text.removeprefix(self._label)
        return "" if self._label.startswith(text) else text.rstrip("�").removeprefix(self._label)


class WrittenThoughts:
    """The thoughts of a text whose markers are written out, not tokens.

    Attributes:
        thoughts: their texts.
        cuts: the parts of the text to cut out, in order.
        inside: markers of the thought in which the text ends; None: it ends outside.
        retracted: number of closing markers alone.
    """

    def __init__(
        self, parser: ReasoningParser, text: str, begins_in: Markers | None, *, after_thought: bool = False
    ) -> None:
        """Find the markers of a text; `after_thought`: one with marker tokens came before it."""
        self.thoughts: list[str] = []
        self.cuts: list[Cut] = []
        self.inside = begins_in
        self.retracted = 0
        self._parser = parser
        self._text = text
        self._after_thought = after_thought
        self._start = 0  # of the current thought, its marker included
        self._place = 0  # end of the settled part
        self._beginning = None if begins_in else text.lstrip()  # where a marker may stand that the template lacks
        self._marks: dict[str, Markers] = {}
        for markers in parser.written:
            begun = self._beginning is not None and self._beginning.startswith(markers.opening)
            if begun or markers in parser.named or markers == begins_in:
                self._marks[markers.opening] = markers
                self._marks[markers.closing] = markers
        more = True
        while more:
            more = self._close_thought() if self.inside else self._next_mark()

    @property
    def _frames(self) -> Sequence[str]:
        """The markers around an answer that count: after a thought all of them, else those in the template."""
        return FRAMES if self._after_thought or self.thoughts or self.inside else self._parser.framed

    def _close_thought(self) -> bool:
        """Read the current thought up to its closing marker; return whether it has one."""
        assert self.inside is not None
        end = self._text.find(self.inside.closing, self._place)
        closed = end >= 0
        after = end + len(self.inside.closing) if closed else len(self._text)
        thought = self._text[self._place : end if closed else after]
        self.thoughts.append(thought.lstrip().removeprefix(self.inside.opening))
        self.cuts.append((self._start, after))
        if closed:
            self.inside = None
            self._place = after
        return closed

    def _next_mark(self) -> bool:
        """Read up to the next marker outside a thought; return whether there is one."""
        found = [(self._text.find(mark, self._place), mark) for mark in (*self._marks, *self._frames)]
        found = [(start, mark) for start, mark in found if start >= 0]
        if not found:
            return False
        start, mark = min(found)
        self._place = start + len(mark)
        if mark in FRAMES:
            self.cuts.append((start, self._place))
        elif mark == self._marks[mark].opening:
            self.inside = self._marks[mark]
            self._start = start
        else:  # a closing marker alone: it was a thought from the start
            self.thoughts.append(_without(self._text[:start], self.cuts))
            self.cuts = [(0, self._place)]
            self.retracted += 1
        return True

    def hold_back(self) -> None:
        """Take back an end that may begin a marker, while the text grows."""
        marks = [*self._marks, *self._frames]
        if self._beginning is not None:
            marks += [each.opening for each in self._parser.written if each.opening.startswith(self._beginning)]
        held = 0  # characters
        for mark in marks:
            for size in range(held + 1, len(mark)):
                if self._text.endswith(mark[:size]):
                    held = size
        if self.inside:
            self.thoughts[-1] = self.thoughts[-1][: len(self.thoughts[-1]) - held]
        elif held:
            self.cuts.append((len(self._text) - held, len(self._text)))


def _without(text: str, cuts: Sequence[Cut]) -> str:
    for start, end in reversed(cuts):
        text = text[:start] + text[end:]
    return text


def _moved(place: int, cuts: Sequence[Cut]) -> int:
    """Return the new place of a character of a text from which parts are cut out."""
    for start, end in reversed(cuts):
        if place > start:
            place = max(place, end) - (end - start)
    return place
