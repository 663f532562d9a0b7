"""What methods said: read from files of answers, by ask."""

from __future__ import annotations

import glob
import os.path
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sira_cli.errors import SettingsError
from sira_cli.eval.answers.names import by_method, labels
from sira_cli.eval.base import ONE_WORD, Benchmark, Part
from sira_cli.eval.rows import read_rows, text_of
from sira_cli.runs.ledger import CONFIGURATION

# What has to be equal in all records of a method, whatever its part.
SAME = (
    *(name for name in CONFIGURATION if name not in ("prompt", "schema", "max_new_tokens")),
    *("beta", "top_p", "num_beams", "quantization", "dtype", "settings"),
)


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

    def under(self, name: str) -> Answers:
        """The same answers as another method's."""
        failures = [replace(failure, method=name) for failure in self.failures]
        return replace(self, name=name, failures=failures, settings={**self.settings, "method": name})

    def add(self, benchmark: Benchmark, part: Part, said: Said) -> None:
        """Give every ask of a part the text of its unit, as far as it counts."""
        texts = {unit: benchmark.reduce(part, text) for unit, text in said.texts.items()}
        self.texts[part.name] = {ask.id: texts[ask.unit] for ask in part.asks if ask.unit in texts}
        failed = {ask.picture: said.errors[ask.unit] for ask in part.asks if ask.unit in said.errors}
        self.failures += [Failure(self.name, part.name, picture, error) for picture, error in failed.items()]


@dataclass(frozen=True)
class AnswerFiles:
    """Files with one method's answers; `own`: records that sira wrote."""

    label: str
    paths: tuple[Path, ...]
    own: bool


def find_files(given: Sequence[str], questions: Sequence[Path] = ()) -> list[AnswerFiles]:
    """What `--answers` names, by method.

    Args:
        given: files, `LABEL=FILE`, or folders, which stand for the files of sira's records in them.
        questions: files of which each has a file of answers from elsewhere; none if one file answers all there is.

    Raises:
        SettingsError: a file is not there, or cannot be told which method it is of.
    """
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
    if questions and len(rest) % len(questions):
        raise SettingsError(
            f"--answers {rest[-1]}: {len(rest)} files of answers to {len(questions)} files of questions: "
            "give one for each, in the same order"
        )
    methods = by_method(rest, questions)
    sources = [AnswerFiles(label, tuple(paths), True) for label, paths in own.items()]
    sources += [AnswerFiles(label, tuple(paths), False) for label, paths in labelled.items()]
    sources += [AnswerFiles(name, paths, False) for name, paths in zip(labels(methods), methods, strict=True)]
    names = [source.label for source in sources]
    for source in sources:
        if names.count(source.label) > 1:
            raise SettingsError(f"--answers {source.paths[0]}: {source.label!r} names two methods: use LABEL=FILE")
    return sorted(sources, key=lambda source: source.label != "greedy")  # it is what others are compared with


def read_answers(benchmark: Benchmark, source: AnswerFiles) -> Answers:
    """One method's answers.

    Raises:
        SettingsError: they do not match what the benchmark asks; the message names file and row.
    """
    if source.own:
        return _own(benchmark, source)
    return Answers(source.label, benchmark.read(source.paths))


def _own(benchmark: Benchmark, source: AnswerFiles) -> Answers:
    unit_of = _Units(benchmark)
    said = {part.name: Said() for part in benchmark.parts}
    answers = Answers(source.label)
    places: dict[tuple[str, str], tuple[Path, str]] = {}
    for path in source.paths:
        for where, row in read_rows(path):
            configuration = {setting: row.get(setting) for setting in SAME}
            answers.settings = answers.settings or configuration
            if configuration != answers.settings:
                other = next(setting for setting in SAME if configuration[setting] != answers.settings[setting])
                raise SettingsError(
                    f"{where}: {other} is {configuration[other]!r} here and {answers.settings[other]!r} before: "
                    "label what is to be compared: LABEL=FILE"
                )
            if (key := unit_of(row)) is None:
                continue  # of other question files
            name, unit = key
            ok = row.get("status", "ok") == "ok"
            text = text_of(where, row, "text" if ok else "error")
            if ok and said[name].texts.get(unit, text) != text:
                raise SettingsError(
                    f"{where}: {unit!r} has another answer in {places[key][1]}: keep one of the two, or finish the run"
                )
            if not ok and key in places and places[key][0] != path:
                continue  # whatever the order of the files is, an answer stands
            places[key] = path, where
            said[name].add(unit, {"status": "ok" if ok else "error", "text": text, "error": text})
    for part in benchmark.parts:
        one = said[part.name]
        if not one.texts and not one.errors:
            continue
        missing = [asked for asked in part.asks if asked.unit not in one.texts and asked.unit not in one.errors]
        if missing:
            raise SettingsError(
                f"{source.paths[0]}: no answer to {missing[0].unit!r} and {len(missing) - 1} more of "
                f"{len(part.asks)}: is it finished, and are all shards given?"
            )
        answers.add(benchmark, part, one)
    if not answers.texts:
        files = ", ".join(map(str, source.paths))
        raise SettingsError(f"{files}: no record there answers what {benchmark.name} asks")
    return answers


class _Units:
    """Which part and unit a record belongs to."""

    def __init__(self, benchmark: Benchmark) -> None:
        self._units = {part.name: {ask.unit for ask in part.asks} for part in benchmark.parts}
        # The part that takes answers whatever settings they were made with, such as captions of any length.
        self._any = next((part.name for part in benchmark.parts if not part.settings), "")
        self._about: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
        for part in benchmark.parts:
            for ask in part.asks:
                known = self._about.setdefault((part.task, Path(ask.picture).name), [])
                known.append((ask.prompt.removesuffix(ONE_WORD), part.name, ask.unit))

    def __call__(self, row: dict[str, Any]) -> tuple[str, str] | None:
        """By its id; without one, as `sira caption` and `sira ask` write records, by its picture and prompt."""
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
    """The label and the files; after `LABEL=` a shell leaves a glob as it is."""
    label, found, path = text.partition("=")
    if not found or os.path.lexists(text):
        label, path = "", text
    paths = [path] if os.path.lexists(path) else sorted(glob.glob(path))  # noqa: PTH207 (a Path takes no absolute one)
    if not paths:
        raise SettingsError(f"--answers {path}: no such file")
    return label, [Path(path) for path in paths]


def _records(folder: Path) -> list[Path]:
    """The files in a folder that sira wrote."""
    files = [file for file in sorted(folder.glob("*.jsonl")) if _method(file) is not None]
    if not files:
        raise SettingsError(f"--answers {folder}: no file in this folder holds records of sira: name the files")
    return files


def _method(path: Path) -> str | None:
    """Of a file of sira's records."""
    _, row = next(read_rows(path), ("", {}))
    own = str(row.get("schema", "")).startswith("sira.")
    return str(row.get("method", "")) if own else None
