"""VidHalluc (Li et al. 2025): questions about actions in clips that look alike, and about their order.

A binary question is right if it is for every clip that it is asked about. The questions about scenes need a model of
sentences as a judge, and are not asked. Formats and rules are those of the authors' scripts.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sira_cli.data.rows import brief, read_json, text_of
from sira_cli.errors import DataError
from sira_cli.eval.base import Part, Texts
from sira_cli.eval.card import Asking, Card
from sira_cli.eval.stats.tally import Denominators, Tally, ratio
from sira_cli.eval.yes_no import Question, YesNo, shared_figures
from sira_cli.files import write_whole

FILES = {"binary": "ach_binaryqa.json", "choice": "ach_mcq.json", "order": "tsh.json"}  # by group
_BINARY = " Only answer with a single word 'Yes' or 'No'."
_CHOICE = (
    " Please select the correct answer (one or more options), only return your answer(s). (e.g., ABCD)\nChoices:\n"
)
_ORDER = (
    "Sort these two actions in the order they occur in the video, and return which action happen before which one. "
    "If you only detect one action, return that action."
)
_ACTION = r"(action [ab]|[ab][.)])"


class VidHalluc(YesNo):
    """VidHalluc's questions; `rows` has the row of the authors' files for each."""

    name = "vidhalluc"

    def __init__(
        self, asked: Sequence[Question], known: Sequence[Question], rows: Mapping[str, dict[str, Any]]
    ) -> None:
        """Args: the questions that are asked, all of them, and their rows by id."""
        super().__init__(asked, tuple(FILES), known=known)
        self._of = rows

    def said(self, question: Question, text: str) -> str:
        """Read an answer as the authors' scripts."""
        if question.group == "binary":
            word = text.strip().split(".")[0].split(",")[0].strip().lower()
            return word if word in ("yes", "no") else ""
        if question.group == "order":
            return order_in(text)
        if letters := set(re.findall(r"\b[A-D]\b", text)):
            return "".join(sorted(letters))
        choices = self._of[question.id]["Choices"].items()
        return next((letter for letter, choice in choices if choice.lower() in text.lower()), "")

    def score(self, part: Part, texts: Texts) -> dict[str, Tally]:
        """Count right questions: those whose answers are right for all of their clips."""
        tallies = {group: Tally() for group in part.groups}
        for unit, each in itertools.groupby(self.questions, lambda question: question.together):
            questions = [question for question in each if question.id in texts]
            rights = [self.right(question, texts[question.id]) for question in questions]
            for question in questions:
                last = question is questions[-1]
                counts = {"right": all(rights) * last, "asked": last}
                self.count(tallies[question.group], unit, question, texts[question.id], counts)
        return tallies

    def figures(self, group: str, total: Mapping[str, float]) -> dict[str, float]:
        """Return the accuracy of the authors' scripts, in percent."""
        return {"accuracy": 100 * ratio(total["right"], total["asked"])} | shared_figures(total)

    def denominators(self, group: str) -> Denominators:
        """Return the counts that each share divides by."""
        return {"accuracy": ("asked",), "neither": ("answers",)}

    def export(self, texts: Mapping[str, Texts], folder: Path) -> list[Path]:
        """Write the answers as the authors' scripts read them."""
        found: dict[str, dict[str, Any]] = {group: {} for group in FILES}
        for question, text in self.answered(texts[self.name]):
            key, *place = question.id.split("/")[1:]
            if question.group == "binary":
                row = found["binary"].setdefault(key, {}).setdefault(place[0], {"q": question.text, "a": {}})
                row["a"][place[1]] = text
                continue
            row = {**self._of[question.id], "Model Answer": text}
            found[question.group] |= {key: {**found["choice"].get(key, {}), place[0]: row} if place else row}
        found["binary"] = {key: [*rows.values()] for key, rows in found["binary"].items()}
        files = [folder / name for name in FILES.values()]
        for file, rows in zip(files, found.values(), strict=True):
            write_whole(file, json.dumps(rows, ensure_ascii=False, indent=4).encode())
        return files


def order_in(text: str) -> str:
    """Return the order of the actions a and b that a text tells, such as `AB`, by the authors' rules; empty without."""
    text = text.lower()
    if text in ("a", "b", "ab", "ba"):
        return text.upper()
    if "not clear" in text or "no clear" in text:
        return ""
    both = [action for action in "ab" if f"action {action}" in text]
    if len(both) < 2:
        return "".join(both).upper()
    for word in [each for each in ("before", "then", "after") if each in text][:1]:
        # The rules exclude the letters of a word, not the word.
        if found := re.search(rf"{_ACTION}[^{word}]+{word}[^action]*?{_ACTION}", text):
            first, second = (found[group][-1].upper() for group in (1, 2))
            return second + first if word == "after" else first + second
    return "".join(each[-1].upper() for each in re.findall(_ACTION, text))


def _read(folder: Path, asking: Asking) -> VidHalluc:
    known: list[Question] = []
    asked: list[Question] = []
    rows: dict[str, dict[str, Any]] = {}
    for group, path in zip(FILES, CARD.find(folder), strict=True):
        found = read_json(path)
        try:
            units = [[*_unit(f"{path}: {key}", group, key, row, rows)] for key, row in found.items()]
        except (AttributeError, TypeError, KeyError) as error:
            raise DataError(f"{path}: is not in the form of VidHalluc: {brief(str(error))}") from None
        known += [question for unit in units for question in unit]
        asked += [question for unit in units[: asking.limit] for question in unit]
    return VidHalluc(asked, known, rows)


def _unit(where: str, group: str, key: str, found: Any, rows: dict[str, dict[str, Any]]) -> Iterator[Question]:
    """Yield the questions of an entry of a file."""
    if group == "binary":
        for number, row in enumerate(found):
            unit = f"binary/{key}/{number}"
            for clip, answer in row["a"].items():
                text = text_of(where, row, "q")
                prompt, expected = text + _BINARY, answer.strip().lower()
                yield Question(f"{unit}/{clip}", f"ACH/{clip}.mp4", text, prompt, expected, group, unit)
        return
    for clip, row in found.items() if group == "choice" else ((found["video"], found),):
        id_, text = f"{group}/{key}" + f"/{clip}" * (group == "choice"), text_of(where, row, "Question")
        rows[id_], expected = row, text_of(where, row, "Correct Answer")
        if group == "choice":
            choices = "".join(f"{letter}. {choice}\n" for letter, choice in row["Choices"].items())
            expected = "".join(sorted(set(re.findall("[A-D]", expected.upper()))))
            yield Question(id_, f"ACH/{clip}.mp4", text, text + _CHOICE + choices, expected, group, id_)
        else:
            yield Question(id_, f"TSH/{clip}.mp4", text, text + _ORDER, expected, group, id_)


CARD = Card(
    name=VidHalluc.name,
    title="Questions about actions in clips that look alike, and about their order",
    source="Li et al. 2025",
    figures="accuracy",
    files=tuple(FILES.values()),
    holds=", ".join(FILES.values()),
    pictures="data",
    size="5,002 clips and 9,295 questions with those about scenes",
    licence="none stated",
    url="https://huggingface.co/datasets/chaoyuli/VidHalluc",
    answers="none",
    read=_read,
    main=tuple(FILES),
)
