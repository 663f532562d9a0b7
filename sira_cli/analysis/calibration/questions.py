"""Labelled yes/no questions about objects, with the places of these objects: from POPE's files and COCO's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from sira_cli.analysis.calibration.regions import Regions, black_out
from sira_cli.errors import DataError
from sira_cli.eval.pope_questions import read_questions
from sira_cli.models.records import hash_of
from sira_cli.pictures.sources import open_picture


@dataclass(frozen=True)
class LabelledQuestion:
    """A question whether an object is in a picture.

    Attributes:
        picture: its name in the set.
        text: the question.
        expected: whether yes is the true answer.
    """

    picture: str
    text: str
    expected: bool


@dataclass(frozen=True)
class LabelledQuestions:
    """Questions; questions about one picture follow each other.

    Attributes:
        questions: each once.
        open: opens a picture by its name; raises PictureError.
        hide: returns a picture without the object of a question, which is blacked out; None if the place of
            the object is unknown. Without a function, no places are known.
        made_from: their sources, as JSON holds them.
        folder: where the pictures are, if they are files.
    """

    questions: tuple[LabelledQuestion, ...]
    open: Callable[[str], Image.Image]
    hide: Callable[[LabelledQuestion, Image.Image], Image.Image | None] | None
    made_from: Mapping[str, Any]
    folder: str = ""

    @property
    def pictures(self) -> list[str]:
        """The pictures' names, each once."""
        return list(dict.fromkeys(question.picture for question in self.questions))


def from_files(
    paths: Sequence[Path], folder: Path, limit: int | None = None, annotations: Path | None = None
) -> LabelledQuestions:
    """Read POPE's question files; questions in several files are asked once.

    Args:
        paths: files of JSON lines or of a JSON array, with `image`, `text` and `label` (yes or no).
        folder: where the images are.
        limit: take only the first questions.
        annotations: COCO's instances: a file of them, or a folder that holds some.

    Raises:
        DataError: a file cannot be read, or a row of it; two rows contradict each other.
    """
    labels: dict[tuple[str, str], bool] = {}
    for path in paths:
        for row in read_questions(path):
            if labels.setdefault((row.image, row.text), row.expected) != row.expected:
                raise DataError(f"{path}: {row.text!r} about {row.image} has another label in an earlier row")
    questions = tuple(LabelledQuestion(*asked, expected) for asked, expected in [*labels.items()][:limit])
    made_from: dict[str, Any] = {
        "files": [path.name for path in paths],
        "questions_sha256": hash_of(questions=[[each.picture, each.text, each.expected] for each in questions]),
    }
    pictures, hide = folder.resolve(), None
    if annotations is not None:
        regions = Regions.read(annotations, {question.picture for question in questions})
        made_from |= {"annotations": regions.files}

        def hide(question: LabelledQuestion, image: Image.Image) -> Image.Image | None:
            places = regions.about(question.picture, question.text)
            return black_out(image, places) if places else None

    return LabelledQuestions(
        questions, lambda name: open_picture(pictures / name).image, hide, made_from, folder=str(pictures)
    )
