"""Yes/no questions about pictures, in splits: from POPE's files, or any other `QuestionSet`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sira_cli.eval.pope import split_names
from sira_cli.eval.pope_questions import read_questions
from sira_cli.eval.statistics import Counts
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.sources import located
from sira_cli.run.records import hash_of


@dataclass(frozen=True)
class Question:
    """A question about a picture.

    Attributes:
        picture: its name in the set.
        text: the question.
        expected: whether yes is the true answer.
        splits: splits with this question; a split that asks it twice is named twice.
    """

    picture: str
    text: str
    expected: bool
    splits: tuple[str, ...] = ()


@dataclass(frozen=True)
class QuestionSet:
    """Questions; questions about one picture follow each other.

    Attributes:
        splits: their names.
        questions: each once, whatever number of splits it belongs to.
        picture: finds a picture by its name.
        count_caption: counts a caption against the objects in its picture (`stats.chair.mention_counts`, and `words`);
            None: the objects are unknown.
        folder: folder of the pictures, if they are files.
    """

    splits: tuple[str, ...]
    questions: tuple[Question, ...]
    picture: Callable[[str], Picture]
    count_caption: Callable[[str, str], Counts] | None = None
    folder: str = ""

    @property
    def pictures(self) -> list[str]:
        """The pictures' names, each once."""
        return list(dict.fromkeys(question.picture for question in self.questions))

    def settings(self) -> dict[str, Any]:
        """Return the settings that decide the answers, as JSON holds them."""
        rows = [
            {"picture": each.picture, "text": each.text, "there": each.expected, "splits": each.splits}
            for each in self.questions
        ]
        return {
            "splits": list(self.splits),
            "images": self.folder,
            "questions": len(self.questions),
            "questions_sha256": hash_of(questions=rows),
        }


def from_files(
    paths: Sequence[str | Path], folder: str | Path, limit: int | None = None, suffix: str = ""
) -> QuestionSet:
    """Read POPE's question files, each a split that is named after the file."""
    files, folder = [Path(path) for path in paths], Path(folder)
    splits = tuple(split_names(files))
    found: dict[str, dict[tuple[str, bool], list[str]]] = {}  # by picture
    for path, split in zip(files, splits, strict=True):
        for row in read_questions(path)[:limit]:
            found.setdefault(row.image, {}).setdefault((row.text + suffix, row.expected), []).append(split)
    questions = (
        Question(picture, text, expected, tuple(belongs_to))
        for picture, about in found.items()
        for (text, expected), belongs_to in about.items()
    )
    pictures = folder.resolve()
    return QuestionSet(splits, tuple(questions), lambda name: located(str(pictures / name)), folder=str(pictures))
