"""The answers of methods: from records of sira, or from files of other tools.

Their rows have the form that a benchmark's official script reads, or are samples of lmms-eval (`--log_samples`): an
object per sample, the answer in `filtered_resps`, ids inside the metrics, all of POPE's splits in one file. Rows may
also be in the list `results` of one object, as pope-audit publishes them.
"""

from __future__ import annotations

import glob
import os.path
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from sira_cli.errors import DataError, SettingsError
from sira_cli.eval.benchmark import ONE_WORD, AnswerFiles, Ask, Benchmark
from sira_cli.pictures.records import is_failure, is_record
from sira_cli.pictures.rows import Row, brief, read_json, read_rows, read_table, some, text_of
from sira_cli.run.records import IN_ALL_PARTS, MAY_BE_OFF

INSIDE = "results"  # the list of rows in a file that is one object
SAMPLE = "filtered_resps"  # the field that only lmms-eval's samples have
ABOUT = ("question_id", "image_id", "question", "category")  # fields of a sample that are read besides its answer


class Deciding(TypedDict):
    """What decides a text and is not in every record of sira: a file of answers has one value of each."""

    beta: float | None
    top_p: float
    num_beams: int
    quantization: str | None
    dtype: str
    settings: str  # a hash of all that decides texts, but for their length, which parts have


# Fields that are equal in all records of a method, in all parts, so that its figures describe one method. The hash
# covers settings that may be off.
SAME = (*IN_ALL_PARTS, *Deciding.__annotations__)


@dataclass(frozen=True)
class FailedAnswer:
    """A picture about which a method gave no answer, and the reason."""

    method: str
    part: str
    picture: str
    error: str


@dataclass
class Answers:
    """One method's answers."""

    name: str  # of the method, or a label
    texts: dict[str, dict[str, str]] = field(default_factory=dict)  # by part and ask; those that failed are missing
    seconds: dict[str, dict[str, float]] = field(default_factory=dict)  # likewise, where every record has its duration
    failures: list[FailedAnswer] = field(default_factory=list)  # the asks that failed
    settings: dict[str, Any] = field(default_factory=dict)  # those that decided the answers, as far as they are known
    taken_from: str = ""  # the method whose answers were reused, because this one cannot differ

    def under(self, name: str) -> Answers:
        """Return the same answers as another method's."""
        failures = [replace(failure, method=name) for failure in self.failures]
        settings = {**self.settings, "method": name}
        return replace(self, name=name, failures=failures, settings=settings, taken_from=self.name)


def settings_in(record: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that are equal in all records of a method, from one record; None for missing ones."""
    settings = {name: record.get(name) for name in SAME}
    for name in MAY_BE_OFF:
        if record.get(name):
            settings[name] = record[name]
    return settings


# Files.


def find_files(given: Sequence[str], questions: Sequence[Path] = (), first: str | None = None) -> list[AnswerFiles]:
    """Return the files that `--answers` names, by method; those of `first`, or greedy's, first."""
    named: dict[tuple[str, bool], list[Path]] = {}  # by label, and whether they are records of sira
    rest: list[Path] = []
    for text in given:
        label, path = _split_label(text)
        for place in expand("answers", path):
            for file in [place] if place.is_file() else _records(place):
                method = _method(file)
                if label or method is not None:
                    named.setdefault((label or method or "", method is not None), []).append(file)
                else:
                    rest.append(file)
    sources = []
    for (label, own), paths in named.items():
        sources.append(AnswerFiles(label, tuple(paths), own))
    for paths in _sets(rest, questions):
        sources.append(AnswerFiles(_shared_name(paths), tuple(paths), own=False))
    labels = [source.label for source in sources]
    for source in sources:
        if labels.count(source.label) > 1:
            raise SettingsError(f"`answers=` {source.paths[0]}: {source.label!r} names two methods: use LABEL=FILE")
    if first not in (None, *labels):
        raise SettingsError(f"`against=` {first}: is not among the answers: {', '.join(labels)}")
    return sorted(sources, key=lambda source: (source.label != (first or "greedy"), not source.own))


def _split_label(text: str) -> tuple[str, str]:
    """Return the label and the path of LABEL=PATH; a path that exists has no label."""
    label, equals, path = text.partition("=")
    if not equals or os.path.lexists(text):
        return "", text
    return label, path


def _sets(paths: Sequence[Path], questions: Sequence[Path]) -> list[list[Path]]:
    """Return the files of each method: one that answers all files of questions, or one for each of them, in order."""
    whole = []
    parts = []
    for path in paths:
        if len(questions) > 1 and holds_splits(path):
            whole.append([path])
        else:
            parts.append(path)
    size = len(questions) or 1
    if len(parts) % size:
        raise SettingsError(
            f"`answers=` {parts[-1]}: {len(parts)} files of answers to {len(questions)} files of questions: "
            "give one for each, in the same order"
        )
    return [parts[start : start + size] for start in range(0, len(parts), size)] + whole


def _shared_name(paths: Sequence[Path]) -> str:
    """Return the beginning that the names of files share, or `answers`."""
    shared = os.path.commonprefix([path.stem for path in paths])  # noqa: RUF071 (stems are no paths)
    return shared.strip("_-. ") or "answers"


def expand(parameter: str, path: str) -> list[Path]:
    """Return a file or folder, or the files that fit a pattern; after `LABEL=` a shell does not expand it."""
    paths = [path] if os.path.lexists(path) else sorted(glob.glob(path))  # noqa: PTH207 (a Path takes no absolute one)
    if not paths:
        raise SettingsError(f"`{parameter}=` {path}: no such file")
    return [Path(path) for path in paths]


def _records(folder: Path) -> list[Path]:
    files = [file for file in sorted(folder.glob("*.jsonl")) if _method(file) is not None]
    if not files:
        raise SettingsError(f"`answers=` {folder}: no file in this folder holds records of sira: name the files")
    return files


def _method(path: Path) -> str | None:
    """Return the method of a file of sira's records, `sira+guide` with a second look; None for other files."""
    _, row = next(rows_in(path), ("", {}))
    if not is_record(row):
        return None
    method = str(row.get("method", ""))
    mode = (row.get("verify") or {}).get("mode", "flag")
    return method if mode == "flag" else f"{method}+{mode}"


def named_after(answers: Path, questions: Sequence[Path]) -> Path | None:
    """Return the only file of questions that a file of answers is named after, by words that no other file has."""

    def words(path: Path) -> set[str]:
        return {*re.findall(r"[^\W_]+", path.stem.lower())}

    shared = set.intersection(*map(words, questions)) if questions else set()
    fitting = [path for path in questions if set() < words(path) - shared <= words(answers)]
    return fitting[0] if len(fitting) == 1 else None


# Records of sira.


def read_answers(benchmark: Benchmark, source: AnswerFiles, *, complete: bool = True) -> Answers:
    """Read one method's answers; records of sira have to answer everything that a part asks, unless in a shard."""
    if not source.own:
        return Answers(source.label, benchmark.read(source.paths))
    answers = Answers(source.label)
    records = _read_records(source, answers.settings, _units(benchmark))
    for part in benchmark.parts:
        missing: list[Ask] = []
        failed: dict[str, str] = {}
        texts: dict[str, str] = {}
        seconds: dict[str, float] = {}
        for ask in part.asks:
            record = records.get((part.name, ask.unit))
            if record is None:
                missing.append(ask)
            elif not record.ok:
                failed[ask.picture] = record.text
            else:
                texts[ask.id] = benchmark.reduce(part, record.text)
                if record.seconds is not None:
                    seconds[ask.id] = record.seconds
        if len(missing) == len(part.asks):
            continue
        if complete and missing:
            raise DataError(
                f"{source.paths[0]}: no answer to {brief(missing[0].unit, 120)} and {len(missing) - 1} more of "
                f"{len(part.asks)}: is it finished, and are all shards given?"
            )
        for picture, error in failed.items():
            answers.failures.append(FailedAnswer(source.label, part.name, picture, error))
        answers.texts[part.name] = texts
        if len(seconds) == len(texts):
            answers.seconds[part.name] = seconds
    if complete and not answers.texts:
        raise DataError(f"{some(source.paths, 3, 1_000)}: no record answers a question of {benchmark.name}")
    return answers


@dataclass(frozen=True)
class _Recorded:
    """What a record says about a unit."""

    path: Path
    where: str
    ok: bool
    text: str  # the answer, or the reason of a failure
    seconds: float | None  # None: not recorded


def _read_records(
    source: AnswerFiles, settings: dict[str, Any], unit_of: Callable[[dict[str, Any]], tuple[str, str] | None]
) -> dict[tuple[str, str], _Recorded]:
    """Return the record of each part's units, and fill in the settings that are equal in all.

    Raises:
        DataError: the settings of two records differ, or two files answer the same differently.
    """
    records: dict[tuple[str, str], _Recorded] = {}
    for path in source.paths:
        for where, row in rows_in(path):
            here = settings_in(row)
            if not settings:
                settings |= here
            for name in SAME:
                if here[name] != settings[name]:
                    differ = f"{name} is {brief(here[name])} here and {brief(settings[name])} before"
                    raise DataError(f"{where}: {differ}: label the files to compare: LABEL=FILE")
            unit = unit_of(row)
            if unit is None:
                continue  # it answers other question files
            ok = not is_failure(row)
            time = row.get("duration_ms")
            seconds = time / 1000 if isinstance(time, float | int) else None
            record = _Recorded(path, where, ok, text_of(where, row, "text" if ok else "error"), seconds)
            earlier = records.get(unit, record)
            if ok and earlier.ok and record.text != earlier.text:
                raise DataError(
                    f"{where}: {brief(unit[1], 120)} has another answer in {earlier.where}: "
                    "keep one of the two, or finish the run"
                )
            if ok or earlier.path == path:  # a failure replaces no other file's answer
                records[unit] = record
    return records


def _units(benchmark: Benchmark) -> Callable[[dict[str, Any]], tuple[str, str] | None]:
    """Return a look-up of the part and unit of a record: by its id, or, for `sira caption`, by picture and prompt."""
    units = {part.name: {ask.unit for ask in part.asks} for part in benchmark.parts}
    # The part that takes answers made with any settings, such as captions of any length.
    takes_any = next((part.name for part in benchmark.parts if not part.settings), "")
    about: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
    for part in benchmark.parts:
        for ask in part.asks:
            asks = about.setdefault((part.task, Path(ask.picture).name), [])
            asks.append((ask.prompt.removesuffix(ONE_WORD), part.name, ask.unit))

    def unit_of(row: dict[str, Any]) -> tuple[str, str] | None:
        if "id" in row:
            part = str(row.get("part"))
            if part not in units:
                part = takes_any
            unit = str(row["id"])
            return (part, unit) if unit in units.get(part, ()) else None
        task = str(row.get("schema")).removeprefix("sira.").partition("/")[0]
        asks = about.get((task, Path(str(row.get("file_name"))).name), [])
        fitting = [ask for ask in asks if task != "ask" or ask[0] in str(row.get("prompt"))]
        if not fitting:
            return None
        _, part, unit = max(fitting, key=lambda ask: len(ask[0]))
        return part, unit

    return unit_of


# Rows of other tools.


class Form(NamedTuple):
    """A row of an official script's file. Rows with other fields are refused: the answer could be the label."""

    answer: str  # the field with the model's answer
    needed: tuple[str, ...] = ()  # further fields of every row
    more: tuple[str, ...] = ()  # fields that a row may also have
    unless: tuple[str, ...] = ()  # or, if any are named here, all fields but these

    def fits(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row has this form."""
        needed = {self.answer, *self.needed}
        others = row.keys() - needed
        allowed = others.isdisjoint(self.unless) if self.unless else others <= {*self.more}
        return needed <= row.keys() and allowed

    def __str__(self) -> str:
        text = " and ".join((*self.needed, self.answer))
        if self.more:
            text += f" (and {some(self.more)})"
        if self.unless:
            text += f" (without {some(self.unless)})"
        return text


def rows_in(path: Path) -> Iterator[Row]:
    """Yield the place and the content of every row of a file, or of the list `results` in it."""
    first = next(read_table(path), None)
    if first is None or not first.fault:
        yield from read_rows(path)
        return
    try:
        content = read_json(path)
    except DataError:
        content = None
    rows = content.get(INSIDE) if isinstance(content, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(first.fault)
    for number, row in enumerate(rows):
        yield f"{path}: {INSIDE}[{number}]", row


def read_answer_rows(path: Path, *forms: Form) -> Iterator[Row]:
    """Yield the place and the content of every row of a file, with the answer in `text`; samples hold only ABOUT."""
    for where, row in rows_in(path):
        if SAMPLE in row:
            yield where, _sample(where, row)
            continue
        form = next((form for form in forms if form.fits(row)), None)
        if form is None:
            expected = ", or ".join(map(str, forms))
            raise DataError(f"{where}: expected an answer with {expected}, found {some(row, 6, 30) or 'nothing'}")
        yield where, {**row, "text": text_of(where, row, form.answer)}


def _sample(where: str, row: dict[str, Any]) -> dict[str, Any]:
    answer = row[SAMPLE]
    while isinstance(answer, list):
        if len(answer) != 1:
            raise DataError(f"{where}: {SAMPLE}: expected one answer, got {len(answer)}: {brief(answer)}")
        answer = answer[0]
    sample: dict[str, Any] = {}
    for inside in row.values():
        if isinstance(inside, dict):
            sample |= {name: inside[name] for name in ABOUT if name in inside}
    if isinstance(row.get("input"), str):
        sample["question"] = row["input"]
    sample["text"] = text_of(where, {SAMPLE: answer}, SAMPLE)
    return sample


def holds_splits(path: Path) -> bool:
    """Return whether a file of lmms-eval answers several files of questions."""
    if SAMPLE not in next(rows_in(path), ("", {}))[1]:
        return False
    rows = list(read_answer_rows(path))
    ids = [row["question_id"] for _, row in rows if "question_id" in row]
    return len({*ids}) < len(ids) or _has_categories(rows)


def _has_categories(rows: Sequence[Row]) -> bool:
    """Return whether samples are of several categories."""
    return len({row["category"] for _, row in rows if "category" in row}) > 1


def of_split(rows: Sequence[Row], split: str, is_about: Mapping[str, Callable[[str], bool]]) -> list[Row]:
    """Return the samples that answer a split's questions, by category, or as the block of ids with its questions.

    Args:
        rows: all samples of a file.
        split: its name, of which one word may be a category.
        is_about: by the question's id, whether a prompt asks it.
    """
    if _has_categories(rows):
        return [placed for placed in rows if placed[1].get("category") in split.split()]
    blocks: list[dict[str, Row]] = [{}]
    for where, row in rows:
        number = str(row.get("question_id"))
        if number in blocks[-1]:
            blocks.append({})
        blocks[-1][number] = where, row
    for block in blocks:
        asked = {number: str(row.get("question", "")) for number, (_, row) in block.items()}
        if all(number in is_about and is_about[number](question) for number, question in asked.items()):
            return [*block.values()]
    return [*blocks[0].values()]  # the reader names the first row that does not fit
