"""Base of the benchmarks that are lists of closed questions, each with one true answer."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from sira_cli.data.rows import brief, some
from sira_cli.errors import DataError
from sira_cli.eval.answers.columns import answer_of
from sira_cli.eval.answers.harness import read_answer_rows
from sira_cli.eval.base import ONE_WORD, Ask, Benchmark, Part, Texts
from sira_cli.eval.stats.tally import Tally, ratio
from sira_cli.files import write_whole

NEITHER = ("neither", "words", "answers")  # counts of every benchmark


@dataclass(frozen=True)
class Question:
    """A closed question.

    Attributes:
        id: unique within the benchmark.
        picture: file name in the folder of images.
        text: as in the benchmark's files.
        prompt: as it is asked.
        expected: the true answer: `yes`, `no`, or a letter.
        group: a group with its own figures.
        together: questions with the same value are one unit of intervals and figures; default: the picture.
    """

    id: str
    picture: str
    text: str
    prompt: str
    expected: str
    group: str
    together: str = ""


class YesNo(Benchmark):
    """Closed questions in one part. A subclass says how answers are read (`said`) and counted.

    Attributes:
        questions: those that are asked.
        own: as for `read_answer_rows`.
    """

    own: ClassVar[str] = ""

    def __init__(self, questions: Sequence[Question], groups: Sequence[str], *, known: Iterable[Question] = ()) -> None:
        """Take the questions.

        Args:
            questions: to ask.
            groups: in the order of the report.
            known: all questions of the files, if not all are asked: answers of other tools may answer them.
        """
        self.questions = tuple(questions)
        self._known = {question.id: question for question in (known or questions)}
        asks = tuple(Ask(each.id, each.picture, each.prompt) for each in questions)
        self.parts = (Part(self.name, "ask", asks, tuple(groups)),)

    @abstractmethod
    def said(self, question: Question, text: str) -> str:
        """Return the answer that the official script reads in a text; empty without one."""

    def right(self, question: Question, text: str) -> bool:
        """Return whether an answer is the true one."""
        return self.said(question, text) == question.expected

    def answered(self, texts: Texts, group: str = "") -> Iterator[tuple[Question, str]]:
        """Yield the answered questions of a group, or of all groups, with their answers."""
        for question in self.questions:
            if (not group or question.group == group) and (text := texts.get(question.id)) is not None:
                yield question, text

    def count(self, tally: Tally, picture: str, question: Question, text: str, counts: Mapping[str, float]) -> None:
        """Add an answer's counts, its length and whether it is right to those of a picture.

        Args:
            tally: receives the counts.
            picture: key of the picture; questions that are drawn together share one.
            question, text: the answer.
            counts: the same keys for every answer of a group.
        """
        row = tally.counts.setdefault(picture, dict.fromkeys((*counts, *NEITHER), 0))
        said = {"neither": not self.said(question, text), "words": len(text.split()), "answers": 1}
        for name, count in {**counts, **said}.items():
            row[name] += count
        tally.right[question.id] = self.right(question, text)

    def find(self, row: Mapping[str, Any], path: Path) -> str | None:
        """Return the id of the question that another tool's row answers; None if it is not one of these."""
        given = str(row.get("id", row.get("question_id")))
        return given if given in self._known else None

    def is_in(self, question: Question, prompt: str) -> bool:
        """Return whether a prompt of another tool asks a question."""
        return question.text in prompt

    def read(self, paths: Sequence[Path]) -> dict[str, dict[str, str]]:
        """Read rows with `id` or `question_id`, and an answer; also files of the two harnesses."""
        found: dict[str, tuple[str, str]] = {}
        for where, path, row in self._rows(paths):
            if (id_ := self.find(row, path)) is None:
                raise DataError(f"{where}: answers no question of {self.name}: {brief(dict(row), 200)}")
            said, asked = row.get("question", row.get("prompt")), self._known[id_]
            if isinstance(said, str) and not self.is_in(asked, said):
                raise DataError(f"{where}: answers {brief(said)}, but {brief(id_, 120)} is {brief(asked.text)}")
            if id_ in found:
                raise DataError(f"{where}: {brief(id_, 120)} is answered already: {found[id_][0]}: keep one of the two")
            found[id_] = where, answer_of(where, row)
        missing = [question.id for question in self.questions if question.id not in found]
        if missing:
            raise DataError(
                f"{some(paths, 3, 1_000)}: {brief(missing[0], 120)} is not answered: {len(missing)} of the "
                f"{len(self.questions)} answers are missing, and figures need all of them: "
                "give the other files, or `limit=`"
            )
        return {self.name: {question.id: found[question.id][1] for question in self.questions}}

    def _rows(self, paths: Sequence[Path]) -> Iterator[tuple[str, Path, dict[str, Any]]]:
        for path in paths:
            for where, row in self.rows(path):
                yield where, path, row

    def rows(self, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the place and the content of every row of a file of answers."""
        yield from read_answer_rows(path, self.own)

    def official(self, question: Question, text: str) -> dict[str, Any]:
        """Return a row as the official script reads it."""
        return {"id": question.id, "text": text}

    def export(self, texts: Mapping[str, Texts], folder: Path) -> list[Path]:
        """Write the answers as one JSON array of `official` rows."""
        rows = [self.official(question, text) for question, text in self.answered(texts[self.name])]
        target = folder / f"{self.name}.json"
        write_whole(target, json.dumps(rows, ensure_ascii=False, indent=1).encode())
        return [target]

    def details(self, part: Part, texts: Texts) -> Iterator[dict[str, Any]]:
        """Yield each answer, and how it was read."""
        for question, text in self.answered(texts):
            about = {"group": question.group, "id": question.id, "image": question.picture, "question": question.text}
            said, right = self.said(question, text), self.right(question, text)
            yield about | {"expected": question.expected, "answer": text, "taken_for": said, "right": right}


def shared_figures(total: Mapping[str, float]) -> dict[str, float]:
    """Return `neither` in percent and the mean number of `words`, which every benchmark shows last.

    `neither`: answers that the benchmark's rule cannot read.
    """
    return {
        "neither": 100 * ratio(total["neither"], total["answers"]),
        "words": ratio(total["words"], total["answers"]),
    }


def harmonic_mean(one: float, other: float) -> float:
    """Return the harmonic mean of two shares; 0 where both are 0."""
    return ratio(2 * one * other, one + other)


def ours(text: str) -> str:
    """Return the prompt of a question, in sira's form for POPE."""
    return text + ONE_WORD
