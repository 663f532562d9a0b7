"""Records of captions, answers or checks as a gallery: small pictures with their texts, the doubtful first."""

from __future__ import annotations

import hashlib
import math
import os
import re
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sira_cli.analysis.compare import by_picture, differences
from sira_cli.analysis.doubt import DOUBTED, bare, doubt, says_something
from sira_cli.analysis.page.pictures import small
from sira_cli.analysis.record_file import WITH_CHECKS, Record, RecordFile, name_of
from sira_cli.errors import DataError, PictureError
from sira_cli.pictures.names import one_line
from sira_cli.pictures.opening import decode_picture
from sira_cli.pictures.sources import recorded

# Longest side of the pictures, by the number of records: 15 MB for 500 photographs, 40 MB for 3,000, 45 MB for 10,000.
_SIDES = ((500, 640), (3_000, 320), (math.inf, 160))
_NUMBER = re.compile(r"#\d+$")  # of a text about a picture that has several
_CHANGED = "The picture was replaced or changed since (its sha256 differs)."

Entry = dict[str, Any]  # a record, ready for the page's script
Source = tuple[str, str]  # name and sha256 of a record's picture


@dataclass(frozen=True)
class Gallery:
    """A gallery of records.

    Attributes:
        entries: the shown records, in the order of the file.
        pictures: `data:` URIs of each one's picture, or of those of a group, separated by spaces.
        place: stands for the file, without its path: corrections are kept by it.
        names: what this run and the other are called; the latter is empty without one.
        about: the settings, in a line.
        score: by which words are to doubt: `support` of a second look, or `grounding`; empty without one.
        thresholds: below which they are.
        total: number of records in the file.
        only_other: number of pictures in the other run only.
    """

    entries: list[Entry]
    pictures: list[str]
    place: str
    names: tuple[str, str]
    about: str
    score: str
    thresholds: str
    total: int
    only_other: int

    @property
    def shows(self) -> str:
        """Its content in words."""
        chosen = f"the most doubtful of {self.total:,}" if len(self.entries) < self.total else ""
        return f"{len(self.entries):,} record{'s' * (len(self.entries) != 1)}{', ' * bool(chosen)}{chosen}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What is missing."""
        missing = self.pictures.count("")
        return (
            *([f"without their picture: {missing:,} (the cards say why)"] if missing else []),
            *([f"left out: {self.only_other:,} that only the other run has"] if self.only_other else []),
        )


def gallery_of(path: Path, other: Path | None, limit: int | None, on_picture: Callable[[int, int], None]) -> Gallery:
    """Read records and their pictures; for arguments and errors see `make_page`."""
    others: dict[int, Record] = {}
    if other is None:
        file = RecordFile(path, WITH_CHECKS)
        records = {number: file[number] for number in file.newest("name")[1].tolist()}
    else:
        records, others = by_picture(path, other, WITH_CHECKS)
    entries = []
    for key, record in records.items():
        try:
            entries.append(_entry(record) if other is None else _compared(record, others.get(key)))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            name = one_line(str(record["file_name"]))
            raise DataError(f"{path}: the record of {name} is not as sira writes it: {error!r}") from error
    prompts = {entry["prompt"] for entry in entries}
    if len(prompts) == 1:
        for entry in entries:
            entry["prompt"] = ""
    looks = [record["verify"]["min_support"] for record in records.values() if _objects(record)]
    sources = [(str(record["file_name"]), str(record["image_sha256"])) for record in records.values()]
    chosen = sorted(sorted(range(len(entries)), key=lambda number: _order(entries[number]))[:limit])
    pictures = _pictures([sources[number] for number in chosen], path.parent, on_picture)
    first = next(iter(records.values()))
    return Gallery(
        [entries[number] | {"note": note} for number, (_, note) in zip(chosen, pictures, strict=True)],
        [uris for uris, _ in pictures],
        hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16],
        (path.name, "") if other is None else _names(path, first, other, next(iter(others.values()))),
        _about(first, prompts),
        "support" if looks else "grounding" if any(entry["marks"] for entry in entries) else "",
        " or ".join(f"{threshold:g}" for threshold in sorted({*looks} or {DOUBTED})),
        len(entries),
        len(others.keys() - records.keys()),
    )


def _names(path: Path, record: Record, other: Path, partner: Record) -> tuple[str, str]:
    """Return the names of two runs: their methods, or if these are the same, their files."""
    methods = str(record["method"]), str(partner["method"])
    return methods if methods[0] != methods[1] else (path.name, other.name)


def _compared(record: Record, partner: Record | None) -> Entry:
    """Return a record and that of the other run, each with the places of words that the other lacks."""
    if partner is None:
        return _entry(record) | {"other": None}
    only, only_other = _only(str(record["text"]), str(partner["text"]))
    return _entry(record) | {"only": only, "other": _said(partner) | {"only": only_other}}


def _entry(record: Record) -> Entry:
    supports = [each["support"] for each in _objects(record)]
    return {
        "name": name_of(record),
        "file_name": str(record["file_name"]),
        "key": str(record["key"]),
        "prompt": str(record["prompt"]),
        "support": min(supports, default=None),
        **_said(record),
    }


def _said(record: Record) -> Entry:
    """Return a record's text, its error, its doubtful words, and marks of them: start, end, degree, title."""
    text, doubts = str(record["text"]), list[tuple[str, float, int, Sequence[Sequence[int]]]]()
    if objects := _objects(record):
        threshold = record["verify"]["min_support"]
        doubts += [
            (each["thing"], each["support"], doubt(each["support"], threshold), each["spans"]) for each in objects
        ]
    elif record.get("verify") is None:
        for word in filter(lambda word: says_something(word["word"]), record.get("words") or ()):
            core = bare(word["word"])
            start = word["start"] + word["word"].index(core)
            doubts.append((core, word["grounding"], doubt(word["grounding"]), [(start, start + len(core))]))
    doubts = sorted((each for each in doubts if each[2]), key=lambda each: each[1])
    marks = [
        (start, end, degree, f"{name} {score:.2f}") for name, score, degree, spans in doubts for start, end in spans
    ]
    if not all(0 <= start < end <= len(text) for start, end, *_ in marks):
        raise ValueError("places outside the text")
    return {
        "text": text,
        "error": str(record["error"] or "failed") if record["status"] != "ok" else "",
        "unsure": [f"{name} {score:.2f}" for name, score, *_ in doubts],
        "marks": marks,
    }


def _objects(record: Record) -> list[Any]:
    """Return the objects of a second look; none without one."""
    objects = [*(record.get("objects") or ())] if record.get("verify") else []
    if not all(0 <= each["support"] <= 1 for each in objects):
        raise ValueError("a support is not from 0 to 1")
    return objects


def _only(text: str, other: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return where each of two texts has words that the other lacks."""
    found: tuple[list[tuple[int, int]], list[tuple[int, int]]] = [], []
    ends = [0, 0]
    for stretch in differences(text, other):
        for side, piece in enumerate((stretch.a, stretch.b)):
            start, ends[side] = ends[side] + len(piece) - len(piece.lstrip()), ends[side] + len(piece)
            if piece.strip() and not stretch.equal:
                found[side].append((start, ends[side]))
    return found


def _order(entry: Entry) -> tuple[bool, float]:
    """Return the place of a record among others: the lowest support first, those without a second look last."""
    return entry["support"] is None, entry["support"] or 0.0


def _about(record: Record, prompts: set[str]) -> str:
    alpha = f"\N{GREEK SMALL LETTER ALPHA} = {record['alpha']}"
    method = f"{record['method']}, K = {record['k']} of {record['layers']}, {alpha}"
    parts = [str(record["preset"] or record["model"]), method if record["alpha"] else str(record["method"])]
    return " · ".join([*parts, *(f"“{prompt}”" for prompt in prompts if len(prompts) == 1)])


def _pictures(sources: Sequence[Source], folder: Path, on_picture: Callable[[int, int], None]) -> list[tuple[str, str]]:
    """Return the `data:` URIs of each record's picture, and a note about it."""
    side = next(side for most, side in _SIDES if len(sources) <= most)
    pool, found = ThreadPoolExecutor(os.cpu_count(), "sira-picture"), list[tuple[str, str]]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's remarks on odd metadata
        try:
            for each in pool.map(lambda source: _picture(source, folder, side), sources):
                found.append(each)
                on_picture(len(found), len(sources))
        finally:
            pool.shutdown(cancel_futures=True)
    return found


def _picture(source: Source, folder: Path, side: int) -> tuple[str, str]:
    name, sha256 = source
    names = dict.fromkeys((name, _NUMBER.sub("", name)))
    picture = next((one for one in (recorded(each, folder) for each in names) if one.is_here()), None)
    if picture is None:  # nothing is fetched for a page
        return "", "The picture was not found: put it where the record says, and make the page again."
    try:
        data = picture.read()
        uris = [
            small(shown, decode_picture(shown, content, side)[0], side).uri for shown, content in picture.files(data)
        ]
        return " ".join(uris), "" if picture.digest(data) == sha256 or not sha256 else _CHANGED
    except PictureError as error:
        return "", str(error)
