"""Records of captions, answers or checks as a gallery: small pictures with their texts, the doubtful first."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sira_cli.analysis.compare import differences
from sira_cli.analysis.page.embedding import find_picture
from sira_cli.analysis.record_file import Record, RecordFile, name_of
from sira_cli.errors import DataError
from sira_cli.look.claims import DOUBTED, bare, doubt, says_something
from sira_cli.pictures.names import one_line

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
    supports = [math.inf if entry["support"] is None else entry["support"] for entry in entries]
    chosen = sorted(sorted(range(len(entries)), key=supports.__getitem__)[:limit])
    pictures = _pictures([pairs[number][0] for number in chosen], path.parent, on_picture)
    entries = [entries[number] | {"note": note} for number, (_, note) in zip(chosen, pictures, strict=True)]
    place = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]
    gallery = {
        "content": {"place": place, "names": names, "entries": entries},
        "names": names,
        "pictures": [uris for uris, _ in pictures],
        "about": _about(pairs[0][0], prompts),
        "score": "support" if looks else "grounding" if any(entry["marks"] for entry in entries) else "",
        "thresholds": " or ".join(f"{threshold:g}" for threshold in sorted(looks or {DOUBTED})),
    }
    if missing := sum(not uris for uris, _ in pictures):
        notes.insert(0, f"without their picture: {missing:,} (the cards say why)")
    most = f", the most doubtful of {len(pairs):,}" if len(chosen) < len(pairs) else ""
    return gallery, f"{len(chosen):,} record{'s' * (len(chosen) != 1)}{most}", tuple(notes)


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
        "name": name_of(record),
        "file_name": str(record["file_name"]),
        "key": str(record["key"]),
        "prompt": str(record["prompt"]),
        "support": min((each["support"] for each in _objects(record)), default=None),
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
    error = str(record["error"] or "failed") if record["status"] != "ok" else ""
    return {"text": text, "error": error, "unsure": [title for title, *_ in titled], "marks": marks}


def _objects(record: Record) -> list[Any]:
    """Return the objects of a second look; none without one."""
    objects = [*(record.get("objects") or ())] if record.get("verify") else []
    if not all(0 <= each["support"] <= 1 for each in objects):
        raise ValueError("a support is not from 0 to 1")
    return objects


def _about(record: Record, prompts: set[str]) -> str:
    alpha = f"\N{GREEK SMALL LETTER ALPHA} = {record['alpha']}"
    method = f"{record['method']}, K = {record['k']} of {record['layers']}, {alpha}"
    parts = [str(record["preset"] or record["model"]), method if record["alpha"] else str(record["method"])]
    return " · ".join([*parts, *(f"“{prompt}”" for prompt in prompts if len(prompts) == 1)])


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
