"""A model's reasoning separated from its answers, by the markers of its tokenizer or chat template.

    <think>The cup is red.</think>A red cup.          both markers
    The cup is red.</think>A red cup.                 the prompt ends with the first one, or the model left it out
    <think>...</think>A red<think>...</think> cup.    several thoughts

A marker that is a token is found by its id, any other by its text. In a text it counts anywhere if the chat template
contains it, else only at the beginning: a picture may show `<think>` to a model without thoughts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from sira_cli.models.vocabulary import Detokenizer, Vocabulary, Word


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
    cuts: tuple[tuple[int, int], ...]  # parts of the decoded tokens that are not text: start and end in characters
    retracted: int  # number of times that text turned out to be a thought


def left_open(text: str) -> Markers | None:
    """Return the markers of the thought that a text leaves open, or None."""
    last = max(MARKERS, key=lambda markers: text.rfind(markers.opening))
    return last if text.rfind(last.opening) > text.rfind(last.closing) else None


class ReasoningParser:
    """Separates the reasoning of one model, under one chat template, from its answers."""

    def __init__(self, vocabulary: Vocabulary, template: str = "", tail: str = "", *, think: bool = False) -> None:
        self.vocabulary, self.begins_in = vocabulary, left_open(tail)  # of the thought that the prompt opens
        self.expects = think or self.begins_in is not None  # whether every record has a `reasoning` field
        self.opening = {token: each for each in MARKERS if (token := vocabulary.token(each.opening)) is not None}
        self.closing = {token: each for each in MARKERS if (token := vocabulary.token(each.closing)) is not None}
        self.frames = {token for frame in FRAMES if (token := vocabulary.token(frame)) is not None}
        self.written = tuple(each for each in MARKERS if each not in self.closing.values())  # no token closes them
        self._named = [each for each in self.written if each.closing in template]
        self._framed = [frame for frame in FRAMES if frame in template and vocabulary.token(frame) is None]

    def begin(self, *, at_once: bool = False) -> Parsing:
        """Return an empty text; `at_once`: it begins with the answer, even if other prompts open a thought."""
        return Parsing(self, None if at_once else self.begins_in)

    def parse(self, tokens: Sequence[int], *, at_once: bool = False) -> Parsed:
        """Return the text of these tokens, separated from its thoughts; `at_once` as for `begin`."""
        parsing = self.begin(at_once=at_once)
        for token in tokens:
            parsing.add(token)
        return parsing.parsed()

    def words(self, tokens: Sequence[int], *, at_once: bool = False) -> list[Word]:
        """Return the words of the text without thoughts, as `Vocabulary.words`; `at_once` as for `begin`."""
        parsed = self.parse(tokens, at_once=at_once)
        return [
            replace(word, first=parsed.steps[word.first], last=parsed.steps[word.last - 1] + 1)
            for word in self.vocabulary.words([tokens[step] for step in parsed.steps], parsed.cuts)
        ]

    def separated(self, text: str, begins_in: Markers | None, *, thought: bool, final: bool) -> _Separated:
        """Find the markers that are written out in a text; `thought`: one with marker tokens came before it."""
        begins = "" if begins_in else text.lstrip()
        marks = {
            mark: each
            for each in self.written
            if each in self._named or each == begins_in or begins.startswith(each.opening)
            for mark in (each.opening, each.closing)
        }
        cuts, thoughts, retracted = list[tuple[int, int]](), list[str](), 0
        inside, start, place = begins_in, 0, 0  # start of the current thought, marker included; end of the settled part
        while True:
            frames = FRAMES if thought or thoughts or inside else self._framed
            if inside:
                end = text.find(inside.closing, place)
                after = len(text) if end < 0 else end + len(inside.closing)
                thoughts.append(text[place : after if end < 0 else end].lstrip().removeprefix(inside.opening))
                cuts.append((start, after))
                if end < 0:
                    break
                inside, place = None, after
                continue
            found = [(at, mark) for mark in (*marks, *frames) if (at := text.find(mark, place)) >= 0]
            if not found:
                break
            at, mark = min(found)
            place = at + len(mark)
            if mark in FRAMES:
                cuts.append((at, place))
            elif mark == marks[mark].opening:
                inside, start = marks[mark], at
            else:  # a closing marker alone: it was a thought from the start
                thoughts.append(_without(text[:at], cuts))
                cuts, retracted = [(0, place)], retracted + 1
        if not final:  # an end that may begin a marker
            expected = [each.opening for each in self.written if not begins_in and each.opening.startswith(begins)]
            held = max((_overlap(text, mark) for mark in (*marks, *frames, *expected)), default=0)
            if inside:
                thoughts[-1] = thoughts[-1][: len(thoughts[-1]) - held]
            elif held:
                cuts.append((len(text) - held, len(text)))
        return _Separated(_without(text, cuts), thoughts, cuts, inside is not None, retracted)


class _Separated(NamedTuple):
    text: str
    thoughts: list[str]
    cuts: list[tuple[int, int]]
    inside: bool
    retracted: int


class Parsing:
    """One text and its thoughts, token by token; `inside`: the newest token is in a thought with marker tokens."""

    def __init__(self, parser: ReasoningParser, begins_in: Markers | None) -> None:
        self._parser, self._written = parser, begins_in if begins_in in parser.written else None
        self.inside = begins_in is not None and self._written is None
        self._count = self._retracted = 0
        self._tokens, self._steps = list[int](), list[int]()  # outside thoughts
        self._thoughts, self._newest, self._label = list[str](), "", ""  # the current thought, and its possible label
        self._detokenizer = Detokenizer(parser.vocabulary)

    def add(self, token: int) -> bool:
        """Take the next token; return whether it is outside thoughts with marker tokens."""
        parser, before = self._parser, len(self._tokens)
        if token in parser.opening:
            self.inside, self._label = True, parser.opening[token].label  # the prompt may have opened it already
        elif token in parser.closing:
            if not self.inside:  # it was a thought from the start
                self._newest, self._label = parser.vocabulary.text(self._tokens), ""
                self._retracted += bool(self._tokens)
                self._tokens, self._steps = [], []
            self._thoughts.append(self._thought(final=True))
            self.inside, self._newest, self._label = False, "", ""
            self._detokenizer = Detokenizer(parser.vocabulary)
        elif self.inside:
            self._newest += self._detokenizer.add(token)
        elif token not in parser.frames:
            self._tokens.append(token)
            self._steps.append(self._count)
        self._count += 1
        return len(self._tokens) > before

    def parsed(self, *, final: bool = True) -> Parsed:
        """Return the text so far; unless `final`, without an end that may be part of a marker or a character."""
        vocabulary = self._parser.vocabulary
        plain, thoughts = vocabulary.text(self._tokens), [*self._thoughts, self._thought(final)]
        plain = plain if final else plain.rstrip("�")  # a part of a character
        written = self._parser.separated(plain, self._written, thought=any(thoughts), final=final)
        spans = vocabulary.spans(self._tokens) if final and written.thoughts else []
        removed = sum(any(start <= first and last <= end for start, end in written.cuts) for first, last in spans)
        thoughts = [thought.strip() for thought in (*thoughts, *written.thoughts)]
        return Parsed(
            text=written.text.strip(),
            reasoning="\n\n".join(filter(None, thoughts)),
            reasoning_tokens=self._count - len(self._steps) + removed,
            inside=self.inside or written.inside,
            steps=tuple(self._steps),
            cuts=tuple(written.cuts),
            retracted=self._retracted + written.retracted,
        )

    def _thought(self, final: bool) -> str:
        """Return the newest thought; unless `final`, nothing while it may be a part of the label."""
        if not final and len(self._newest) < len(self._label) and self._label.startswith(self._newest):
            return ""
        return self._newest.removeprefix(self._label)


def _without(text: str, cuts: Sequence[tuple[int, int]]) -> str:
    for start, end in reversed(cuts):
        text = text[:start] + text[end:]
    return text


def _overlap(text: str, marker: str) -> int:
    """Return the length of the marker's beginning that a text ends with, less than the whole marker."""
    return next((size for size in range(min(len(marker) - 1, len(text)), 0, -1) if text.endswith(marker[:size])), 0)
