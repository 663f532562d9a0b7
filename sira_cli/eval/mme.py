"""MME (Fu et al. 2023): two yes/no questions about each picture, one with each answer, in up to fourteen subsets."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sira_cli.data.rows import brief, read_text
from sira_cli.errors import DataError, SettingsError
from sira_cli.eval.base import Part, Texts
from sira_cli.eval.card import WORDING, Asking, Card
from sira_cli.eval.stats.tally import Denominators, Tally, ratio
from sira_cli.eval.yes_no import Question, YesNo, ours, shared_figures
from sira_cli.files import replacing

HALLUCINATION = ("existence", "count", "position", "color")
PERCEPTION = (*HALLUCINATION, "posters", "celebrity", "scene", "landmark", "artwork", "OCR")
COGNITION = ("commonsense_reasoning", "numerical_calculation", "text_translation", "code_reasoning")
TOTALS = {"hallucination": HALLUCINATION, "perception": PERCEPTION, "cognition": COGNITION}
SUFFIX = " Please answer yes or no."  # ends MME's questions
PICTURES = (".jpg", ".png", ".jpeg")
FIELDS = ("image", "question", "label", "text")  # of a line of results


class Mme(YesNo):
    """MME's questions, in the order of subsets and pictures."""

    name = "mme"

    def said(self, question: Question, text: str) -> str:
        """Read an answer as parse_pred_ans: yes or no, if its first four characters contain it."""
        start = text.lower()[:4]
        return "yes" if "yes" in start else "no" if "no" in start else ""

    def score(self, part: Part, texts: Texts) -> dict[str, Tally]:
        """Count right answers, and pictures with both answers right, by subset."""
        tallies = {group: Tally() for group in part.groups}
        counted: dict[str, bool] = {}  # whether all answers about a picture so far are right
        for question, text in self.answered(texts):
            right = self.right(question, text)
            second, both = question.picture in counted, counted.get(question.picture, True) and right
            counted[question.picture] = both
            for group, tally in tallies.items():
                if question.group not in _subsets(group):
                    continue
                counts = {f"{subset} {name}": 0 for subset in _subsets(group) for name in ("right", "both", "pictures")}
                counts[f"{question.group} right"] = right
                counts[f"{question.group} both"] = second and both
                counts[f"{question.group} pictures"] = not second
                self.count(tally, question.picture, question, text, counts)
        return tallies

    def figures(self, group: str, total: Mapping[str, float]) -> dict[str, float]:
        """Return accuracy, accuracy+ (pictures with both answers right) in percent, as means over a total's subsets,
        and their sum as the score.
        """
        subsets = _subsets(group)
        accuracy = sum(ratio(total[f"{each} right"], 2 * total[f"{each} pictures"]) for each in subsets)
        both = sum(ratio(total[f"{each} both"], total[f"{each} pictures"]) for each in subsets)
        shares = {"accuracy": accuracy / len(subsets), "accuracy+": both / len(subsets), "score": accuracy + both}
        return {name: 100 * share for name, share in shares.items()} | shared_figures(total)

    def denominators(self, group: str) -> Denominators:
        """Return the counts that each share divides by; the score is not a share."""
        return dict.fromkeys(("accuracy", "accuracy+", "neither"), ("answers",))

    def find(self, row: Mapping[str, Any], path: Path) -> str | None:
        """Find a question by its text and picture: in a line of SUBSET.txt, or in `question_id`, as LLaVA has it."""
        said = str(row.get("question", row.get("prompt", "")))
        picture = f"{path.stem}/{row['image']}" if {"image", "label"} <= row.keys() else str(row.get("question_id"))
        fitting = [each for each in self._by_picture.get(picture, ()) if self.is_in(each, said)]
        return max(fitting, key=lambda each: len(each.text)).id if fitting else super().find(row, path)

    def is_in(self, question: Question, prompt: str) -> bool:
        """Return whether a prompt asks a question, with or without its last words."""
        return question.text.removesuffix(SUFFIX) in prompt

    @functools.cached_property
    def _by_picture(self) -> dict[str, list[Question]]:
        found: dict[str, list[Question]] = {}
        for question in self._known.values():
            found.setdefault(_named(question), []).append(question)
        return found

    def rows(self, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield rows, also of the script's files: picture, question, label and answer, separated by tabs."""
        if path.suffix != ".txt":
            yield from super().rows(path)
            return
        for number, line in enumerate(read_text(path).removesuffix("\n").split("\n"), start=1):
            cells = line.split("\t")
            if len(cells) != len(FIELDS):
                raise DataError(f"{path}: line {number}: expected {', '.join(FIELDS)} with tabs between")
            yield f"{path}: line {number}", dict(zip(FIELDS, cells, strict=True))

    def export(self, texts: Mapping[str, Texts], folder: Path) -> list[Path]:
        """Write the answers as the script's SUBSET.txt; tabs and line breaks in them become spaces."""
        files = []
        for subset in dict.fromkeys(question.group for question in self.questions):
            files.append(folder / f"{subset}.txt")
            with replacing(files[-1]) as file:
                for question, text in self.answered(texts[self.name], subset):
                    name = question.picture.rpartition("/")[2]
                    line = (name, question.text, question.expected.capitalize(), re.sub(r"[\t\r\n]", " ", text))
                    file.write(("\t".join(line) + "\n").encode())
        return files


def _subsets(group: str) -> tuple[str, ...]:
    return TOTALS.get(group, (group,))


def _named(question: Question) -> str:
    """Return subset and picture of an id, without the folder between them."""
    return f"{question.group}/{question.picture.rpartition('/')[2]}"


def _read(folder: Path, asking: Asking) -> Mme:
    there = [subset for subset in (*PERCEPTION, *COGNITION) if (folder / subset).is_dir()]
    if not there:
        raise SettingsError(
            f"{folder}: has none of MME's folders ({', '.join(HALLUCINATION)}, ...): ask for them at {CARD.url}"
        )
    known: list[Question] = []
    asked: list[Question] = []
    for subset in there:
        found = list(_questions(folder, subset, asking))
        if not found:
            raise DataError(
                f"{folder / subset}: holds no questions: expected a .txt file per picture, or no such folder"
            )
        known += found
        asked += found if asking.limit is None else found[: 2 * asking.limit]
    totals = [name for name, subsets in TOTALS.items() if {*subsets} <= {*there}]
    return Mme(asked, (*there, *totals), known=known)


def _questions(folder: Path, subset: str, asking: Asking) -> Iterator[Question]:
    inside = (folder / subset / "questions_answers_YN").is_dir()
    texts = folder / subset / "questions_answers_YN" if inside else folder / subset
    pictures = folder / subset / "images" if inside else folder / subset
    names = {path.stem: path.name for path in sorted(pictures.iterdir()) if path.suffix.lower() in PICTURES}
    for path in sorted(texts.glob("*.txt")):
        picture = (pictures / names.get(path.stem, f"{path.stem}.jpg")).relative_to(folder).as_posix()
        lines = [line for line in read_text(path).splitlines() if line.strip()]
        if len(lines) != 2:
            raise DataError(f"{path}: holds {len(lines)} questions, expected two")
        for number, line in enumerate(lines, start=1):
            text, _, label = (cell.strip() for cell in line.partition("\t"))
            if label.lower() not in ("yes", "no"):
                raise DataError(f"{path}: line {number}: expected a question, a tab, and Yes or No, got {brief(line)}")
            prompt = text if asking.wording == "official" else ours(text.removesuffix(SUFFIX))
            yield Question(f"{picture}: {text}", picture, text, prompt, label.lower(), subset)


CARD = Card(
    name=Mme.name,
    title="Two yes/no questions about each picture, in up to fourteen subsets",
    source="Fu et al. 2023",
    figures="accuracy, accuracy+, score; also of hallucination (four subsets), perception, cognition",
    files=(),
    holds=f"a folder per subset, such as {HALLUCINATION[0]}",
    pictures=".",
    main=tuple(TOTALS),
    size="2,374 questions and 1,187 pictures",
    licence="for research, on request",
    url="https://github.com/BradyFU/Awesome-Multimodal-Large-Language-Models/tree/Evaluation",
    answers='the lines of the script\'s SUBSET.txt (`LABEL=results/*.txt`), or {"question_id", "prompt", "text"}',
    read=_read,
    options=(WORDING,),
    note="Subsets that are missing are left out; a total is shown if all of its subsets are there.",
)
