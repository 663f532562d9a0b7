"""PhD (Liu et al. 2025): five tasks in four modes, each with one question answered by yes and one by no.

Its authors publish the questions and the index, but no script that reads answers: here the first word decides, as in
POPE's rule `strict`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from sira_cli.data.rows import brief, read_rows, text_of
from sira_cli.errors import DataError
from sira_cli.eval.card import WORDING, Asking, Card
from sira_cli.eval.recalls import TRUTHS, Recalls
from sira_cli.eval.stats.pope import strict
from sira_cli.eval.yes_no import Question, ours

CONTEXTS = ("iac", "icc")  # the modes with an inaccurate or an incorrect context before the question
MODES = ("base", *CONTEXTS, "ccs")  # ccs: pictures against common sense
# The authors' words between context and question.
INSTRUCTION = (
    " In case there is an inconsistency between the context and the image content, you should follow the image. "
)


class Phd(Recalls):
    """PhD's questions."""

    name = "phd"
    own = "answer"
    names: ClassVar = {"both": "PhD Index", "yes": "yes recall", "no": "no recall", "accuracy": "accuracy"}

    def said(self, question: Question, text: str) -> str:
        """Read the first word."""
        return {True: "yes", False: "no", None: ""}[strict(text)]

    def groups_of(self, question: Question) -> tuple[str, str]:
        """Return the mode, and mode and task."""
        return question.group.partition(" ")[0], question.group

    def find(self, row: Mapping[str, Any], path: Path) -> str | None:
        """Also find a question by `mode`, `image_id` and `question`."""
        about = (row.get("mode"), str(row.get("image_id")), row.get("question"))
        return super().find(row, path) or self._about.get(about)

    @functools.cached_property
    def _about(self) -> dict[tuple[Any, ...], str]:
        return {tuple(self._asked(question).values()): id_ for id_, question in self._known.items()}

    def _asked(self, question: Question) -> dict[str, str]:
        number = Path(question.picture).stem.rpartition("_")[2]
        mode = question.group.partition(" ")[0]
        return {"mode": mode, "image_id": number.lstrip("0") or "0", "question": question.text}

    def official(self, question: Question, text: str) -> dict[str, Any]:
        """Return a row with the authors' fields; they define no format of answers."""
        return {"id": question.id, **self._asked(question), "truth": question.expected, "answer": text}

    def stand_ins(self) -> dict[str, str]:
        """Return how answers are read, which the authors do not publish."""
        return {self.name: "answers read by their first word: the authors publish no script"}


def _read(folder: Path, asking: Asking) -> Phd:
    (path,) = CARD.find(folder)
    trained = {file.name for file in (folder / CARD.pictures / "train2014").glob("*.jpg")}
    known = list(_questions(path, trained, asking))
    if not known:
        raise DataError(f"{path}: holds no questions")
    seen: dict[str, dict[str, None]] = {}
    for question in known:
        seen.setdefault(question.group.partition(" ")[0], {})[question.picture] = None
    taken = {(mode, picture) for mode, pictures in seen.items() for picture in list(pictures)[: asking.limit]}
    asked = [each for each in known if (each.group.partition(" ")[0], each.picture) in taken]
    groups = dict.fromkeys(each.group for each in asked)
    tasks = [group for mode in MODES for group in groups if group.startswith(f"{mode} ")]
    return Phd(asked, (*(mode for mode in MODES if mode in seen), *tasks), known=known)


def _questions(path: Path, trained: set[str], asking: Asking) -> Iterator[Question]:
    """Yield the questions of a file; COCO pictures missing in `trained` are in val2014, as in the authors' code."""
    for number, (where, row) in enumerate(read_rows(path)):
        image, task = text_of(where, row, "image_id"), text_of(where, row, "task")
        if not image.isdecimal():
            raise DataError(f"{where}: image_id must be digits, got {brief(image)}")
        unusual = "ccs_description" in row
        file = f"COCO_train2014_{image.zfill(12)}.jpg"
        coco = f"train2014/{file}" if file in trained else f"val2014/COCO_val2014_{image.zfill(12)}.jpg"
        picture = f"CCS_images/{image}.png" if unusual else coco
        for mode in ("ccs",) if unusual else MODES[:-1]:
            for truth in TRUTHS:
                text = text_of(where, row, f"{truth}_question")
                asked = text if asking.wording == "official" else ours(text)
                before = _context(where, row, mode) if mode in CONTEXTS else ""
                yield Question(f"{mode}/{number}/{truth}", picture, text, before + asked, truth, f"{mode} {task}")


def _context(where: str, row: Mapping[str, Any], mode: str) -> str:
    contexts = row.get("context")
    if not isinstance(contexts, dict):
        raise DataError(f"{where}: context must hold iac and icc, got {brief(contexts)}")
    return text_of(f"{where}: context", contexts, mode) + INSTRUCTION


CARD = Card(
    name=Phd.name,
    title="Yes/no questions on objects, attributes, sentiment, positions and counts in four modes",
    source="Liu et al. 2025",
    figures="PhD Index, yes recall, no recall, accuracy",
    files=("data.json",),
    pictures="images",
    size="102,000 questions; COCO train2014 and val2014 (19 GB), 750 pictures of CCS_images",
    licence="none stated",
    url="https://huggingface.co/datasets/AIMClab-RUC/PhD",
    main=MODES,
    answers='{"mode", "image_id", "question", "answer"}, without the context',
    read=_read,
    options=(WORDING,),
    note="Pictures lie as the authors say: train2014/, val2014/ and CCS_images/ in images/, next to data.json.",
)
