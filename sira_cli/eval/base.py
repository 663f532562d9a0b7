"""What the benchmarks have in common: what is asked, and answers counted by picture."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

ONE_WORD = " Please answer this question with one word."  # as in VCD's setting of POPE

Texts = Mapping[str, str]  # answers, by the id of what was asked
Counts = dict[str, float]  # what figures are ratios of


@dataclass(frozen=True)
class Ask:
    """Something that is asked about a picture.

    Attributes:
        id: its own among all that a part asks.
        picture: file name in the folder of images.
        prompt: the question or the request, before the preset's template.
        unit: what is decoded once: all asks of a unit have the same answer. An ask of its own unless given.
    """

    id: str
    picture: str
    prompt: str
    unit: str = ""

    def __post_init__(self) -> None:
        if not self.unit:
            object.__setattr__(self, "unit", self.id)


@dataclass(frozen=True)
class Part:
    """What is asked under the same settings: all of POPE, CHAIR at one length, AMBER's captions or its questions.

    Attributes:
        name: its own in the benchmark; names files.
        task: `ask` puts the prompt into the preset's template of questions.
        asks: in the order of the benchmark's files.
        groups: what figures are given for: POPE's splits, the dimensions of AMBER's questions.
        settings: generation settings that take the place of the preset's, such as max_new_tokens.
    """

    name: str
    task: Literal["caption", "ask"]
    asks: tuple[Ask, ...]
    groups: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass
class Tally:
    """One method's answers in one group, counted.

    Attributes:
        counts: by picture, what figures are ratios of the sums of; every picture has the same keys.
        right: by ask, whether the answer is right, or a caption free of hallucinations: for paired tests.
    """

    counts: dict[str, Counts] = field(default_factory=dict)
    right: dict[str, bool] = field(default_factory=dict)

    def total(self) -> Counts:
        """Sums over all pictures."""
        rows = list(self.counts.values())
        return {name: sum(row[name] for row in rows) for name in rows[0]} if rows else {}


class Benchmark(ABC):
    """A benchmark with its questions and its ground truth read.

    Attributes:
        name: `pope`, `chair` or `amber`.
        parts: what is asked.
        averaged: whether the mean over a part's groups says something.
    """

    name: str
    parts: tuple[Part, ...]
    averaged: ClassVar[bool] = False

    @abstractmethod
    def score(self, part: Part, texts: Texts) -> dict[str, Tally]:
        """Count answers, by group.

        Args:
            part: one of `parts`.
            texts: by ask; what is missing (its picture failed) is left out of every count.
        """

    @abstractmethod
    def figures(self, group: str, total: Mapping[str, float]) -> dict[str, float]:
        """The figures of a group from sums of counts, as the official script reckons them, shares in percent.

        A ratio with a zero denominator is 0.
        """

    @abstractmethod
    def read(self, paths: Sequence[Path]) -> dict[str, dict[str, str]]:
        """One method's answers that were made elsewhere: by part and ask.

        Raises:
            SettingsError: a file cannot be read, a row is not in one of the known forms, or answers and asks do not
                match; the message names file and row.
        """

    @abstractmethod
    def export(self, texts: Mapping[str, Texts], folder: Path) -> list[Path]:
        """Write one method's answers, by part and ask, as the official script reads them, into a folder that is there.

        Returns:
            The files: one of each part, or of each split, that has answers.

        Raises:
            SiraError: a file cannot be written.
        """

    def reduce(self, part: Part, text: str) -> str:
        """What counts of an answer that sira made: the script's users would have cleaned it before scoring."""
        return text

    def details(self, part: Part, texts: Texts) -> Iterator[dict[str, Any]]:
        """How each answer was counted, one JSON object each."""
        yield from ()

    def stand_ins(self) -> dict[str, str]:
        """By part, what makes its figures others than those of a published script; no part that has those."""
        return {}

    def facts(self) -> dict[str, Any]:
        """What decides the figures beside the answers: the rule, versions of language data."""
        return {}


def ratio(part: float, whole: float) -> float:
    """Their quotient; 0 of nothing."""
    return part / whole if whole else 0.0
