"""The interface of a benchmark: its questions and how answers are counted, and its card before files are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sira_cli.errors import SettingsError

if TYPE_CHECKING:  # the cards are read whenever the command line starts, and statistics need numpy
    from sira_cli.eval.statistics import Denominators, Tally

MEAN = "mean"  # the name of a mean over groups; others begin with it
ONE_WORD = " Please answer this question with one word."  # as in VCD's setting of POPE

Texts = Mapping[str, str]  # answers, by the id of the ask


@dataclass(frozen=True)
class Ask:
    """A question or a request about a picture."""

    id: str  # unique within its part
    picture: str  # file name in the folder of images
    prompt: str  # the question or the request, before the preset's template
    unit: str = ""  # asks of the same unit are decoded once and have the same answer. Default: a unit of its own

    def __post_init__(self) -> None:
        if not self.unit:
            object.__setattr__(self, "unit", self.id)


@dataclass(frozen=True)
class Part:
    """Asks under the same settings: all of POPE, CHAIR at one length, AMBER's captions, AMBER's questions."""

    name: str  # unique within the benchmark; part of file names
    task: Literal["caption", "ask"]  # `ask` puts the prompt into the preset's template of questions
    asks: tuple[Ask, ...]  # in the order of the benchmark's files
    groups: tuple[str, ...]  # groups with their own figures: POPE's splits, the dimensions of AMBER's questions
    settings: dict[str, Any] = field(default_factory=dict)  # of generation, instead of the preset's: max_new_tokens

    def of_first_pictures(self, count: int | None) -> Part:
        """Return the asks about the first pictures."""
        first = {*list(dict.fromkeys(ask.picture for ask in self.asks))[:count]}
        return replace(self, asks=tuple(ask for ask in self.asks if ask.picture in first))


class Counted(NamedTuple):
    """An answer as it is counted."""

    ask: str  # its id
    picture: str
    groups: tuple[str, ...]  # those that count it; others than the part's are left out
    right: bool  # whether the answer is right, or a caption free of hallucinations
    counts: dict[str, float]


class Benchmark(ABC):
    """A benchmark with its questions and its ground truth read.

    A subclass sets `name` and `parts`, and defines `count`, `figures` and `read`. From answers to a table: `reduce`
    shortens each of sira's, `count` turns a part's answers into numbers, `score` adds them up by group, `figures` makes
    percentages of the sums. Intervals come from `count` per picture and `denominators`; the rest has defaults.
    """

    name: str  # as in `sira eval NAME`
    parts: tuple[Part, ...]  # the asks, by settings

    @abstractmethod
    def count(self, part: Part, texts: Texts) -> Iterator[Counted]:
        """Count each answer of a part.

        Args:
            part: one of `parts`.
            texts: answers by the id of their ask; asks whose picture failed are missing, and left out of every count.

        Yields:
            For each answer the groups that count it, whether it is right, and its counts by name, such as `{"TP": 1}`.
        """

    def score(self, part: Part, texts: Texts, seconds: Mapping[str, float] | None = None) -> dict[str, Tally]:
        """Return the counts of all answers, by group; if the time of each caption is known, with its `seconds`."""
        from sira_cli.eval.statistics import Tally

        tallies = {group: Tally() for group in part.groups}
        for answer in self.count(part, texts):
            if seconds and "captions" in answer.counts:
                answer.counts["seconds"] = seconds[answer.ask]
            for group in answer.groups:
                if group in tallies:
                    tallies[group].add(answer.picture, answer.ask, answer.right, answer.counts)
        return tallies

    @abstractmethod
    def figures(self, group: str, total: Mapping[str, float], *, smooth: bool = False) -> dict[str, float]:
        """Make a group's figures from sums of counts, as the official script does.

        Args:
            group: one of a part's `groups`, or of `means`.
            total: the sum of each count over the group's answers.
            smooth: without the script's rounding, for intervals and tests.

        Returns:
            Figures by name, in the order of the table; shares in percent.
        """

    def means(self, part: Part) -> dict[str, tuple[str, ...]]:
        """Return the meaningful means over groups: the groups of each mean, by its name."""
        return {}

    def denominators(self, group: str) -> Denominators:
        """Return the figures of a group that are shares in percent, each with the counts in its denominator."""
        return {}

    @abstractmethod
    def read(self, paths: Sequence[Path]) -> dict[str, dict[str, str]]:
        """Read one method's answers from files of the official script, or of lmms-eval: texts by part and ask.

        Raises:
            DataError: a file has another form, or answers to other questions.
        """

    def reduce(self, part: Part, text: str) -> str:
        """Return the part of sira's answer that counts; users of the script clean answers before scoring."""
        return text

    def stand_ins(self) -> dict[str, str]:
        """Return by part why figures differ from those of a published script; parts with equal figures are left out."""
        return {}

    def facts(self) -> dict[str, Any]:
        """Return the other inputs of the figures: the rule, versions of language data."""
        return {}


class Option(NamedTuple):
    """A setting that only some benchmarks have: `--option NAME=VALUE` of `sira eval`."""

    name: str
    help: str  # its meaning, in one line
    choices: tuple[str, ...] = ()  # the values that it takes; empty: any text
    default: str = ""  # the value without it, as it is shown
    asks: bool = False  # whether it changes the questions, so that it cannot apply to answers in files


class AnswerFiles(NamedTuple):
    """Files with one method's answers; `own`: they are records that sira wrote."""

    label: str
    paths: tuple[Path, ...]
    own: bool


@dataclass(frozen=True)
class Asking:
    """How a benchmark is asked."""

    limit: int | None = None  # maximum number of questions per file (POPE), or of pictures
    options: Mapping[str, str] = field(default_factory=dict)  # the benchmark's own options, by name
    sources: Sequence[AnswerFiles] = ()  # files of answers to score; empty if a model is asked
    max_new_tokens: int | None = None  # length limit of a run's texts in tokens, if given
    in_folder: bool = False  # whether it is one of the benchmarks of a folder, where what is not installed is replaced

    def given(self, *names: str) -> dict[str, Any]:
        """Return those of some options that are given; a benchmark has the defaults."""
        return {name: self.options[name] for name in names if name in self.options}


@dataclass(frozen=True)
class Card:
    """A benchmark before its files are read. Its texts are shown as they are."""

    name: str  # as in `sira eval NAME`
    title: str  # one line, without a full stop
    source: str  # authors and year
    figures: str  # the figures' names
    files: str  # the data in words
    size: str  # of the download: files, and pictures
    licence: str  # of the files
    url: str  # where the files are
    answers: str  # fields of a row in the official script's file of answers
    # makes the benchmark from the data folder, or from the list of files (`several`); None: `opened` of its module
    read: Callable[[Any, Asking], Benchmark] | None = None
    several: bool = False  # its data are files, such as one per split, instead of a folder
    options: tuple[Option, ...] = ()
    folder: str = ""  # the data folder in a folder of benchmarks
    note: str = ""

    def files_in(self, paths: Sequence[Path]) -> list[Path]:
        """Return the data of a benchmark with several files: a folder stands for its .json files."""
        if not self.several and len(paths) != 1:
            raise SettingsError(f"{self.name}: expected one PATH, the folder with {self.files}, got {len(paths)}")
        if not paths:
            raise SettingsError(f"{self.name}: PATH is missing: give {self.files}")
        return json_files(paths, self.files) if self.several else list(paths)

    def open(self, paths: Sequence[Path], asking: Asking) -> Benchmark:
        """Read the benchmark's files."""
        read = self.read or import_module(f"sira_cli.eval.{self.name}").opened
        benchmark: Benchmark = read(paths if self.several else paths[0], asking)
        return benchmark


def json_files(paths: Sequence[Path], expected: str) -> list[Path]:
    """Return some files; a folder stands for its .json files, of which it must have one."""
    files = []
    for path in paths:
        inside = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not inside:
            raise SettingsError(f"{path}: holds no .json file: expected {expected}")
        files += inside
    return files
