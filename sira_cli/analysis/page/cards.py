"""Cards of traces, with their pictures, ready for the template."""

from __future__ import annotations

import codecs
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from sira_cli.analysis.page.embedded import Embedded, find_picture
from sira_cli.analysis.trace.read import Candidate, Run, Token, TracedObject, TracedText, TracedWord
from sira_cli.look.claims import DOUBTED, bare, doubt, says_something
from sira_cli.pictures.names import one_line

HEIGHT = 100  # of a chart's view box
LEAST_STEPS = 24  # a short text has no bars as wide as a hand
ALPHA = "\N{GREEK SMALL LETTER ALPHA}"
_FINISH = {"stop": "the model ended the text", "length": "the longest answer was reached"}
_FINISH |= {"forced": "the given text ended", "error": "an error"}
_UPWARDS = re.compile(r"^(\.\.?/)+(?=.)")  # the way from the trace to the picture is not its name
# Line breaks, non-characters, and marks that would turn the direction of the following tokens.
_CONTROL = re.compile("([\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069])")
_SIGNS = {"\n": "↵", "\r": "␍", "\t": "⇥", "\x7f": "␡", "\u2028": "↵", "\u2029": "¶"}


@dataclass(frozen=True)
class Scale:
    """The axes that all charts of a page share: the |Δ| of the strongest colour, the ends of Δ, and the end of KL."""

    colour: float
    low: float
    high: float
    kl: float

    @classmethod
    def fitted_to(cls, traces: Sequence[TracedText]) -> Scale:
        """Fit the axes to all values; colours saturate at the 95th percentile of |Δ|, but not below 1."""
        sizes = [0.0]
        deltas = [0.0]
        divergences = [0.0]
        for trace in traces:
            for token in trace.tokens:
                deltas.append(token.delta)
                divergences.append(token.kl)
                if not token.special:
                    sizes.append(abs(token.delta))
        most = sorted(sizes)[math.ceil(0.95 * (len(sizes) - 1))]
        colour = float(max(1, math.ceil(most)))
        return cls(colour, min(deltas), max(deltas), max(divergences))

    def level(self, delta: float) -> int:
        """Return the colour of a token, -4 to 4."""
        size = min(4, int(4 * abs(delta) / self.colour + 0.5))
        return size if delta >= 0 else -size

    def chart(self, tokens: Sequence[Token]) -> dict[str, Any]:
        """Return bars of Δ and KL as SVG paths, one path per colour, in a view box `steps` wide and `HEIGHT` high."""

        def height(delta: float) -> float:
            return HEIGHT * (self.high - delta) / (self.high - self.low or 1.0)

        def bars(base: float, top: Callable[[Token], float]) -> str:
            ends = [(token.step, round(top(token), 2)) for token in tokens]
            return "".join(f"M{step}.1 {base:g}V{end:g}h.8V{base:g}z" for step, end in ends if end != base)

        zero = round(height(0.0), 2)
        return {
            "steps": max(LEAST_STEPS, len(tokens)),
            "zero": zero,
            "above": bars(zero, lambda token: height(max(token.delta, 0.0))),
            "below": bars(zero, lambda token: height(min(token.delta, 0.0))),
            "kl": bars(HEIGHT, lambda token: HEIGHT * (1 - token.kl / (self.kl or 1.0))),
        }


class Thing(NamedTuple):
    """An object that the text names, its degree of doubt, and the tokens of each mention: `[first, last + 1]`."""

    claim: TracedObject
    degree: int
    steps: list[tuple[int, int]]


class Card:
    """A trace on the page: what the template shows, and `data` for its script."""

    name = ""
    note = "the run failed before it opened a picture"
    heading = "Failed at the start"
    subject = ""
    images: Sequence[Embedded] = ()

    def __init__(self, trace: TracedText, scale: Scale) -> None:
        """Prepare a trace; this looks for its picture next to the trace, in the current folder, and where it was."""
        self.trace = trace
        self.settings = _settings(trace)
        self.chart = scale.chart(trace.tokens)
        self.source = f"{one_line(str(trace.path))}, line {trace.line}"
        if trace.run is not None:
            self._introduce(trace.run)
        # Words that can be true or false of the picture, each with its position in the text, the least grounded first.
        self.words: list[tuple[int, TracedWord]] = []
        for position, word in enumerate(trace.end.words if trace.end else ()):
            if says_something(word.word):
                self.words.append((position, word))
        self.words.sort(key=lambda placed: placed[1].grounding)
        self.doubted = sum(word.grounding < DOUBTED for _, word in self.words)
        self.things = _things(trace)
        self.pieces: list[tuple[str, Markup, str, str]] = []  # white space, HTML, CSS classes, numbers in a line
        groundings = self._groundings()
        first = min(groundings, key=lambda step: (groundings[step], step), default=0)
        self.data = {"first": first, "tokens": self._show_tokens(scale, groundings)}

    def _introduce(self, run: Run) -> None:
        """Find the picture, and say what was asked."""
        folder = self.trace.path.parent
        places = ((run.file_name, folder), (run.file_name, Path()), (run.image.path, Path()))
        self.images, self.note = find_picture(places, run.image.sha256)
        self.name = _UPWARDS.sub("", one_line(run.file_name or run.image.path or "stdin"))
        method = "SIRA" if run.method == "sira" else run.method
        self.heading = f"{method}, K = {run.k} of {run.layers}, {ALPHA} = {run.alpha:g}"
        self.subject = f"{self.name} · {run.preset or run.model}"

    def _groundings(self) -> dict[int, float]:
        """Return the grounding of each token's word, by step, of words that can be true or false."""
        groundings: dict[int, float] = {}
        for _, word in sorted(self.words, key=lambda placed: placed[0]):
            for step in _own_steps(self.trace, [word]):
                groundings[step] = word.grounding
        return groundings

    def _show_tokens(self, scale: Scale, groundings: Mapping[int, float]) -> list[dict[str, Any]]:
        """Fill `pieces`, and return the tokens' rows for the script."""
        tokens = self.trace.tokens
        mentions: dict[int, tuple[Thing, int, int]] = {}  # by step: the object, and its first and last step
        for thing in reversed(self.things or ()):  # what is supported least comes last, and stays
            for first, end in thing.steps:
                for step in range(first, end):
                    mentions[step] = thing, first, end - 1
        rows = []
        for step, (token, html) in enumerate(zip(tokens, token_texts(tokens), strict=True)):
            grounding = groundings.get(step)
            named, first, last = mentions.get(token.step, (None, -1, -1))
            marks = _marks(grounding, named, scale.level(token.delta))
            if token.special:
                marks.append("special")
            if named and named.degree:  # brackets enclose what a second look does not support
                marks.append("unsupported")
                if token.step == first:
                    marks.append("begins")
                if token.step == last:
                    marks.append("ends")
            text = html.lstrip(" ") or html
            space = " " * (len(html) - len(text))
            about = f"{label(token).strip()}: delta {token.delta:+.2f}, KL {token.kl:.3f}"
            self.pieces.append((space, text, " ".join(marks), about))
            rows.append(_row_of(token, grounding, named))
        return rows


def _marks(grounding: float | None, thing: Thing | None, level: int) -> list[str]:
    """Return the CSS classes of a token's doubt and colour; a token whose doubt is unknown is pale."""
    degrees = []
    if grounding is not None:
        degrees.append(doubt(grounding))
    if thing is not None:
        degrees.append(thing.degree)
    return [f"g{max(degrees)}", f"d{level}"] if degrees else ["pale"]


def _own_steps(trace: TracedText, words: Iterable[TracedWord]) -> list[int]:
    """Return the tokens of words that have more than punctuation: a letter, or a part of a character."""
    steps = []
    for word in words:
        for step in range(*word.steps):
            token = trace.tokens[step]
            if not token.special and (bare(token.token) or "\ufffd" in token.token):
                steps.append(step)
    return steps


def _things(trace: TracedText) -> list[Thing] | None:
    """Return the objects of a second look, the least supported first; None without one."""
    end = trace.end
    if end is None or end.objects is None or end.verify is None:
        return None
    threshold = float(end.verify["min_support"])
    things = []
    for claim in end.objects:
        mentions = []
        for start, stop in claim.spans:
            words = [word for word in end.words if word.start < stop and word.end > start]
            steps = _own_steps(trace, words)
            if steps:
                mentions.append((steps[0], steps[-1] + 1))
        things.append(Thing(claim, doubt(claim.support, threshold), mentions))
    return sorted(things, key=lambda thing: thing.claim.support)


def _settings(trace: TracedText) -> dict[str, str]:
    run = trace.run
    end = trace.end
    settings: dict[str, str] = {}
    if run is not None:
        sampling = "greedy"
        if run.temperature:
            sampling = f"temperature {run.temperature:g}, top-p {run.top_p:g}, seed {run.seed}"
        sampling += f", at most {run.max_new_tokens} tokens"
        settings = {
            "Method": run.method,
            "K": f"{run.k} of {run.layers} layers",
            ALPHA: f"{run.alpha:g}",
            "β": "off" if run.beta is None else f"{run.beta:g}",
            "Model": run.model,
            "Revision": run.revision,
            "Preset": run.preset,
            "Sampling": "none: the tokens were given" if run.forced else sampling,
            "Tokens": f"{run.prompt_tokens} in the prompt, {run.image_tokens} of them the picture's",
            "Vocabulary": f"{run.vocab_size:,}",
            "Runs on": f"{run.device}, {run.dtype}",
            "Versions": ", ".join(f"{name} {version}" for name, version in run.versions.items()),
        }
    settings["Finished"] = f"no: interrupted after {len(trace.tokens)} tokens"
    if end is not None:
        ended = _FINISH[end.finish_reason]
        settings["Finished"] = f"{ended}; {end.output_tokens} tokens, {end.duration_ms / 1000:.1f} s"
    return {name: value for name, value in settings.items() if value}


def _row_of(token: Token, grounding: float | None, thing: Thing | None) -> dict[str, Any]:
    candidates: list[Candidate] = list(token.top)
    ids = [candidate.token_id for candidate in candidates]
    if token.token_id not in ids:  # given or sampled, it may be among no view's best
        candidates.append(token)
        ids.append(token.token_id)
    row = {
        "text": label(token),
        "grounding": None if grounding is None else round(grounding, 4),
        "delta": round(token.delta, 4),
        "kl": round(token.kl, 4),
        "chosen": ids.index(token.token_id),
        "rows": [_numbers(candidate) for candidate in candidates],
        "tracked": [[candidate.word, *_numbers(candidate)] for candidate in token.tracked],
    }
    if thing is not None:
        row["support"] = round(thing.claim.support, 4)
        row["supported"] = not thing.degree
    return row


def _numbers(candidate: Candidate) -> list[Any]:
    """Return [text, then logit, logprob, rank of each view]: short, because a page has tens of thousands of them."""
    numbers: list[Any] = [label(candidate)]
    for view in (candidate.full, candidate.cf, candidate.contrast):
        numbers += [round(view.logit, 4), round(view.logprob, 4), view.rank]
    return numbers


def token_texts(tokens: Iterable[Token]) -> Iterator[Markup]:
    """Yield each token's part of the text, as HTML. Together they read as the text.

    A character made of several tokens is shown with the last of them; the others show their bytes.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for token in tokens:
        if token.special:
            decoder.reset()
            yield Markup("{}").format(label(token))
            continue
        text = decoder.decode(bytes(token.bytes))
        if token.bytes and not text:
            yield Markup('<span class="sign">{}</span>').format(_hex(token.bytes))
        else:
            yield _as_html(text or token.token)


def _as_html(text: str) -> Markup:
    """Return a text with signs for its control characters, drawn by the style sheet: a copied text is the model's."""
    html = Markup()
    for part in _CONTROL.split(text):
        is_control = _CONTROL.match(part)
        if is_control:
            html += Markup('<span class="sign" data-sign="{}"></span>').format(_visible(part))
        if not is_control or part in "\n\t":
            html += part
    return html


def label(candidate: Candidate) -> str:
    """Return an unmistakable label of a token: invisible characters are written out."""
    data = bytes(candidate.bytes)
    try:
        text = data.decode() if data else candidate.token
    except UnicodeDecodeError:
        return _hex(candidate.bytes)
    return "".join(map(_visible, text)) or f"⟨{candidate.token_id}⟩"


def _hex(data: Iterable[int]) -> str:
    return "⟨" + " ".join(f"{byte:02X}" for byte in data) + "⟩"


def _visible(character: str) -> str:
    if character in _SIGNS:
        return _SIGNS[character]
    if ord(character) < 0x20:
        return chr(0x2400 + ord(character))
    if _CONTROL.match(character) or unicodedata.category(character) == "Cf":  # it has no width
        return f"⟨U+{ord(character):04X}⟩"
    return character
