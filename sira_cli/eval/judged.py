"""Benchmarks of open questions whose answers an external judge reads, a large language model.

sira asks, writes the answers in the form that the judge's script reads (`--export official`), and sums up the judge's
file when it is given to `--answers`. It asks no judge itself.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from sira_cli.data.rows import some
from sira_cli.errors import DataError
from sira_cli.eval.answers.columns import answer_of
from sira_cli.eval.answers.harness import read_answer_rows
from sira_cli.eval.base import Ask, Benchmark, Part, Texts
from sira_cli.eval.stats.tally import Counts, Denominators, Tally, ratio

JUDGED = "judged"  # the part with the judge's verdicts instead of answers, and the group with all of them
ALL = "all"  # the group with all answers


@dataclass(frozen=True)
class Open:
    """An open question.

    Attributes:
        id: unique within the benchmark.
        picture: file name in the folder of images.
        text: as in the benchmark's file, and as it is asked.
        groups: groups besides `judged` that count its verdict.
        row: the whole row of the file.
    """

    id: str
    picture: str
    text: str
    groups: tuple[str, ...]
    row: Mapping[str, Any]


class Judged(Benchmark):
    """Open questions, and verdicts on their answers.

    Attributes:
        questions: those that are asked.
        rates: the figures of verdicts that are shares in percent.
    """

    rates: ClassVar[tuple[str, ...]]

    def __init__(self, questions: Sequence[Open], known: Sequence[Open]) -> None:
        """Take the questions to ask, and all questions of the file."""
        self.questions, self._known = tuple(questions), tuple(known)
        self._asks = tuple(Ask(each.id, each.picture, each.text) for each in questions)
        self._groups = tuple(dict.fromkeys(group for each in questions for group in each.groups))
        self.parts = (Part(self.name, "ask", self._asks, (ALL,)),)

    @abstractmethod
    def judge(self, verdict: str) -> tuple[bool, Counts]:
        """Return whether a verdict finds an answer right, and the counts for figures."""

    @abstractmethod
    def shares(self, total: Mapping[str, float]) -> dict[str, float]:
        """Make the figures of a group from sums of the counts of `judge`, and `verdicts`, their number."""

    @abstractmethod
    def verdict(self, where: str, row: Mapping[str, Any]) -> str | None:
        """Return the verdict in a row of the judge's file; None in a row of answers.

        Raises:
            DataError: the row is neither.
        """

    @abstractmethod
    def find(self, where: str, row: Mapping[str, Any], number: int) -> str:
        """Return the id of the question that a row is about.

        Args:
            where, row: the row.
            number: its place in the file, from 0.

        Raises:
            DataError: the row is about no question.
        """

    def score(self, part: Part, texts: Texts) -> dict[str, Tally]:
        """Count verdicts, or the words of answers without any."""
        tallies = {group: Tally() for group in part.groups}
        for question in self.questions:
            if (text := texts.get(question.id)) is None:
                continue
            if part.name == JUDGED:
                right, counts = self.judge(text)
                counts = {**counts, "verdicts": 1}
            else:
                right, counts = True, {"words": len(text.split()), "answers": 1}
            for group in (ALL, JUDGED, *question.groups):
                if group in tallies:
                    row = tallies[group].counts.setdefault(question.picture, dict.fromkeys(counts, 0.0))
                    for name, count in counts.items():
                        row[name] += count
                    tallies[group].right[question.id] = right
        return tallies

    def figures(self, group: str, total: Mapping[str, float]) -> dict[str, float]:
        """Return the official figures of verdicts; of answers, their mean length in words."""
        return self.shares(total) if group != ALL else {"words": ratio(total["words"], total["answers"])}

    def denominators(self, group: str) -> Denominators:
        """Return the counts in the denominators of shares."""
        return dict.fromkeys(self.rates if group != ALL else (), ("verdicts",))

    def compared(self, part: Part) -> bool:
        """Return whether a judge has read the answers: without one, they are neither right nor wrong."""
        return part.name == JUDGED

    def read(self, paths: Sequence[Path]) -> dict[str, dict[str, str]]:
        """Read answers of other tools, or a judge's verdicts on answers, or rows with both."""
        found: dict[str, dict[str, str]] = {}
        for path in paths:
            for number, (where, row) in enumerate(read_answer_rows(path)):
                id_, verdict = self.find(where, row, number), self.verdict(where, row)
                said = answer_of(where, row) if "text" in row else None
                if verdict is None and said is None:
                    raise DataError(f"{where}: has neither an answer nor a verdict: is `answers=` right?")
                for name, text in ((self.name, said), (JUDGED, verdict)):
                    if text is None:
                        continue
                    if id_ in found.setdefault(name, {}):
                        raise DataError(f"{where}: question {id_} stands twice: keep one of the two")
                    found[name][id_] = text
        for name, texts in found.items():
            if not any(texts.values()):
                raise DataError(f"{some(paths, 3, 1_000)}: all answers are empty: is it the template, not yet filled?")
            if missing := [each.id for each in self.questions if each.id not in texts]:
                raise DataError(
                    f"{some(paths, 3, 1_000)}: question {missing[0]} is missing: {len(missing)} of the "
                    f"{len(self.questions)} rows are, and figures need all of them: give the other files, or `limit=`"
                )
            found[name] = {each.id: texts[each.id] for each in self.questions}
        if not found:
            raise DataError(f"{some(paths, 3, 1_000)}: holds neither answers nor verdicts")
        if JUDGED in found and len(self.parts) == 1:
            self.parts = (*self.parts, Part(JUDGED, "ask", self._asks, (JUDGED, *self._groups)))
        return found

    def details(self, part: Part, texts: Texts) -> Iterator[dict[str, Any]]:
        """Yield each answer, or each verdict and its meaning."""
        for question in self.questions:
            if (text := texts.get(question.id)) is None:
                continue
            about = {"id": question.id, "image": question.picture, "question": question.text}
            if part.name == JUDGED:
                right, counts = self.judge(text)
                yield about | {"verdict": text, "right": right, **counts}
            else:
                yield about | {"answer": text}

    def stand_ins(self) -> dict[str, str]:
        """Return the remark that answers are not judged."""
        return {self.name: "not judged: only the length of the answers, which a judge elsewhere has to read"}
