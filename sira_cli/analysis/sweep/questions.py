"""What a sweep measures: values of K and alpha, on yes/no questions about pictures in splits."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sira_cli.core.config import check_range
from sira_cli.errors import SettingsError
from sira_cli.eval.pope import read_questions, split_names
from sira_cli.eval.statistics import Counts
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.sources import located
from sira_cli.run.records import hash_of

if TYPE_CHECKING:
    from sira_cli.models.preset import Preset

ALPHAS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
VALUES = 6  # number of values of K, unless they are given


@dataclass(frozen=True, order=True)
class Cell:
    """A setting; K = 0 stands for greedy."""

    k: int
    alpha: float

    @property
    def name(self) -> str:
        """Its name in reports and messages."""
        return f"K = {self.k}, alpha = {self.alpha:g}" if self.k else "greedy"


GREEDY = Cell(0, 0.0)


@dataclass(frozen=True)
class Grid:
    """Every K with every alpha, both ascending."""

    ks: tuple[int, ...]
    alphas: tuple[float, ...]

    def cells(self) -> list[Cell]:
        """Return all settings, greedy first."""
        return [GREEDY, *(Cell(k, alpha) for k in self.ks for alpha in self.alphas)]


def parse_ks(text: str) -> tuple[int, ...]:
    """Read values of K: `1,2,4`, `1-7`, or both."""
    values: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= low <= high:
            raise SettingsError(f"`k=` {text!r}: expected all, or numbers and ranges such as 1,2,4 or 1-7")
        values |= set(range(low, high + 1))
    return tuple(sorted(values))


def parse_alphas(text: str) -> tuple[float, ...]:
    """Read values of alpha: `0.5,1`. 0 is left out: it is greedy, which is always measured."""
    try:
        values = {float(part) for part in text.split(",")}
    except ValueError:
        raise SettingsError(f"`alpha=` {text!r}: expected numbers such as 0.5,1") from None
    for value in values:
        check_range("alpha", value, 0.0)
    if values == {0.0}:
        raise SettingsError("`alpha=` 0 is greedy, which is always measured: give one above 0")
    return tuple(sorted(values - {0.0}))


def spread(layers: int, largest: int) -> tuple[int, ...]:
    """Return VALUES values of K from early to late forks, L/2 among them."""
    return tuple(sorted({max(1, min(number * layers // VALUES, largest)) for number in range(1, VALUES + 1)}))


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
    files, folder = [Path(path) for path in paths], Path(folder).resolve()
    splits = tuple(split_names(files))
    by_picture: dict[str, dict[tuple[str, bool], list[str]]] = {}
    for path, split in zip(files, splits, strict=True):
        for row in read_questions(path)[:limit]:
            by_picture.setdefault(row.image, {}).setdefault((row.text + suffix, row.expected), []).append(split)
    questions = (
        Question(picture, text, expected, tuple(belongs_to))
        for picture, about in by_picture.items()
        for (text, expected), belongs_to in about.items()
    )
    return QuestionSet(splits, tuple(questions), lambda name: located(str(folder / name)), folder=str(folder))


def decisive(preset: Preset, questions: QuestionSet, alphas: Sequence[float], captions: bool) -> dict[str, Any]:
    """Return the settings that decide a sweep's texts, besides K and the checkpoint's revision, as JSON holds them."""
    parts = preset.decisive()
    for swept in ("k", "k_fraction", "alpha"):
        del parts["sira"][swept]
    if not captions:
        del parts["generation"]  # the first token is always the likeliest
    prompts = {"prompts.caption": preset.prompts.caption} if captions else {}
    flat = {
        f"{part}.{name}" if isinstance(values, dict) else part: value
        for part, values in parts.items()
        for name, value in (values if isinstance(values, dict) else {"": values}).items()
    }
    asked = {"prompts.ask": preset.prompts.ask, "captions": captions, "alpha": list(alphas)}
    return {**flat, **prompts, **asked, **questions.settings()}


def answer_unit(number: int) -> str:
    """Return the name of the unit of a question's answers."""
    return f"question {number}"


def caption_unit(picture: str, k: int) -> str:
    """Return the name of the unit of a picture's captions at one K."""
    return f"captions of scene {picture}, K = {k}"
