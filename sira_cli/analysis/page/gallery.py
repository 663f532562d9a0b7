"""The gallery of a page: the cards of records, the doubtful first, ready for the template and its script."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sira_cli.analysis.compare import differences
from sira_cli.analysis.page.cards import ALPHA
from sira_cli.analysis.page.embedded import find_picture
from sira_cli.analysis.record_file import Record, RecordFile
from sira_cli.errors import DataError
from sira_cli.look.claims import DOUBTED, bare, doubt, says_something
from sira_cli.models import presets
from sira_cli.pictures.names import one_line
from sira_cli.pictures.records import is_failure, record_name

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
    notes: list[str] = []
    pairs, names = _paired(path, other, notes)
    records = [record for record, _ in pairs]
    entries = [_checked_entry(path, record, partner, alone=other is None) for record, partner in pairs]
    prompts = {entry["prompt"] for entry in entries}
    looks = {record["verify"]["min_support"] for record in records if _objects(record)}
    threshold = min(looks, default=DOUBTED)
    for entry in entries:
        entry["rank"] = _rank(entry, threshold)
        if len(prompts) == 1:
            entry["prompt"] = ""
    doubtful_first = sorted(range(len(entries)), key=lambda number: float(entries[number]["rank"]))
    chosen = sorted(doubtful_first[:limit])
    shown = [entries[number] for number in chosen]
    pictures = []
    embedded = _pictures([records[number] for number in chosen], path.parent, on_picture)
    for entry, (uris, note) in zip(shown, embedded, strict=True):
        pictures.append(uris)
        entry["note"] = note
    command = _check_command(path, records[0])
    if command and not looks:
        notes.insert(0, f"without a second look: {command} tells which objects are to doubt")
    missing = pictures.count("")
    if missing:
        notes.insert(0, f"without their picture: {missing:,} (the cards say why)")
    gallery = {
        "content": {"place": _place(path), "names": names, "entries": shown},
        "names": names,
        "pictures": pictures,
        "about": _about(records[0], prompts),
        **_scored_by(entries, looks=bool(looks)),
        "check": command,
        "thresholds": " or ".join(f"{threshold:g}" for threshold in sorted(looks or {DOUBTED})),
    }
    shows = f"{len(chosen):,} record" if len(chosen) == 1 else f"{len(chosen):,} records"
    if len(chosen) < len(pairs):
        shows += f", the most doubtful of {len(pairs):,}"
    return gallery, shows, tuple(notes)


def _paired(
    path: Path, other: Path | None, notes: list[str]
) -> tuple[list[tuple[Record, Record | None]], tuple[str, str]]:
    """Return each record with that of the other run, and the names of the two runs; add a note on what is left out."""
    file = RecordFile(path)
    if other is None:
        return [(file[start], None) for start in file.newest()], (path.name, "")
    second = RecordFile(other)
    places, rest = file.paired(second)
    if len(rest):
        notes.append(f"left out: {len(rest):,} that only the other run has")
    pairs = [(file[start], None if partner < 0 else second[partner]) for start, partner in places]
    method = str(file[0]["method"])
    other_method = str(second[0]["method"])
    if method == other_method:
        return pairs, (path.name, other.name)
    return pairs, (method, other_method)


def _checked_entry(path: Path, record: Record, partner: Record | None, *, alone: bool) -> Entry:
    try:
        return _entry(record) if alone else _compared(record, partner)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        name = one_line(str(record["file_name"]))
        raise DataError(f"{path}: the record of {name} is not as sira writes it: {error!r}") from error


def _place(path: Path) -> str:
    """Return a name for a file's path."""
    return hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]


def _about(record: Record, prompts: Collection[str]) -> str:
    """Return the heading: the model, the method, and the prompt if all records have one."""
    method = str(record["method"])
    if record["alpha"]:
        method += f", K = {record['k']} of {record['layers']}, {ALPHA} = {record['alpha']}"
    about = [str(record["preset"] or record["model"]), method]
    if len(prompts) == 1:
        about.append("“{}”".format(*prompts))
    return " · ".join(about)


def _scored_by(entries: Sequence[Entry], *, looks: bool) -> dict[str, str]:
    """Return the names of the scores by which words are marked, and records are ranked; empty without any."""
    if looks:
        return {"score": "support", "ranked": "support"}
    marked = any(entry["marks"] for entry in entries)
    warned = any(entry["warnings"] for entry in entries)
    return {"score": "grounding" if marked else "", "ranked": "warnings" if warned else ""}


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
    stretches = differences(str(record["text"]), str(partner["text"]))
    only = _differing((stretch.equal, stretch.a) for stretch in stretches)
    only_other = _differing((stretch.equal, stretch.b) for stretch in stretches)
    return _entry(record) | {"only": only, "other": _text(partner) | {"only": only_other}}


def _differing(pieces: Iterable[tuple[bool, str]]) -> list[tuple[int, int]]:
    """Return the places of a text's words that are not equal, from all its pieces in order."""
    places = []
    end = 0
    for equal, piece in pieces:
        start = end + len(piece) - len(piece.lstrip())
        end += len(piece)
        if piece.strip() and not equal:
            places.append((start, end))
    return places


def _entry(record: Record) -> Entry:
    return {
        "name": record_name(record),
        "file_name": str(record["file_name"]),
        "key": str(record["key"]),
        "prompt": str(record["prompt"]),
        "support": min((claim["support"] for claim in _objects(record)), default=None),
        "warnings": [str(warning) for warning in record.get("warnings") or ()],
        **_text(record),
    }


def _text(record: Record) -> Entry:
    """Return a record's text, its error, its doubtful words, and marks of them: start, end, degree, title."""
    text = str(record["text"])
    unsure = []
    marks = []
    for name, score, degree, spans in sorted(_doubts(record), key=lambda doubted: doubted[1]):
        if not degree:
            continue
        title = f"{name} {score:.2f}"
        unsure.append(title)
        for start, end in spans:
            if not 0 <= start < end <= len(text):
                raise ValueError("places outside the text")
            marks.append((start, end, degree, title))
    error = str(record["error"] or "failed") if is_failure(record) else ""
    return {"text": text, "error": error, "unsure": unsure, "marks": marks}


def _doubts(record: Record) -> Iterator[tuple[str, float, int, Sequence[Sequence[int]]]]:
    """Yield each object of a second look, or without one each word: its name, score, degree of doubt, and places."""
    for claim in _objects(record):
        support = claim["support"]
        yield claim["thing"], support, doubt(support, record["verify"]["min_support"]), claim["spans"]
    if record.get("verify") is not None:
        return
    for word in record.get("words") or ():
        text = word["word"]
        if says_something(text):
            core = bare(text)
            start = word["start"] + text.index(core)
            grounding = word["grounding"]
            yield core, grounding, doubt(grounding), [(start, start + len(core))]


def _objects(record: Record) -> list[Any]:
    """Return the objects of a second look; none without one."""
    if not record.get("verify"):
        return []
    objects = list(record.get("objects") or ())
    for claim in objects:
        if not 0 <= claim["support"] <= 1:
            raise ValueError("a support is not from 0 to 1")
    return objects


def _pictures(records: Sequence[Record], folder: Path, on_picture: Callable[[int, int], None]) -> list[tuple[str, str]]:
    """Return the `data:` URIs of each record's picture, and a note about it."""
    side = next(side for most, side in _SIDES if len(records) <= most)
    pictures: list[tuple[str, str]] = []

    def shown(record: Record) -> tuple[str, str]:
        name = str(record["file_name"])
        places = ((name, folder), (_NUMBER.sub("", name), folder))
        images, note = find_picture(places, str(record["image_sha256"]), side)
        return " ".join(uri for uri, *_ in images), note

    pool = ThreadPoolExecutor(os.cpu_count(), "sira-picture")
    try:
        for picture in pool.map(shown, records):
            pictures.append(picture)
            on_picture(len(pictures), len(records))
    finally:
        pool.shutdown(cancel_futures=True)
    return pictures
