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

from sira_cli.models.vocabulary import Detokenizer, Vocabulary, Word


@dataclass(frozen=True)
class Markers:
    """The markers around a thought.

    Attributes:
        opening, closing: the markers.
        label: text at the start of each thought that is not part of it.
    """

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
    """A text, separated from its thoughts.

    Attributes:
        text, reasoning: without surrounding white space; several thoughts are separated by empty lines.
        reasoning_tokens: number of tokens of the thoughts, markers included.
        inside: whether it ends inside a thought.
        steps: the tokens that are not inside a thought with marker tokens.
        cuts: parts of the decoded tokens that are not text, as start and end in characters.
        retracted: number of times that text turned out to be a thought.
    """

    text: str
    reasoning: str
    reasoning_tokens: int
    inside: bool
    steps: tuple[int, ...]
    cuts: tuple[tuple[int, int], ...]
    retracted: int


def left_open(text: str) -> Markers | None:
    """Return the markers of the thought that a text leaves open, or None."""
    last = max(MARKERS, key=lambda markers: text.rfind(markers.opening))
    return last if text.rfind(last.opening) > text.rfind(last.closing) else None


class ReasoningParser:
    """Separates the reasoning of one model, under one chat template, from its answers.

    Attributes:
        vocabulary: the model's.
        begins_in: the markers of the thought that the prompt opens, in which texts begin; None: no thought.
        opening, closing: markers that are tokens, by id.
        frames: ids of tokens around answers.
        written: markers whose closing one is not a token; `named`: those of them in the chat template.
        framed: frames in the chat template that are not tokens.
    """

    def __init__(self, vocabulary: Vocabulary, template: str = "", tail: str = "", *, think: bool = False) -> None:
        """Find the markers."""
        self.vocabulary, self._think = vocabulary, think
        self.begins_in = left_open(tail)
        self.opening = {token: each for each in MARKERS if (token := vocabulary.token(each.opening)) is not None}
        self.closing = {token: each for each in MARKERS if (token := vocabulary.token(each.closing)) is not None}
        self.frames = {token for frame in FRAMES if (token := vocabulary.token(frame)) is not None}
        self.written = tuple(each for each in MARKERS if each not in self.closing.values())
        self.named = tuple(each for each in self.written if each.closing in template)
        self.framed = tuple(frame for frame in FRAMES if frame in template and vocabulary.token(frame) is None)

    @property
    def expects(self) -> bool:
        """Whether the model is known to reason, so that every record has a `reasoning` field."""
        return self._think or self.begins_in is not None

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


class Parsing:
    """One text and its thoughts, token by token.

    Attributes:
        inside: whether the newest token is inside a thought with marker tokens.
    """

    def __init__(self, parser: ReasoningParser, begins_in: Markers | None) -> None:
        """Begin; see `ReasoningParser.begin`."""
        self._parser, self._begins_in = parser, begins_in
        self.inside = begins_in is not None and begins_in not in parser.written
        self._count = self._retracted = 0
        self._tokens: list[int] = []  # outside thoughts
        self._steps: list[int] = []
        self._thoughts: list[str] = []
        self._newest, self._label = "", ""  # the current thought, and its possible label
        self._detokenizer = Detokenizer(parser.vocabulary)

    def add(self, token: int) -> bool:
        """Take the next token; return whether it is outside thoughts with marker tokens."""
        parser, before = self._parser, len(self._tokens)
        if token in parser.opening:
            self.inside, self._label = True, parser.opening[token].label  # the prompt may have opened it already
        elif token in parser.closing:
            self._close()
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
        plain = vocabulary.text(self._tokens)
        begins_in = self._begins_in if self._begins_in in self._parser.written else None
        thoughts = [*self._thoughts, self._thought(final)]
        plain = plain if final else plain.rstrip("�")  # a part of a character
        written = _Written(self._parser, plain, begins_in, thought=any(thoughts))
        if not final:
            written.hold_back()
        spans = vocabulary.spans(self._tokens) if final and written.thoughts else []
        thoughts = [thought.strip() for thought in (*thoughts, *written.thoughts)]
        return Parsed(
            text=written.text.strip(),
            reasoning="\n\n".join(filter(None, thoughts)),
            reasoning_tokens=self._count - len(self._steps) + written.count(spans),
            inside=self.inside or written.inside,
            steps=tuple(self._steps),
            cuts=tuple(written.cuts),
            retracted=self._retracted + written.retracted,
        )

    def _close(self) -> None:
        if self.inside:
            self._thoughts.append(self._thought(final=True))
        else:  # it was a thought from the start
            self._thoughts.append(self._parser.vocabulary.text(self._tokens))
            self._retracted += bool(self._tokens)
            self._tokens, self._steps = [], []
        self.inside, self._newest, self._label = False, "", ""
        self._detokenizer = Detokenizer(self._parser.vocabulary)

    def _thought(self, final: bool) -> str:
        """Return the newest thought; unless `final`, nothing while it may be a part of the label."""
        if not final and len(self._newest) < len(self._label) and self._label.startswith(self._newest):
            return ""
        return self._newest.removeprefix(self._label)


class _Written:
    """A text with markers written out, and the parts that they remove."""

    def __init__(self, parser: ReasoningParser, text: str, begins_in: Markers | None, *, thought: bool) -> None:
        self.cuts: list[tuple[int, int]] = []
        self.thoughts: list[str] = []
        self.retracted = 0
        self._whole, self._inside = text, begins_in
        self._thought, self._framed = thought, parser.framed
        begins = "" if begins_in else text.lstrip()
        self._markers = tuple(
            each
            for each in parser.written
            if each in parser.named or each == begins_in or begins.startswith(each.opening)
        )
        self._expected = [] if begins_in else [each.opening for each in parser.written]
        self._expected = [opening for opening in self._expected if opening.startswith(begins)]
        self._cut()

    @property
    def inside(self) -> bool:
        """Whether it ends inside a thought."""
        return self._inside is not None

    @property
    def text(self) -> str:
        """The remaining text."""
        return self._before(len(self._whole))

    def count(self, spans: Sequence[tuple[int, int]]) -> int:
        """Return the number of removed tokens among these places."""
        return sum(any(start <= first and last <= end for start, end in self.cuts) for first, last in spans)

    def hold_back(self) -> None:
        """Remove an end that may begin a marker."""
        held = max((_overlap(self._whole, mark) for mark in (*self._marks(), *self._expected)), default=0)
        if self.inside:
            self.thoughts[-1] = self.thoughts[-1][: len(self.thoughts[-1]) - held]
        elif held:
            self.cuts.append((len(self._whole) - held, len(self._whole)))

    def _cut(self) -> None:
        start, place = 0, 0  # start of the current thought, marker included; end of the settled part
        while True:
            if self._inside is not None:
                end = self._whole.find(self._inside.closing, place)
                end, after = (end, end + len(self._inside.closing)) if end >= 0 else (len(self._whole),) * 2
                self.thoughts.append(self._whole[place:end].lstrip().removeprefix(self._inside.opening))
                self.cuts.append((start, after))
                if end == after:
                    return
                self._inside, place = None, after
                continue
            found = [(at, mark) for mark in self._marks() if (at := self._whole.find(mark, place)) >= 0]
            if not found:
                return
            at, mark = min(found)
            opened = next((each for each in self._markers if each.opening == mark), None)
            place = at + len(mark)
            if opened is not None:
                self._inside, start = opened, at
            elif mark in FRAMES:
                self.cuts.append((at, place))
            else:  # a closing marker alone: it was a thought from the start
                self.thoughts.append(self._before(at))
                self.cuts = [(0, place)]
                self.retracted += 1

    def _before(self, place: int) -> str:
        """Return the remaining text before a place after all removed parts."""
        ends = [0, *(end for _, end in self.cuts)]
        starts = [*(start for start, _ in self.cuts), place]
        return "".join(self._whole[end:start] for end, start in zip(ends, starts, strict=True))

    def _marks(self) -> list[str]:
        """Return the markers that count; after a thought also those around an answer."""
        frames = FRAMES if self._thought or self.thoughts else self._framed
        return [*(mark for each in self._markers for mark in (each.opening, each.closing)), *frames]


def _overlap(text: str, marker: str) -> int:
    """Return the length of the marker's beginning that a text ends with, less than the whole marker."""
    return next((size for size in range(min(len(marker) - 1, len(text)), 0, -1) if text.endswith(marker[:size])), 0)
