"""Traces on the page: the content of each one's card, ready for the template."""

from __future__ import annotations

import codecs
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from sira_cli.analysis.page.embedding import Embedded, find_picture
from sira_cli.analysis.trace.read import Candidate, Token, TracedObject, TracedText, TracedWord
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
        tokens = [token for trace in traces for token in trace.tokens]
        sizes = sorted(abs(token.delta) for token in tokens if not token.special)
        colour = float(math.ceil(max([1.0, *sizes[: math.ceil(0.95 * len(sizes))]])))
        deltas = [0.0, *(token.delta for token in tokens)]
        return cls(colour, min(deltas), max(deltas), max([0.0, *(token.kl for token in tokens)]))

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

    name, note, heading, subject = "", "the run failed before it opened a picture", "Failed at the start", ""
    images: Sequence[Embedded] = ()

    def __init__(self, trace: TracedText, scale: Scale) -> None:
        """Prepare a trace; this looks for its picture next to the trace, in the current folder, and where it was."""
        run, end, tokens = trace.run, trace.end, trace.tokens
        self.trace, self.settings, self.chart = trace, _settings(trace), scale.chart(tokens)
        self.source = f"{one_line(str(trace.path))}, line {trace.line}"
        if run is not None:
            places = ((run.file_name, trace.path.parent), (run.file_name, Path()), (run.image.path, Path()))
            self.images, self.note = find_picture(places, run.image.sha256)
            self.name = _UPWARDS.sub("", one_line(run.file_name or run.image.path or "stdin"))
            method = "SIRA" if run.method == "sira" else run.method
            self.heading = f"{method}, K = {run.k} of {run.layers}, {ALPHA} = {run.alpha:g}"
            self.subject = f"{self.name} · {run.preset or run.model}"
        telling = [each for each in enumerate(end.words if end else ()) if says_something(each[1].word)]
        # Positions of words that can be true or false of the picture, and the words, the least grounded first.
        self.words: list[tuple[int, TracedWord]] = sorted(telling, key=lambda each: each[1].grounding)
        self.doubted = sum(word.grounding < DOUBTED for _, word in self.words)
        self.things = _things(trace)
        mentioned = {
            step: (thing, step == first, step == last - 1)
            for thing in reversed(self.things or ())  # what is supported least comes last, and stays
            for first, last in thing.steps
            for step in range(first, last)
        }
        groundings = _groundings(trace)
        self.pieces: list[tuple[str, Markup, str, str]] = []  # white space, HTML, CSS classes, numbers in a line
        rows = []
        for token, html, grounding in zip(tokens, token_texts(tokens), groundings, strict=True):
            thing, begins, ends = mentioned.get(token.step, (None, False, False))
            degrees = [] if grounding is None else [doubt(grounding)]
            degrees += [thing.degree] if thing else []
            marks = f"g{max(degrees)} d{scale.level(token.delta)}" if degrees else "pale"
            marks += " special" * token.special
            if thing and thing.degree:  # brackets enclose what a second look does not support
                marks += " unsupported" + " begins" * begins + " ends" * ends
            text = html.lstrip(" ") or html
            about = (
                f"{label(token).strip()}: delta {token.delta:+.2f} (full {token.full.logit:.2f}, CF "
                f"{token.cf.logit:.2f}), rank {token.full.rank} full, {token.cf.rank} CF, {token.contrast.rank} "
                f"contrast, KL {token.kl:.3f}"
            )
            self.pieces.append((" " * (len(html) - len(text)), text, marks, about))
            rows.append(_row_of(token, grounding, thing))
        known = [(grounding, step) for step, grounding in enumerate(groundings) if grounding is not None]
        self.data = {"first": min(known)[1] if known else 0, "tokens": rows}


def _groundings(trace: TracedText) -> list[float | None]:
    """Return for each token the grounding of its word; None for words without content.

    In an interrupted or failed trace, which has no words, each token counts as a word.
    """
    if trace.end is None or not trace.end.words:
        return [
            math.exp(token.contrast.logprob) if says_something(token.token) and not token.special else None
            for token in trace.tokens
        ]
    found: list[float | None] = [None] * len(trace.tokens)
    for word in filter(lambda word: says_something(word.word), trace.end.words):
        for step in _own_steps(trace, [word]):
            found[step] = word.grounding
    return found


def _own_steps(trace: TracedText, words: Iterable[TracedWord]) -> list[int]:
    """Return the tokens of words that have more than punctuation: a letter, or a part of a character."""
    own = ((step, trace.tokens[step]) for word in words for step in range(*word.steps))
    return [step for step, token in own if not token.special and (bare(token.token) or "\ufffd" in token.token)]


def _things(trace: TracedText) -> list[Thing] | None:
    end = trace.end
    if end is None or end.objects is None or end.verify is None:
        return None
    things = []
    for claim in end.objects:
        mentions = (
            [word for word in end.words if word.start < stop and word.end > start] for start, stop in claim.spans
        )
        steps = [(own[0], own[-1] + 1) for words in mentions if (own := _own_steps(trace, words))]
        things.append(Thing(claim, doubt(claim.support, end.verify.min_support), steps))
    return sorted(things, key=lambda thing: thing.claim.support)


def _settings(trace: TracedText) -> dict[str, str]:
    run, end, settings = trace.run, trace.end, dict[str, str]()
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
        settings["Finished"] = (
            f"{_FINISH[end.finish_reason]}; {end.output_tokens} tokens, {end.duration_ms / 1000:.1f} s"
        )
    return {name: value for name, value in settings.items() if value}


def _row_of(token: Token, grounding: float | None, thing: Thing | None) -> dict[str, Any]:
    """Return a token's part of the script's data."""
    candidates: list[Candidate] = list(token.top)
    ids = [candidate.token_id for candidate in candidates]
    if token.token_id not in ids:
        candidates.append(token)  # given or sampled, it may be among no view's best
    support = {} if thing is None else {"support": round(thing.claim.support, 4), "supported": not thing.degree}
    return {
        "text": label(token),
        "grounding": None if grounding is None else round(grounding, 4),
        "delta": round(token.delta, 4),
        "kl": round(token.kl, 4),
        "chosen": [*ids, token.token_id].index(token.token_id),
        "rows": [_numbers(candidate) for candidate in candidates],
        "tracked": [[candidate.word, *_numbers(candidate)] for candidate in token.tracked],
        **support,
    }


def _numbers(candidate: Candidate) -> list[Any]:
    """Return [text, then logit, logprob, rank of each view]: short, because a page has tens of thousands of them."""
    views = (candidate.full, candidate.cf, candidate.contrast)
    numbers = [(round(view.logit, 4), round(view.logprob, 4), view.rank) for view in views]
    return [label(candidate), *(number for each in numbers for number in each)]


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
        text, html = decoder.decode(bytes(token.bytes)), Markup()
        if not text and token.bytes:
            html = Markup('<span class="sign">{}</span>').format(_hex(token.bytes))
        for part in _CONTROL.split(text or token.token if not html else ""):
            if _CONTROL.match(part):  # the sign is drawn by the style sheet, so that copied text is the model's
                html += Markup('<span class="sign" data-sign="{}"></span>').format(_visible(part))
            html += part if not _CONTROL.match(part) or part in "\n\t" else ""
        yield html


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
