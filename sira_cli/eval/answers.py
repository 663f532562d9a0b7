"""What methods said: read from files of answers, by ask."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sira_cli.errors import SettingsError
from sira_cli.eval.base import Benchmark, Part
from sira_cli.eval.rows import read_rows, text_of
from sira_cli.ledger import CONFIGURATION

SAME = tuple(name for name in CONFIGURATION if name not in ("prompt", "schema", "max_new_tokens"))


@dataclass(frozen=True)
class Failure:
    """A picture about which a method could not be asked, and why."""

    method: str
    part: str
    picture: str
    error: str


@dataclass
class Said:
    """By unit: texts, and why there is none."""

    texts: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def add(self, unit: str, record: dict[str, Any]) -> None:
        """Take what a record says, instead of what an earlier one said."""
        self.texts.pop(unit, None)
        self.errors.pop(unit, None)
        if record["status"] == "ok":
            self.texts[unit] = record["text"]
        else:
            self.errors[unit] = record["error"]


@dataclass
class Answers:
    """One method's answers.

    Attributes:
        name: of the method, or a label.
        texts: by part and ask; those that failed are missing.
        failures: what failed.
        settings: what decided the answers, as far as it is known.
    """

    name: str
    texts: dict[str, dict[str, str]] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)

    def add(self, part: Part, said: Said) -> None:
        """Give every ask of a part the text of its unit."""
        self.texts[part.name] = {ask.id: said.texts[ask.unit] for ask in part.asks if ask.unit in said.texts}
        failed = {ask.picture: said.errors[ask.unit] for ask in part.asks if ask.unit in said.errors}
        self.failures += [Failure(self.name, part.name, picture, error) for picture, error in failed.items()]


@dataclass(frozen=True)
class Source:
    """Files with one method's answers; `own`: records that sira wrote."""

    label: str
    paths: tuple[Path, ...]
    own: bool


def find_sources(given: Sequence[str], at_once: int = 1) -> list[Source]:
    """What `--answers` names, by method.

    Args:
        given: files, `LABEL=FILE`, or folders, which stand for the files of sira's records in them.
        at_once: how many files from elsewhere make up one method's answers, unless they are labelled.

    Raises:
        SettingsError: a file is not there, or cannot be told which method it is of.
    """
    own: dict[str, list[Path]] = {}
    labelled: dict[str, list[Path]] = {}
    rest: list[Path] = []
    for text in given:
        label, path = _split(text)
        files = {file: _method(file) for file in (sorted(path.glob("*.jsonl")) if path.is_dir() else [path])}
        if path.is_dir():
            files = {file: method for file, method in files.items() if method is not None}
            if not files:
                raise SettingsError(f"--answers {path}: no file in this folder holds records of sira: name the files")
        for file, method in files.items():
            if method is not None:
                own.setdefault(label or method, []).append(file)
            elif label:
                labelled.setdefault(label, []).append(file)
            else:
                rest.append(file)
    if len(rest) % at_once:
        raise SettingsError(
            f"--answers {rest[-1]}: {len(rest)} files of answers to {at_once} files of questions: "
            "give one for each, in the same order"
        )
    chunks = [tuple(rest[start : start + at_once]) for start in range(0, len(rest), at_once)]
    sources = [Source(label, tuple(paths), True) for label, paths in own.items()]
    sources += [Source(label, tuple(paths), False) for label, paths in labelled.items()]
    sources += [Source(name, paths, False) for name, paths in zip(_names(chunks), chunks, strict=True)]
    labels = [source.label for source in sources]
    for source in sources:
        if labels.count(source.label) > 1:
            raise SettingsError(f"--answers {source.paths[0]}: {source.label!r} names two methods: use LABEL=FILE")
    return sorted(sources, key=lambda source: source.label != "greedy")  # it is what others are compared with


def read_source(benchmark: Benchmark, source: Source) -> Answers:
    """One method's answers.

    Raises:
        SettingsError: they do not match what the benchmark asks; the message names file and row.
    """
    if source.own:
        return _own(benchmark, source)
    return Answers(source.label, benchmark.read(source.paths))


def own_rows(source: Source) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every record of sira's files, with where it stands.

    Raises:
        SettingsError: a file cannot be read.
    """
    for path in source.paths:
        yield from read_rows(path)


def _own(benchmark: Benchmark, source: Source) -> Answers:
    units = {part.name: {ask.unit for ask in part.asks} for part in benchmark.parts}
    said = {name: Said() for name in units}
    answers = Answers(source.label)
    for where, row in own_rows(source):
        configuration = {name: row.get(name) for name in SAME}
        answers.settings = answers.settings or configuration
        if configuration != answers.settings:
            other = next(name for name in SAME if configuration[name] != answers.settings[name])
            raise SettingsError(
                f"{where}: {other} is {configuration[other]!r} here and {answers.settings[other]!r} before: "
                "label what is to be compared: LABEL=FILE"
            )
        name = str(row.get("part", benchmark.parts[0].name))
        unit = str(row.get("id") or benchmark.unit(row))
        if unit not in units.get(name, ()):
            continue  # of other question files
        row.setdefault("status", "ok")
        text_of(where, row, "text" if row["status"] == "ok" else "error")
        said[name].add(unit, row)
    for part in benchmark.parts:
        one = said[part.name]
        if not one.texts and not one.errors and len(benchmark.parts) > 1:
            continue
        missing = [asked for asked in part.asks if asked.unit not in one.texts and asked.unit not in one.errors]
        if missing:
            raise SettingsError(
                f"{source.paths[0]}: no answer to {missing[0].unit!r} and {len(missing) - 1} more of "
                f"{len(part.asks)}: is it finished, and are all shards given?"
            )
        answers.add(part, one)
    return answers


def _split(text: str) -> tuple[str, Path]:
    label, found, path = text.partition("=")
    if not found or os.path.lexists(text):
        label, path = "", text
    if not os.path.lexists(path):
        raise SettingsError(f"--answers {path}: no such file")
    return label, Path(path)


def _method(path: Path) -> str | None:
    """Of a file of sira's records."""
    _, row = next(read_rows(path), ("", {}))
    own = str(row.get("schema", "")).startswith("sira.")
    return str(row.get("method", "")) if own else None


def _names(chunks: Sequence[tuple[Path, ...]]) -> list[str]:
    """The part of their names that a method's files share; whole paths where that does not tell methods apart."""
    shared = [os.path.commonprefix([path.stem for path in paths]) for paths in chunks]  # noqa: RUF071 (of names)
    names = [name.strip("_-. ") or "answers" for name in shared]
    return [
        name if names.count(name) == 1 else str(paths[0].with_suffix(""))
        for name, paths in zip(names, chunks, strict=True)
    ]
