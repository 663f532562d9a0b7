"""DASH-B (Augustin et al. 2025): pictures that make models see an absent object, and as many that show it."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from sira_cli.data.rows import brief, read_json
from sira_cli.errors import DataError
from sira_cli.eval.card import WORDING, Asking, Card
from sira_cli.eval.recalls import Recalls
from sira_cli.eval.stats.pope import repope
from sira_cli.eval.yes_no import Question, ours
from sira_cli.pictures.names import is_utf8

FILES = {"pos": "yes", "neg": "no"}  # the folders, and the true answer about their pictures
GROUP = "all"


class DashB(Recalls):
    """DASH-B's questions: one per picture."""

    name = "dash-b"
    names: ClassVar = {"accuracy": "accuracy", "yes": "TPR", "no": "TNR", "both": "harmonic mean"}

    def said(self, question: Question, text: str) -> str:
        """Read an answer as compute_answer: `yes` anywhere, else `no` anywhere."""
        return {True: "yes", False: "no", None: ""}[repope(text)]

    def find(self, row: Mapping[str, Any], path: Path) -> str | None:
        """Also find a question by `object_name`, `img_id` and `gt`, as in the official script's files."""
        about = (row.get("img_id"), row.get("object_name"), row.get("gt"))
        return self._about.get(about) or super().find(row, path)

    @functools.cached_property
    def _about(self) -> dict[tuple[Any, Any, Any], str]:
        return {tuple(self.official(question, "").values())[:3]: id_ for id_, question in self._known.items()}

    def official(self, question: Question, text: str) -> dict[str, Any]:
        """Return a row of the script's `*_answers.json`."""
        *_, name, file = question.picture.split("/")
        about = {"img_id": file, "object_name": name, "gt": question.expected}
        return about | {"response": text, "answer": self.said(question, text) or None}


def _read(folder: Path, asking: Asking) -> DashB:
    known: list[Question] = []
    asked: list[Question] = []
    for side, path in zip(FILES, CARD.find(folder), strict=True):
        found = list(_questions(path, side, asking))
        if not found:
            raise DataError(f"{path}: names no pictures: expected file names by data set and object")
        known += found
        asked += found[: asking.limit]
    return DashB(asked, (GROUP,), known=known)


def _questions(path: Path, side: str, asking: Asking) -> Iterator[Question]:
    for name, dataset, file in _names(path):
        text = f"Can you see a {name} in this image?"
        official = f"{text} Please answer only with yes or no."
        prompt = official if asking.wording == "official" else ours(f"Is there a {name} in the image?")
        picture = f"{side}/{dataset}/{name}/{file}"
        yield Question(picture, picture, text, prompt, FILES[side], GROUP)


def _names(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield object, data set and file name of every picture in one of the two files."""
    sets = read_json(path)
    if not isinstance(sets, dict) or not sets:
        raise DataError(f"{path}: expected file names by data set and object, got {brief(sets)}")
    for dataset, objects in sets.items():
        if not isinstance(objects, dict):
            raise DataError(f"{path}: {dataset}: expected file names by object, got {brief(objects)}")
        for name, files in objects.items():
            if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
                raise DataError(f"{path}: {dataset}: {name}: expected a list of file names, got {brief(files)}")
            if not all(is_utf8(text) for text in (dataset, name, *files)):
                raise DataError(f"{path}: {brief(dataset)}: {brief(name)}: a name holds half a character")
            yield from ((name, dataset, file) for file in files)


CARD = Card(
    name=DashB.name,
    title="Yes/no questions about objects that pictures only suggest",
    source="Augustin et al. 2025",
    figures="accuracy, TPR, TNR, harmonic mean",
    files=tuple(f"dash_benchmark_{side}.json" for side in FILES),
    pictures=".",
    size="2,682 pictures (neg.zip and pos.zip) and 0.1 MB of lists",
    licence="none stated",
    url="https://github.com/YanNeu/DASH-B (folder images)",
    answers='{"object_name", "img_id", "gt", "response"}',
    read=_read,
    options=(WORDING,),
)
