"""EventHallusion (Zhang et al. 2024): yes/no questions about events in clips that a model may expect, but not see.

The descriptions of the same clips need a judge (GPT-4o) and are not asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from sira_cli.data.rows import brief, is_array, read_json, read_rows, text_of
from sira_cli.errors import DataError
from sira_cli.eval.base import Texts
from sira_cli.eval.card import WORDING, Asking, Card
from sira_cli.eval.recalls import Recalls
from sira_cli.eval.yes_no import Question, ours
from sira_cli.files import write_whole

SPLITS = ("entire", "interleave", "misleading")
OVERALL = "overall"
SUFFIX = "\nPlease answer yes or no:"
LABELS = {"Yes.": "yes", "No.": "no"}


class EventHallusion(Recalls):
    """EventHallusion's questions: one or two about each clip."""

    name = "eventhallusion"
    names: ClassVar = {"accuracy": "accuracy", "yes": "TPR", "no": "TNR"}

    def groups_of(self, question: Question) -> Sequence[str]:
        """Return the split, and all splits together."""
        return (question.group, OVERALL)

    def said(self, question: Question, text: str) -> str:
        """Read an answer as eval.py: its first letters."""
        start = text.lower()
        return next((word for word in ("yes", "no") if start.startswith(word)), "")

    def rows(self, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield rows, also of the authors' files of predictions: splits of clips with their questions in `qa`."""
        if path.suffix != ".json" or is_array(path):
            yield from super().rows(path)
            return
        try:
            for clips in read_json(path).values():
                for clip, found in clips.items():
                    for number, answer in enumerate(found["qa"], start=1):
                        row = {"id": f"{clip}/{number}", "question": answer["question"]}
                        yield f"{path}: {clip}", row | {"text": answer["prediction"] or ""}
        except (KeyError, TypeError, AttributeError):
            raise DataError(f"{path}: expected splits with clips, each with `qa`: predictions of the authors") from None

    def export(self, texts: Mapping[str, Texts], folder: Path) -> list[Path]:
        """Write the answers as the authors' file of predictions, without descriptions."""
        found: dict[str, dict[str, Any]] = {split: {} for split in SPLITS}
        labels = {word: label for label, word in LABELS.items()}
        for question, text in self.answered(texts[self.name]):
            clip = question.id.rpartition("/")[0]
            row = found[question.group].setdefault(clip, {"id": clip, "qa": [], "desc": "", "judgement": ""})
            row["qa"].append({"question": question.text, "answer": labels[question.expected], "prediction": text})
        target = folder / f"{self.name}.json"
        write_whole(target, json.dumps(found, ensure_ascii=False, indent=4).encode())
        return [target]


def _read(folder: Path, asking: Asking) -> EventHallusion:
    known: list[Question] = []
    asked: list[Question] = []
    for split, path in zip(SPLITS, CARD.find(folder), strict=True):
        clips = [list(_questions(where, row, split, asking)) for where, row in read_rows(path)]
        known += [question for clip in clips for question in clip]
        asked += [question for clip in clips[: asking.limit] for question in clip]
    return EventHallusion(asked, (*SPLITS, OVERALL), known=known)


def _questions(where: str, row: dict[str, Any], split: str, asking: Asking) -> Iterator[Question]:
    clip, questions = text_of(where, row, "id"), row.get("questions")
    if not isinstance(questions, list) or not all(isinstance(each, dict) for each in questions):
        raise DataError(f"{where}: expected a list of questions, got {brief(questions)}")
    for number, each in enumerate(questions, start=1):
        text, label = text_of(where, each, "question"), text_of(where, each, "answer")
        if label not in LABELS:
            raise DataError(f"{where}: answer is {brief(label)}, expected {' or '.join(LABELS)}")
        prompt = text + SUFFIX if asking.wording == "official" else ours(text)
        yield Question(f"{clip}/{number}", f"{split}/{clip}.mp4", text, prompt, LABELS[label], split)


CARD = Card(
    name=EventHallusion.name,
    title="Yes/no questions about events in clips that a model may expect",
    source="Zhang et al. 2024",
    figures="accuracy, TPR, TNR",
    files=tuple(f"questions/{split}_questions.json" for split in SPLITS),
    holds="questions/",
    pictures="videos",
    size="397 clips and 0.4 MB of questions",
    licence="none stated",
    url="https://github.com/Stevetich/EventHallusion",
    answers="predictions of the authors' scripts",
    read=_read,
    options=(WORDING,),
    main=(OVERALL,),
)
