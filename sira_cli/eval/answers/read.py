"""Answers read from files: records of sira, or files of other tools."""

from __future__ import annotations

import glob
import os.path
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sira_cli.errors import DataError, SettingsError
from sira_cli.eval.answers.names import by_method, labels
from sira_cli.eval.answers.rows import holds_splits
from sira_cli.eval.answers.texts import Answers, UnitTexts
from sira_cli.eval.base import ONE_WORD, Benchmark
from sira_cli.eval.settings import SAME, settings_in
from sira_cli.pictures.rows import brief, read_rows, some, text_of


@dataclass(frozen=True)
class AnswerFiles:
    """Files with one method's answers; `own`: they are records that sira wrote."""

    label: str
    paths: tuple[Path, ...]
    own: bool


def find_files(given: Sequence[str], questions: Sequence[Path] = ()) -> list[AnswerFiles]:
    """Return the files that `--answers` names, by method."""
    own: dict[str, list[Path]] = {}
    labelled: dict[str, list[Path]] = {}
    rest: list[Path] = []
    for text in given:
        label, paths = _split(text)
        files = {file: _method(file) for path in paths for file in ([path] if path.is_file() else _records(path))}
        for file, method in files.items():
            if method is not None:
                own.setdefault(label or method, []).append(file)
            elif label:
                labelled.setdefault(label, []).append(file)
            else:
                rest.append(file)
    whole = [path for path in rest if len(questions) > 1 and holds_splits(path)]  # each answers all questions
    rest = [path for path in rest if path not in whole]
    if questions and len(rest) % len(questions):
        raise SettingsError(
            f"`answers=` {rest[-1]}: {len(rest)} files of answers to {len(questions)} files of questions: "
            "give one for each, in the same order"
        )
    methods = [*by_method(rest, questions), *((path,) for path in whole)]
    sources = [AnswerFiles(label, tuple(paths), True) for label, paths in own.items()]
    sources += [AnswerFiles(label, tuple(paths), False) for label, paths in labelled.items()]
    sources += [AnswerFiles(name, paths, False) for name, paths in zip(labels(methods), methods, strict=True)]
    names = [source.label for source in sources]
    for source in sources:
        if names.count(source.label) > 1:
            raise SettingsError(f"`answers=` {source.paths[0]}: {source.label!r} names two methods: use LABEL=FILE")
    return sorted(sources, key=lambda source: source.label != "greedy")  # greedy first: others are compared with it


def read_each(benchmark: Benchmark, sources: Sequence[AnswerFiles], controls: bool = True) -> list[Answers]:
    """Read each method's answers."""
    first, *others = [read_answers(benchmark, source) for source in sources]
    decoded = tuple(first.settings.get(name) for name in ("method", "temperature", "num_beams"))
    apc = controls and first.name == "greedy" and decoded == ("greedy", 0, 1)
    stand_in = [first.under("greedy+apc")] if apc and "greedy+apc" not in (one.name for one in others) else []
    return [first, *stand_in, *others]


def read_answers(benchmark: Benchmark, source: AnswerFiles) -> Answers:
    """Read one method's answers."""
    if source.own:
        return _own(benchmark, source)
    return Answers(source.label, benchmark.read(source.paths))


def _own(benchmark: Benchmark, source: AnswerFiles) -> Answers:
    unit_of = _Units(benchmark)
    found = {part.name: UnitTexts() for part in benchmark.parts}
    answers = Answers(source.label)
    places: dict[tuple[str, str], tuple[Path, str]] = {}
    for path in source.paths:
        for where, row in read_rows(path):
            configuration = settings_in(row)
            answers.settings = answers.settings or configuration
            other = next((name for name in SAME if configuration[name] != answers.settings[name]), None)
            if other is not None:
                here, before = brief(configuration[other]), brief(answers.settings[other])
                raise DataError(
                    f"{where}: {other} is {here} here and {before} before: label the files to compare: LABEL=FILE"
                )
            if (key := unit_of(row)) is None:
                continue  # it answers other question files
            name, unit = key
            ok = row.get("status", "ok") == "ok"
            text = text_of(where, row, "text" if ok else "error")
            if ok and found[name].texts.get(unit, text) != text:
                raise DataError(
                    f"{where}: {brief(unit, 120)} has another answer in {places[key][1]}: "
                    "keep one of the two, or finish the run"
                )
            if not ok and key in places and places[key][0] != path:
                continue  # a failure does not replace an answer, in whatever order the files come
            places[key] = path, where
            found[name].add(unit, {"status": "ok" if ok else "error", "text": text, "error": text})
    for part in benchmark.parts:
        one = found[part.name]
        if not one.texts and not one.errors:
            continue
        missing = [asked for asked in part.asks if asked.unit not in one.texts and asked.unit not in one.errors]
        if missing:
            raise DataError(
                f"{source.paths[0]}: no answer to {brief(missing[0].unit, 120)} and {len(missing) - 1} more of "
                f"{len(part.asks)}: is it finished, and are all shards given?"
            )
        answers.add(benchmark, part, one)
    if not answers.texts:
        files = some(source.paths, 3, 1_000)
        raise DataError(f"{files}: no record answers a question of {benchmark.name}")
    return answers


class _Units:
    """Tells which part and unit a record belongs to."""

    def __init__(self, benchmark: Benchmark) -> None:
        self._units = {part.name: {ask.unit for ask in part.asks} for part in benchmark.parts}
        # The part that takes answers made with any settings, such as captions of any length.
        self._any = next((part.name for part in benchmark.parts if not part.settings), "")
        self._about: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
        for part in benchmark.parts:
            for ask in part.asks:
                known = self._about.setdefault((part.task, Path(ask.picture).name), [])
                known.append((ask.prompt.removesuffix(ONE_WORD), part.name, ask.unit))

    def __call__(self, row: dict[str, Any]) -> tuple[str, str] | None:
        """Look up a record by its id, or, as in records of `sira caption`, by picture and prompt."""
        if "id" in row:
            part = str(row.get("part"))
            if part not in self._units:
                part = self._any
            return (part, str(row["id"])) if str(row["id"]) in self._units.get(part, ()) else None
        task = str(row.get("schema")).removeprefix("sira.").partition("/")[0]
        about = self._about.get((task, Path(str(row.get("file_name"))).name), [])
        if task == "ask":
            about = [known for known in about if known[0] in str(row.get("prompt"))]
        _, part, unit = max(about, key=lambda known: len(known[0]), default=("", "", ""))
        return (part, unit) if unit else None


def _split(text: str) -> tuple[str, list[Path]]:
    """Return the label and the files. Behind `LABEL=` a shell does not expand a glob."""
    label, found, path = text.partition("=")
    if not found or os.path.lexists(text):
        label, path = "", text
    return label, expand("answers", path)


def expand(parameter: str, path: str) -> list[Path]:
    """Return a file or folder, or the files that fit a pattern, in order."""
    paths = [path] if os.path.lexists(path) else sorted(glob.glob(path))  # noqa: PTH207 (a Path takes no absolute one)
    if not paths:
        raise SettingsError(f"`{parameter}=` {path}: no such file")
    return [Path(path) for path in paths]


def _records(folder: Path) -> list[Path]:
    """Return the files in a folder that hold records of sira."""
    files = [file for file in sorted(folder.glob("*.jsonl")) if _method(file) is not None]
    if not files:
        raise SettingsError(f"`answers=` {folder}: no file in this folder holds records of sira: name the files")
    return files


def _method(path: Path) -> str | None:
    """Return the method of a file of sira's records, `sira+guide` with a second look; None for other files."""
    _, row = next(read_rows(path), ("", {}))
    if not str(row.get("schema", "")).startswith("sira."):
        return None
    mode = (row.get("verify") or {}).get("mode", "flag")
    return f"{row.get('method', '')}{f'+{mode}' * (mode != 'flag')}"
