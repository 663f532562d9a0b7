"""The page's content about each trace, ready for the template."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from sira_cli.analysis.doubt import DOUBTED, bare, doubt, says_something
from sira_cli.analysis.page.chart import Chart, Scale
from sira_cli.analysis.page.pictures import Shown, find_picture
from sira_cli.analysis.page.text import label, pieces
from sira_cli.analysis.trace.read import Candidate, Token, Trace, TracedObject, TracedWord
from sira_cli.pictures.names import one_line

ALPHA = "\N{GREEK SMALL LETTER ALPHA}"
_FINISH = {
    "stop": "the model ended the text",
    "length": "the longest answer was reached",
    "forced": "the given text ended",
    "error": "an error",
}


@dataclass(frozen=True)
class SettingLine:
    """A line of the settings. `differs`: not the same in all traces of the page."""

    name: str
    value: str
    differs: bool = False


@dataclass(frozen=True)
class StripToken:
    """A token in the strip.

    Attributes:
        space: white space before it, which is not coloured.
        html: the rest of its text.
        marks: CSS classes: its doubt (g0 to g4) and delta (d-4 to d4), or pale; also unsupported by a second look, and
            beginning and end of such a mention.
        about: a line about it.
    """

    space: str
    html: Markup
    marks: str
    about: str


@dataclass(frozen=True)
class Telling:
    """A word that the picture can confirm or contradict.

    Attributes:
        position: its index in the text, from 0.
    """

    word: TracedWord
    text: str
    position: int
    degree: int


@dataclass(frozen=True)
class Named:
    """An object that the text names.

    Attributes:
        degree: of doubt, 0 if it is supported.
        steps: the tokens of each mention, `[first, last + 1]`.
    """

    claim: TracedObject
    degree: int
    steps: list[tuple[int, int]]

    @property
    def supported(self) -> bool:
        """Whether its support reaches the threshold."""
        return self.degree == 0


@dataclass(frozen=True)
class Card:
    """One trace on the page.

    Attributes:
        words: content words, the least grounded first.
        doubted: number of doubted ones among them.
        things: objects in the text with their support by a second look, the least supported first; None without one.
        data: for the script, which fills the panel, beginning with the least grounded token.
    """

    trace: Trace
    heading: str
    subject: str
    source: str
    picture: Shown
    settings: list[SettingLine]
    pieces: list[StripToken]
    chart: Chart
    words: list[Telling]
    doubted: int
    things: list[Named] | None
    data: dict[str, Any]


def cards_of(traces: Sequence[Trace], scale: Scale) -> list[Card]:
    """Return the cards of a page, in the order of the traces."""
    settings = [_settings(trace) for trace in traces]
    names = {name for found in settings for name in found} - {"Finished"}
    differing = {name for name in names if len({found[name] for found in settings if name in found}) > 1}
    return [
        _card(
            trace,
            scale,
            find_picture(trace),
            [SettingLine(name, value, name in differing) for name, value in found.items()],
        )
        for trace, found in zip(traces, settings, strict=True)
    ]


def _card(trace: Trace, scale: Scale, picture: Shown, settings: list[SettingLine]) -> Card:
    run = trace.run
    if run is None:
        heading = "Failed at the start"
    else:
        heading = (
            f"{'SIRA' if run.method == 'sira' else run.method}, K = {run.k} of {run.layers}, {ALPHA} = {run.alpha:g}"
        )
    groundings = _groundings(trace)
    words, things = _telling(trace), _things(trace)
    support = {step: one for one in things or () for first, end in one.steps for step in range(first, end)}
    edges = _edges(things or ())
    known = [(grounding, step) for step, grounding in enumerate(groundings) if grounding is not None]
    return Card(
        trace=trace,
        heading=heading,
        subject=f"{picture.name} · {run.preset or run.model}" if run else "",
        source="" if trace.path is None else f"{one_line(str(trace.path))}, line {trace.line}",
        picture=picture,
        settings=settings,
        pieces=[
            _piece(token, html, _degree(grounding, support.get(token.step)), scale, edges.get(token.step, ""))
            for token, html, grounding in zip(trace.tokens, pieces(trace.tokens), groundings, strict=True)
        ],
        chart=Chart.of(trace.tokens, scale),
        words=words,
        doubted=sum(one.word.grounding < DOUBTED for one in words),
        things=things,
        data={
            "first": min(known)[1] if known else 0,
            "tokens": [
                _token(token, grounding, support.get(token.step))
                for token, grounding in zip(trace.tokens, groundings, strict=True)
            ],
        },
    )


def _groundings(trace: Trace) -> list[float | None]:
    """Return for each token the grounding of its word; None for words without content.

    In an interrupted or failed trace, which has no words, each token counts as a word.
    """
    if trace.end is None or not trace.end.words:
        return [
            math.exp(token.contrast.logprob) if says_something(token.token) and not token.special else None
            for token in trace.tokens
        ]
    found: list[float | None] = [None] * len(trace.tokens)
    for word in trace.end.words:
        if says_something(word.word):
            for step in range(*word.steps):
                token = trace.tokens[step]
                if _says_a_word(token):
                    found[step] = word.grounding
    return found


def _says_a_word(token: Token) -> bool:
    """Return whether a token has more than punctuation: a letter, or a part of a character."""
    return not token.special and bool(bare(token.token) or "\ufffd" in token.token)


def _telling(trace: Trace) -> list[Telling]:
    found = [
        Telling(word, bare(word.word), position, doubt(word.grounding))
        for position, word in enumerate(trace.end.words if trace.end else ())
        if says_something(word.word)
    ]
    return sorted(found, key=lambda one: one.word.grounding)


def _things(trace: Trace) -> list[Named] | None:
    """Return the objects that a second look asked about; None without one."""
    end = trace.end
    if end is None or end.objects is None or end.verify is None:
        return None
    found = []
    for claim in end.objects:
        steps = []
        for start, stop in claim.spans:
            words = [word for word in end.words if word.start < stop and word.end > start]
            own = [step for word in words for step in range(*word.steps) if _says_a_word(trace.tokens[step])]
            steps += [(own[0], own[-1] + 1)] if own else []
        found.append(Named(claim, doubt(claim.support, end.verify.min_support), steps))
    return sorted(found, key=lambda one: one.claim.support)


def _edges(things: Sequence[Named]) -> dict[int, str]:
    """Return the classes of tokens that name an unsupported object, by step: brackets enclose a mention."""
    marks: dict[int, str] = {}
    for one in things:
        for first, end in [] if one.supported else one.steps:
            for step in range(first, end):
                edges = " begins" * (step == first) + " ends" * (step == end - 1)
                marks[step] = f" unsupported{edges}"
    return marks


def _degree(grounding: float | None, named: Named | None) -> int | None:
    """Return the degree of doubt that a token is coloured by; None for one that says nothing."""
    degrees = [doubt(grounding)] if grounding is not None else []
    return max([*degrees, *([named.degree] if named else [])], default=None)


def _piece(token: Token, html: Markup, degree: int | None, scale: Scale, unsupported: str) -> StripToken:
    bare_html = html.lstrip(" ") or html
    marks = "pale" if degree is None else f"g{degree} d{scale.level(token.delta)}"
    return StripToken(
        space=" " * (len(html) - len(bare_html)),
        html=bare_html,
        marks=(f"{marks} special" if token.special else marks) + unsupported,
        about=_about(token),
    )


def _about(token: Token) -> str:
    """Return a token's numbers in one line."""
    return (
        f"{label(token).strip()}: delta {token.delta:+.2f} (full {token.full.logit:.2f}, CF {token.cf.logit:.2f}), "
        f"rank {token.full.rank} full, {token.cf.rank} CF, {token.contrast.rank} contrast, KL {token.kl:.3f}"
    )


def _settings(trace: Trace) -> dict[str, str]:
    run, end, settings = trace.run, trace.end, dict[str, str]()
    if run is not None:
        settings = {
            "Method": run.method,
            "K": f"{run.k} of {run.layers} layers",
            ALPHA: f"{run.alpha:g}",
            "β": "off" if run.beta is None else f"{run.beta:g}",
            "Model": run.model,
            "Revision": run.revision,
            "Preset": run.preset,
            "Sampling": _sampling(trace),
            "Tokens": f"{run.prompt_tokens} in the prompt, {run.image_tokens} of them the picture's",
            "Vocabulary": f"{run.vocab_size:,}",
            "Runs on": f"{run.device}, {run.dtype}",
            "Versions": ", ".join(f"{name} {version}" for name, version in run.versions.items()),
        }
    if end is None:
        settings["Finished"] = f"no: interrupted after {len(trace.tokens)} tokens"
    else:
        seconds = f"{end.duration_ms / 1000:.1f} s"
        settings["Finished"] = f"{_FINISH[end.finish_reason]}; {end.output_tokens} tokens, {seconds}"
    return {name: value for name, value in settings.items() if value}


def _sampling(trace: Trace) -> str:
    run = trace.run
    if run is None or run.forced:
        return "none: the tokens were given"
    if run.temperature == 0:
        return f"greedy, at most {run.max_new_tokens} tokens"
    return f"temperature {run.temperature:g}, top-p {run.top_p:g}, seed {run.seed}, at most {run.max_new_tokens} tokens"


def _token(token: Token, grounding: float | None, named: Named | None) -> dict[str, Any]:
    rows = list(token.top)
    chosen = next((index for index, row in enumerate(rows) if row.token_id == token.token_id), len(rows))
    if chosen == len(rows):
        rows.append(token)  # given or sampled, it may be among no view's best
    return {
        "text": label(token),
        "grounding": None if grounding is None else _rounded(grounding),
        "delta": _rounded(token.delta),
        "kl": _rounded(token.kl),
        "chosen": chosen,
        "rows": [_row(row) for row in rows],
        "tracked": [[row.word, *_row(row)] for row in token.tracked],
        **({} if named is None else {"support": _rounded(named.claim.support), "supported": named.supported}),
    }


def _row(candidate: Candidate) -> list[Any]:
    """Return [text, then logit, logprob, rank of each view]: short, because a page has tens of thousands of them."""
    views = (candidate.full, candidate.cf, candidate.contrast)
    return [
        label(candidate),
        *(value for view in views for value in (_rounded(view.logit), _rounded(view.logprob), view.rank)),
    ]


def _rounded(value: float) -> float:
    return round(value, 4)
