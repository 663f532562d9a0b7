"""HaloQuest (Wang et al. 2024): 608 open questions, many without an answer, judged externally by Gemini."""

from __future__ import annotations

import csv
import functools
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sira_cli.data.rows import brief, read_table, some
from sira_cli.errors import DataError
from sira_cli.eval.base import Texts
from sira_cli.eval.card import Asking, Card
from sira_cli.eval.judged import Judged, Open
from sira_cli.eval.stats.tally import Counts, ratio
from sira_cli.files import write_whole

GROUPS = ("hallucination type", "image type")
COLUMNS = ("image_name", "question", "groundtruth responses", *GROUPS)
VERDICT, ANSWER = "is_prediction_correct", "model_response"  # as in the notebook's class PredictionEvaluation


class HaloQuest(Judged):
    """HaloQuest's questions; a verdict is `true` or `false`."""

    name = "haloquest"
    rates = ("accuracy",)

    def judge(self, verdict: str) -> tuple[bool, Counts]:
        """Count right answers."""
        return verdict == "true", {"right": verdict == "true"}

    def shares(self, total: Mapping[str, float]) -> dict[str, float]:
        """Return the accuracy in percent."""
        return {"accuracy": 100 * ratio(total["right"], total["verdicts"])}

    def verdict(self, where: str, row: Mapping[str, Any]) -> str | None:
        """Return the Auto-Eval's verdict: a truth value of JSON, or its name in a table."""
        if VERDICT not in row:
            return None
        text = str(row[VERDICT]).strip().lower()
        if text not in ("true", "false"):
            raise DataError(f"{where}: {VERDICT} must be true or false, got {brief(row[VERDICT])}")
        return text

    def find(self, where: str, row: Mapping[str, Any], number: int) -> str:
        """Find a question by its picture's name and its text."""
        about = (row.get("image_name"), row.get("question"))
        if about not in self._about:
            raise DataError(f"{where}: {brief(about[1])} about {brief(about[0])} is no question of HaloQuest")
        return self._about[about]

    @functools.cached_property
    def _about(self) -> dict[tuple[Any, Any], str]:
        return {(each.picture, each.text): each.id for each in self._known}

    def export(self, texts: Mapping[str, Texts], folder: Path) -> list[Path]:
        """Write the questions' table with a column `model_response`, for the notebook's `compute_prediction`."""
        answers = texts.get(self.name, {})
        table = io.StringIO()
        writer = csv.DictWriter(table, [*self.questions[0].row, ANSWER], lineterminator="\n")
        writer.writeheader()
        writer.writerows({**each.row, ANSWER: answers[each.id]} for each in self.questions if each.id in answers)
        target = folder / f"{self.name}.csv"
        write_whole(target, table.getvalue().encode())
        return [target]


def _read(folder: Path, asking: Asking) -> HaloQuest:
    (path,) = CARD.find(folder)
    columns, rows = read_table(path)
    if not columns:
        raise DataError(f"{path}: is empty, expected a table")
    if lacking := [name for name in COLUMNS if name not in columns]:
        raise DataError(f"{path}: has no column {lacking[0]}, only {some(columns)}")
    known: dict[tuple[str, str], Open] = {}
    for where, row in rows:
        if empty := [name for name in COLUMNS if not row.get(name)]:
            raise DataError(f"{where}: {empty[0]} is empty")
        about = (row["image_name"], row["question"])
        if about in known:
            raise DataError(f"{where}: {brief(about[1])} about {about[0]} stands twice")
        known[about] = Open(str(len(known)), *about, tuple(row[name] for name in GROUPS), row)
    if not known:
        raise DataError(f"{path}: holds no questions")
    questions = list(known.values())
    pictures = list(dict.fromkeys(each.picture for each in questions))[: asking.limit]
    return HaloQuest([each for each in questions if each.picture in pictures], questions)


CARD = Card(
    name=HaloQuest.name,
    title="Open questions with false premises, judged by Gemini elsewhere",
    source="Wang et al. 2024",
    figures="accuracy (of the judge's file)",
    files=("haloquest-eval.csv",),
    pictures="images",
    size="0.2 MB of questions; 375 pictures by their URLs",
    licence="CC BY 4.0",
    url="https://github.com/google/haloquest",
    answers="the table's rows with {model_response}, or with {is_prediction_correct}",
    judged=True,
    read=_read,
    note="The judge is not asked: --export official writes its input, and --answers sums up its output.",
)
