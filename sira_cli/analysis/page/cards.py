"""Cards of the pages: traces, and the records of a gallery, with their pictures, ready for the templates."""

from __future__ import annotations

import base64
import codecs
import hashlib
import io
import math
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup
from PIL import Image

from sira_cli.analysis.compare import differences
from sira_cli.analysis.record_file import Record, RecordFile
from sira_cli.analysis.trace.read import Candidate, Token, TracedObject, TracedText, TracedWord
from sira_cli.errors import DataError, PictureError
from sira_cli.look.claims import DOUBTED, bare, doubt, says_something
from sira_cli.models import presets
from sira_cli.pictures.names import one_line
from sira_cli.pictures.opening import decode_picture
from sira_cli.pictures.records import is_failure, record_name
from sira_cli.pictures.sources import recorded

# --- pictures

Embedded = tuple[str, int, int]  # a picture as a `data:` URI, its width and height
CHANGED = "The picture was replaced or changed since (its sha256 differs)."
MISSING = "The picture was not found: put it next to the file, and make the page again."


def find_picture(places: Iterable[tuple[str, Path]], sha256: str, side: int = 640) -> tuple[list[Embedded], str]:
    """Return the picture that one of some names in folders means, preferably the one of a hash, and a remark.

    It may be a group. The longest side is reduced to `side` pixels. Nothing is fetched for a page.
    """
    problem, other = "", None
    for name, folder in dict.fromkeys(places):
        if name and (picture := recorded(name, folder)).is_here():
            try:
                files, found = picture.read()
                images = [_embedded(decode_picture(shown, file, side)[0], side) for shown, file in files]
            except PictureError as error:
                problem = problem or str(error)
                continue
            if not sha256 or found == sha256:
                return images, ""
            other = other or images
    return (other, CHANGED) if other else ([], problem or MISSING)


def _embedded(image: Image.Image, side: int) -> Embedded:
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    data = io.BytesIO()
    image.save(data, "WEBP", quality=80, method=2)  # of JPEG's size 60 %; a better method takes twice as long for 4 %
    return "data:image/webp;base64," + base64.b64encode(data.getvalue()).decode(), *image.size


# --- traces

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
        groundings: list[float | None] = [None] * len(tokens)  # of the token's word, if it has content
        for _, word in telling:
            for step in _own_steps(trace, [word]):
                groundings[step] = word.grounding
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
            about = f"{label(token).strip()}: delta {token.delta:+.2f}, KL {token.kl:.3f}"
            self.pieces.append((" " * (len(html) - len(text)), text, marks, about))
            rows.append(_row_of(token, grounding, thing))
        known = [(grounding, step) for step, grounding in enumerate(groundings) if grounding is not None]
        self.data = {"first": min(known)[1] if known else 0, "tokens": rows}


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
        steps = []
        for start, stop in claim.spans:
            if own := _own_steps(trace, [word for word in end.words if word.start < stop and word.end > start]):
                steps.append((own[0], own[-1] + 1))
        things.append(Thing(claim, doubt(claim.support, float(end.verify["min_support"])), steps))
    return sorted(things, key=lambda thing: thing.claim.support)


def _settings(trace: TracedText) -> dict[str, str]:
    run, end, settings = trace.run, trace.end, dict[str, str]()
    if run is not None:
        drawn = f"temperature {run.temperature:g}, top-p {run.top_p:g}, seed {run.seed}"
        sampling = f"{drawn if run.temperature else 'greedy'}, at most {run.max_new_tokens} tokens"
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
        ended, seconds = _FINISH[end.finish_reason], end.duration_ms / 1000
        settings["Finished"] = f"{ended}; {end.output_tokens} tokens, {seconds:.1f} s"
    return {name: value for name, value in settings.items() if value}


def _row_of(token: Token, grounding: float | None, thing: Thing | None) -> dict[str, Any]:
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


# --- a gallery of records

# Longest side of the pictures, by the number of records: 15 MB for 500 photographs, 40 MB for 3,000, 45 MB for 10,000.
_SIDES = ((500, 640), (3_000, 320), (math.inf, 160))
_NUMBER = re.compile(r"#\d+$")  # of a text about a picture that has several

Entry = dict[str, Any]  # a record, ready for the page's script


def gallery_of(
    path: Path, other: Path | None, limit: int | None, on_picture: Callable[[int, int], None]
) -> tuple[dict[str, Any], str, tuple[str, ...]]:
    """Read records and their pictures, and return the values for the template, `shows` and `notes` as in `Page`.

    For arguments and errors see `make_page`. `place`, by which corrections are kept, stands for the file's path.
    """
    file, names, notes = RecordFile(path), (path.name, ""), list[str]()
    if other is None:
        pairs: list[tuple[Record, Record | None]] = [(file[start], None) for start in file.newest()]
    else:
        second = RecordFile(other)
        places, rest = file.paired(second)
        pairs = [(file[start], None if partner < 0 else second[partner]) for start, partner in places]
        notes += [f"left out: {len(rest):,} that only the other run has"] if len(rest) else []
        methods = str(file[0]["method"]), str(second[0]["method"])
        names = methods if methods[0] != methods[1] else (path.name, other.name)
    entries = []
    for record, partner in pairs:
        try:
            entries.append(_entry(record) if other is None else _compared(record, partner))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            name = one_line(str(record["file_name"]))
            raise DataError(f"{path}: the record of {name} is not as sira writes it: {error!r}") from error
    prompts = {entry["prompt"] for entry in entries}
    if len(prompts) == 1:
        entries = [entry | {"prompt": ""} for entry in entries]
    looks = {record["verify"]["min_support"] for record, _ in pairs if _objects(record)}
    doubts = [_rank(entry, min(looks, default=DOUBTED)) for entry in entries]
    chosen = sorted(sorted(range(len(entries)), key=doubts.__getitem__)[:limit])
    pictures = _pictures([pairs[number][0] for number in chosen], path.parent, on_picture)
    shown = zip(chosen, pictures, strict=True)
    entries = [entries[number] | {"note": note, "rank": doubts[number]} for number, (_, note) in shown]
    ranked = "support" if looks else "warnings" if any(entry["warnings"] for entry in entries) else ""
    first, alpha = pairs[0][0], f"{ALPHA} = {pairs[0][0]['alpha']}"
    method = f"{first['method']}, K = {first['k']} of {first['layers']}, {alpha}" if first["alpha"] else first["method"]
    about = [str(first["preset"] or first["model"]), str(method)]
    about += [f"“{prompt}”" for prompt in prompts if len(prompts) == 1]
    place = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]
    gallery = {
        "content": {"place": place, "names": names, "entries": entries},
        "names": names,
        "pictures": [uris for uris, _ in pictures],
        "about": " · ".join(about),
        "score": "support" if looks else "grounding" if any(entry["marks"] for entry in entries) else "",
        "ranked": ranked,
        "check": _check_command(path, first),
        "thresholds": " or ".join(f"{threshold:g}" for threshold in sorted(looks or {DOUBTED})),
    }
    if not looks and gallery["check"]:
        notes.insert(0, f"without a second look: {gallery['check']} tells which objects are to doubt")
    if missing := sum(not uris for uris, _ in pictures):
        notes.insert(0, f"without their picture: {missing:,} (the cards say why)")
    most = f", the most doubtful of {len(pairs):,}" if len(chosen) < len(pairs) else ""
    return gallery, f"{len(chosen):,} record{'s' * (len(chosen) != 1)}{most}", tuple(notes)


def _rank(entry: Entry, threshold: float) -> float:
    """Return the place of a record in the order of doubt: its least support; a warning counts as the threshold."""
    support = 2.0 if entry["support"] is None else float(entry["support"])
    return min(support, threshold) if entry["warnings"] else support


def _check_command(path: Path, record: Record) -> str:
    """Return the command that gives the captions of a file a second look; empty for records of another kind."""
    if record["schema"] != "sira.caption/1" or record.get("json_schema"):
        return ""
    preset = str(record["preset"])
    named = f" -p {preset}" if preset in presets.available() and preset != presets.DEFAULT else ""
    return f"sira check {one_line(str(path))}{named} -o {one_line(str(path.with_name('checks.jsonl')))}"


def _compared(record: Record, partner: Record | None) -> Entry:
    """Return a record and that of the other run, each with the places of words that the other lacks."""
    if partner is None:
        return _entry(record) | {"other": None}
    only: tuple[list[tuple[int, int]], list[tuple[int, int]]] = [], []
    ends = [0, 0]
    for equal, *pieces in differences(str(record["text"]), str(partner["text"])):
        for side, piece in enumerate(pieces):
            start, ends[side] = ends[side] + len(piece) - len(piece.lstrip()), ends[side] + len(piece)
            if piece.strip() and not equal:
                only[side].append((start, ends[side]))
    return _entry(record) | {"only": only[0], "other": _text(partner) | {"only": only[1]}}


def _entry(record: Record) -> Entry:
    return {
        "name": record_name(record),
        "file_name": str(record["file_name"]),
        "key": str(record["key"]),
        "prompt": str(record["prompt"]),
        "support": min((each["support"] for each in _objects(record)), default=None),
        "warnings": [str(warning) for warning in record.get("warnings") or ()],
        **_text(record),
    }


def _text(record: Record) -> Entry:
    """Return a record's text, its error, its doubtful words, and marks of them: start, end, degree, title."""
    text, doubts = str(record["text"]), list[tuple[str, float, int, Sequence[Sequence[int]]]]()
    if objects := _objects(record):
        least = record["verify"]["min_support"]
        doubts += [(each["thing"], each["support"], doubt(each["support"], least), each["spans"]) for each in objects]
    elif record.get("verify") is None:
        for word in filter(lambda word: says_something(word["word"]), record.get("words") or ()):
            core = bare(word["word"])
            start = word["start"] + word["word"].index(core)
            doubts.append((core, word["grounding"], doubt(word["grounding"]), [(start, start + len(core))]))
    doubts = sorted((each for each in doubts if each[2]), key=lambda each: each[1])
    titled = [(f"{name} {score:.2f}", degree, spans) for name, score, degree, spans in doubts]
    marks = [(start, end, degree, title) for title, degree, spans in titled for start, end in spans]
    if not all(0 <= start < end <= len(text) for start, end, *_ in marks):
        raise ValueError("places outside the text")
    error = str(record["error"] or "failed") if is_failure(record) else ""
    return {"text": text, "error": error, "unsure": [title for title, *_ in titled], "marks": marks}


def _objects(record: Record) -> list[Any]:
    """Return the objects of a second look; none without one."""
    objects = [*(record.get("objects") or ())] if record.get("verify") else []
    if not all(0 <= each["support"] <= 1 for each in objects):
        raise ValueError("a support is not from 0 to 1")
    return objects


def _pictures(records: Sequence[Record], folder: Path, on_picture: Callable[[int, int], None]) -> list[tuple[str, str]]:
    """Return the `data:` URIs of each record's picture, and a note about it."""
    side, found = next(side for most, side in _SIDES if len(records) <= most), list[tuple[str, str]]()

    def shown(record: Record) -> tuple[str, str]:
        name = str(record["file_name"])
        places = ((name, folder), (_NUMBER.sub("", name), folder))
        images, note = find_picture(places, str(record["image_sha256"]), side)
        return " ".join(uri for uri, *_ in images), note

    pool = ThreadPoolExecutor(os.cpu_count(), "sira-picture")
    try:
        for each in pool.map(shown, records):
            found.append(each)
            on_picture(len(found), len(records))
    finally:
        pool.shutdown(cancel_futures=True)
    return found
