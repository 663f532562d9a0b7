"""Tokens as people read them: their text and bytes, the words that they form, and reasoning apart from answers."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from transformers.convert_slow_tokenizer import bytes_to_unicode

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_CHARACTERS = {character: byte for byte, character in bytes_to_unicode().items()}  # for bytes, in byte-level ones


class Vocabulary:
    """A tokenizer, seen token by token."""

    def __init__(self, tokenizer: Any) -> None:
        self.lock = threading.Lock()  # held to use the tokenizer: padding and decoding at once is an error in it
        self._tokenizer = tokenizer
        self._special = {int(token) for token in tokenizer.all_special_ids}
        self._added = {int(token): str(added) for token, added in tokenizer.added_tokens_decoder.items()}
        space = tokenizer.convert_tokens_to_ids("Ġ")
        self._byte_level = space is not None and space != tokenizer.unk_token_id

    def is_special(self, token: int) -> bool:
        """Return whether a token is not text, such as an end token."""
        return token in self._special

    @functools.cache  # noqa: B019 (one object per run; the same tokens come back at every step)
    def describe(self, token: int) -> dict[str, Any]:
        """Return `token_id`, `token` (its text) and `bytes` of a token line."""
        data = self.data(token)
        return {"token_id": token, "token": data.decode("utf-8", "replace"), "bytes": list(data)}

    def data(self, token: int) -> bytes:
        """Return the bytes of a token; empty for a token beyond the tokenizer's vocabulary."""
        if token in self._added:
            return self._added[token].encode()
        piece = self._tokenizer.convert_ids_to_tokens(token)
        if piece is None:
            return b""
        if self._byte_level:
            return bytes(_CHARACTERS[character] for character in piece if character in _CHARACTERS)
        if byte := _BYTE.fullmatch(piece):
            return bytes([int(byte[1], 16)])
        return str(piece).replace("▁", " ").encode()

    def pieces(self) -> list[bytes]:
        """Return the bytes that each token adds to a text, by its number; none for special tokens."""
        added = self._tokenizer.added_tokens_decoder.items()
        special = {token for token, each in added if each.special} | self._special
        tokens = range(max(self._tokenizer.get_vocab().values()) + 1)
        return [b"" if token in special else self.data(token) for token in tokens]

    def token(self, text: str) -> int | None:
        """Return the token for exactly this text, such as a marker, or None."""
        token: int | None = self._tokenizer.convert_tokens_to_ids(text)
        return None if token == self._tokenizer.unk_token_id else token

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text that starts an answer."""
        with self.lock:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def encode_known(self, text: str) -> list[int]:
        """Return the tokens of a text that starts an answer; empty if a part of it has none."""
        ids = self.encode(text)
        return [] if self._tokenizer.unk_token_id in ids else ids

    def encode_after(self, prompt: Sequence[int], text: str) -> list[int]:
        """Return the tokens of a text that follows a prompt; if the prompt ends in text, it starts with a space."""
        ids = self.encode(text)
        last = b"\n" if self.is_special(prompt[-1]) or prompt[-1] in self._added else self.data(prompt[-1])
        if ids and not last[-1:].isspace() and not self.data(ids[0])[:1].isspace():
            return self.encode(f" {text}")
        return ids

    def encode_inside(self, word: str) -> list[int]:
        """Return the tokens of a word inside a text, that is, after a space."""
        before, both = self.encode("a"), self.encode(f"a {word}")
        return both[len(before) :] if both[: len(before)] == before else self.encode(word)

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without special ones."""
        with self.lock:
            text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text

    def spans(self, tokens: Sequence[int]) -> list[tuple[int, int]]:
        """Return each token's place in the text; for a part of a character, the place of the whole one."""
        ends = [len(self.text(tokens[: count + 1]).rstrip("�")) for count in range(len(tokens))]
        starts = [0, *ends][:-1]
        for step in range(len(tokens) - 2, -1, -1):
            if ends[step] == starts[step] and not self.is_special(tokens[step]):
                ends[step] = ends[step + 1]
        return list(zip(starts, ends, strict=True))


@dataclass(frozen=True)
class Word:
    """A word, delimited by white space: its characters of the stripped text, and its tokens."""

    text: str
    start: int
    end: int
    first: int
    last: int  # exclusive


@dataclass(frozen=True)
class EndTokens:
    """A checkpoint's settings for the end of texts: the tokens that end one, and the token that pads shorter ones."""

    ids: tuple[int, ...]
    padding: int | None

    @classmethod
    def of(cls, model: Any, tokenizer: Any) -> EndTokens:
        """Read the tokens from the checkpoint's generation config, else from its tokenizer."""
        own = model.generation_config
        end = tokenizer.eos_token_id if own.eos_token_id is None else own.eos_token_id
        ends = () if end is None else (end,) if isinstance(end, int) else tuple(end)
        pads = (tokenizer.pad_token_id, own.pad_token_id, *ends)
        return cls(ends, next((pad for pad in pads if pad is not None), None))

    def until_end(self, tokens: list[int]) -> list[int]:
        """Cut off the padding of a shorter text in a batch; the end token stays."""
        ends = (index for index, token in enumerate(tokens) if token in self.ids)
        return tokens[: next(ends, len(tokens)) + 1]


Cuts = list[tuple[int, int]]  # parts to cut out of a text: start and end in characters


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
    """Separates the reasoning of one model, under one chat template, from its answers.

    A marker that is a token is found by its id, any other by its text: anywhere if the chat template contains it, else
    only at the beginning, as a picture may show `<think>` to a model without thoughts.
    """

    def __init__(self, vocabulary: Vocabulary, template: str = "", tail: str = "", *, think: bool = False) -> None:
        self.vocabulary, self.begins_in = vocabulary, left_open(tail)  # of the thought that the prompt opens
        self.expects = think or self.begins_in is not None  # whether every record has a `reasoning` field
        self.opening = {token: each for each in MARKERS if (token := vocabulary.token(each.opening)) is not None}
        self.closing = {token: each for each in MARKERS if (token := vocabulary.token(each.closing)) is not None}
        self.frames = {token for frame in FRAMES if (token := vocabulary.token(frame)) is not None}
        self.written = tuple(each for each in MARKERS if each not in self.closing.values())  # no token closes them
        self.named = [each for each in self.written if each.closing in template]
        self.framed = [frame for frame in FRAMES if frame in template and vocabulary.token(frame) is None]

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
        parsed, words = self.parse(tokens, skip_thought=skip_thought), list[Word]()
        own = [tokens[step] for step in parsed.steps]
        text, spans = self.vocabulary.text(own), [[*span] for span in self.vocabulary.spans(own)]
        for start, end in reversed(parsed.cuts):
            text, cut = text[:start] + text[end:], end - start
            spans = [[place if place <= start else max(place, end) - cut for place in span] for span in spans]
        margin, places = len(text) - len(text.lstrip()), [*zip(parsed.steps, spans, strict=True)]
        for match in re.finditer(r"\S+", text):
            if steps := [step for step, (start, end) in places if start < match.end() and end > match.start()]:
                words.append(Word(match[0], match.start() - margin, match.end() - margin, steps[0], steps[-1] + 1))
        return words


class Parsing:
    """One text and its thoughts, token by token; `inside`: the newest token is in a thought with marker tokens."""

    def __init__(self, parser: ReasoningParser, begins_in: Markers | None) -> None:
        self._parser, self._written = parser, begins_in if begins_in in parser.written else None
        self.inside = begins_in is not None and self._written is None
        self._count = self._retracted = 0
        self._tokens, self._steps = list[int](), list[int]()  # outside thoughts
        self._thoughts, self._newest, self._label = list[str](), list[int](), ""  # the current thought, and its label

    def add(self, token: int) -> bool:
        """Take the next token; return whether it is outside thoughts with marker tokens."""
        parser, before = self._parser, len(self._tokens)
        if token in parser.opening:
            self.inside, self._label = True, parser.opening[token].label  # the prompt may have opened it already
        elif token in parser.closing:
            if not self.inside:  # it was a thought from the start
                self._newest, self._label = self._tokens, ""
                self._retracted += bool(self._tokens)
                self._tokens, self._steps = [], []
            self._thoughts.append(self._thought(final=True))
            self.inside, self._newest, self._label = False, [], ""
        elif self.inside:
            self._newest.append(token)
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
        written, cuts, inside, retracted = self._separated(plain, thought=any(thoughts), final=final)
        spans = vocabulary.spans(self._tokens) if final and written else []
        removed = sum(any(start <= first and last <= end for start, end in cuts) for first, last in spans)
        return Parsed(
            text=_without(plain, cuts).strip(),
            reasoning="\n\n".join(filter(None, (thought.strip() for thought in (*thoughts, *written)))),
            reasoning_tokens=self._count - len(self._steps) + removed,
            inside=self.inside or inside,
            steps=tuple(self._steps),
            cuts=tuple(cuts),
            retracted=self._retracted + retracted,
        )

    def _separated(self, text: str, *, thought: bool, final: bool) -> tuple[list[str], Cuts, bool, int]:
        """Find the markers that are written out in a text; `thought`: one with marker tokens came before it.

        Return the thoughts, the parts to cut out, whether it ends inside a thought, and the closing markers alone.
        """
        parser, begun, begins = self._parser, self._written, "" if self._written else text.lstrip()
        known = [each for each in parser.written if each in (*parser.named, begun) or begins.startswith(each.opening)]
        marks = {mark: each for each in known for mark in (each.opening, each.closing)}
        cuts, thoughts, retracted = Cuts(), list[str](), 0
        inside, start, place = begun, 0, 0  # start of the current thought, marker included; end of the settled part
        while True:
            frames = FRAMES if thought or thoughts or inside else parser.framed
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
            expected = [each.opening for each in parser.written if not begun and each.opening.startswith(begins)]
            parts = (mark[:size] for mark in (*marks, *frames, *expected) for size in range(1, len(mark)))
            held = max((len(part) for part in parts if text.endswith(part)), default=0)
            if inside:
                thoughts[-1] = thoughts[-1][: len(thoughts[-1]) - held]
            elif held:
                cuts.append((len(text) - held, len(text)))
        return thoughts, cuts, inside is not None, retracted

    def _thought(self, final: bool) -> str:
        """Return the newest thought; unless `final`, nothing while it may be a part of the label."""
        text = self._parser.vocabulary.text(self._newest)
        if final:
            return text.removeprefix(self._label)
        return "" if self._label.startswith(text) else text.rstrip("�").removeprefix(self._label)


def _without(text: str, cuts: Sequence[tuple[int, int]]) -> str:
    for start, end in reversed(cuts):
        text = text[:start] + text[end:]
    return text
