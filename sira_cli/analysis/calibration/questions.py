"""Labelled yes/no questions about objects, with the places of these objects: from POPE's files and COCO's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sira_cli.analysis.calibration.regions import Outline, Regions
from sira_cli.analysis.sweep.questions import Question, QuestionSet
from sira_cli.errors import DataError
from sira_cli.eval.pope import read_questions
from sira_cli.pictures.sources import located
from sira_cli.run.records import hash_of


@dataclass(frozen=True)
class LabelledQuestions(QuestionSet):
    """Questions with the places of their objects.

    Attributes:
        outlines: returns the outlines of a question's object; empty if its place is unknown. None: no places are known.
        made_from: their sources, as JSON holds them.
    """

    outlines: Callable[[Question], Sequence[Outline]] | None = None
    made_from: Mapping[str, Any] = field(default_factory=dict)


def from_files(
    paths: Sequence[Path], folder: Path, limit: int | None = None, annotations: Path | None = None
) -> LabelledQuestions:
    """Read POPE's question files; questions in several files are asked once."""
    labels: dict[tuple[str, str], bool] = {}
    for path in paths:
        for row in read_questions(path)[:limit]:
            if labels.setdefault((row.image, row.text), row.expected) != row.expected:
                raise DataError(f"{path}: {row.text!r} about {row.image} has another label in an earlier row")
    questions = tuple(Question(*asked, expected) for asked, expected in labels.items())
    made_from: dict[str, Any] = {
        "files": [path.name for path in paths],
        "questions_sha256": hash_of(questions=[[each.picture, each.text, each.expected] for each in questions]),
    }
    outlines: Callable[[Question], Sequence[Outline]] | None = None
    if annotations is not None:
        regions = Regions.read(annotations, {question.picture for question in questions})
        made_from |= {"annotations": regions.files}

        def outlines(question: Question) -> Sequence[Outline]:
            return regions.about(question.picture, question.text)

    pictures = folder.resolve()
    return LabelledQuestions(
        (),
        questions,
        lambda name: located(str(pictures / name)),
        folder=str(pictures),
        outlines=outlines,
        made_from=made_from,
    )
