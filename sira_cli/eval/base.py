"""The interface of the benchmarks: their questions, and how answers are counted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from sira_cli.eval.statistics import Denominators, Tally

MEAN = "mean"  # the name of a mean over groups; others begin with it
ONE_WORD = " Please answer this question with one word."  # as in VCD's setting of POPE

Texts = Mapping[str, str]  # answers, by the id of the ask


@dataclass(frozen=True)
class Ask:
    """A question or a request about a picture.

    Attributes:
        id: unique within its part.
        picture: file name in the folder of images.
        prompt: the question or the request, before the preset's template.
        unit: asks of the same unit are decoded once and have the same answer. Default: a unit of its own.
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
    """Asks under the same settings: all of POPE, CHAIR at one length, AMBER's captions, AMBER's questions.

    Attributes:
        name: unique within the benchmark; part of file names.
        task: `ask` puts the prompt into the preset's template of questions.
        asks: in the order of the benchmark's files.
        groups: groups with their own figures: POPE's splits, the dimensions of AMBER's questions.
        settings: generation settings that replace the preset's, such as max_new_tokens.
    """

    name: str
    task: Literal["caption", "ask"]
    asks: tuple[Ask, ...]
    groups: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)


def first_pictures(part: Part, count: int | None) -> Part:
    """Return the asks of a part about its first pictures."""
    first = {*list(dict.fromkeys(ask.picture for ask in part.asks))[:count]}
    return replace(part, asks=tuple(ask for ask in part.asks if ask.picture in first))


class Benchmark(ABC):
    """A benchmark with its questions and its ground truth read.

    Attributes:
        name: as in `sira eval NAME`.
        parts: the asks, by settings.
    """

    name: str
    parts: tuple[Part, ...]

    @abstractmethod
    def score(self, part: Part, texts: Texts) -> dict[str, Tally]:
        """Count answers, by group.

        Args:
            part: one of `parts`.
            texts: by ask; asks whose picture failed are missing, and left out of every count.
        """

    @abstractmethod
    def figures(self, group: str, total: Mapping[str, float]) -> dict[str, float]:
        """Make the figures of a group from sums of counts, as the official script does; shares are in percent.

        A ratio with a zero denominator is 0.
        """

    def smooth(self, group: str, total: Mapping[str, float]) -> dict[str, float]:
        """Make the same figures without rounding, from which intervals are made."""
        return self.figures(group, total)

    def means(self, part: Part) -> dict[str, tuple[str, ...]]:
        """Return the meaningful means over groups: the groups of each mean, by its name."""
        return {}

    def denominators(self, group: str) -> Denominators:
        """Return the figures of a group that are shares in percent, each with the counts in its denominator."""
        return {}

    @abstractmethod
    def read(self, paths: Sequence[Path]) -> dict[str, dict[str, str]]:
        """Read one method's answers from files of the official script, or of lmms-eval, by part and ask.

        Raises:
            DataError: a file cannot be read, a row has no known form, or answers and asks do not match; the message
                names file and row.
        """

    def reduce(self, part: Part, text: str) -> str:
        """Return the part of sira's answer that counts; users of the script clean answers before scoring."""
        return text

    def details(self, part: Part, texts: Texts) -> Iterator[dict[str, Any]]:
        """Yield how each answer was counted, one JSON object each."""
        yield from ()

    def stand_ins(self) -> dict[str, str]:
        """Return by part why figures differ from those of a published script; parts with equal figures are left out."""
        return {}

    def facts(self) -> dict[str, Any]:
        """Return the other inputs of the figures: the rule, versions of language data."""
        return {}
