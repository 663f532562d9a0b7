"""POPE (Li et al. 2023): yes/no questions about objects, scored as published scripts do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sira_cli.errors import SettingsError
from sira_cli.eval.answers.names import named_after
from sira_cli.eval.base import ONE_WORD, Ask, Benchmark, Part, Tally, Texts, ratio
from sira_cli.eval.paper import pope_group
from sira_cli.eval.rows import id_of, read_rows, text_of
from sira_cli.files import replacing


@dataclass(frozen=True)
class Question:
    """A row of a question file; `there`: whether yes is the true answer."""

    number: int
    image: str
    text: str
    there: bool


def read_questions(path: Path) -> list[Question]:
    """A file of POPE: JSON lines or a JSON array of `image`, `text`, `label` and, maybe, `question_id`.

    Raises:
        SettingsError: it cannot be read, a row of it is no question, or there is none.
    """
    questions: dict[int, Question] = {}
    for where, row in read_rows(path):
        label = text_of(where, row, "label").strip().lower()
        if label not in ("yes", "no"):
            raise SettingsError(f"{where}: label must be yes or no, got {row['label']!r}")
        number = id_of(where, row, "question_id") if "question_id" in row else len(questions) + 1
        if number in questions:
            raise SettingsError(f"{where}: question_id {number} was there before: every question needs its own")
        questions[number] = Question(number, text_of(where, row, "image"), text_of(where, row, "text"), label == "yes")
    if not questions:
        raise SettingsError(f"{path}: holds no questions")
    return list(questions.values())


def split_names(paths: Sequence[Path]) -> list[str]:
    """A name for each file.

    Raises:
        SettingsError: two would have the same.
    """
    names = [pope_group(path.stem) for path in paths]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise SettingsError(f"{paths[number]}: another file is named {name}, too: rename one, their splits mix up")
    return names


def official(answer: str, there: bool = True) -> bool:
    """evaluate.py of POPE: yes, unless the first sentence has the word No, not or no."""
    words = answer.split(".")[0].replace(",", "").split(" ")
    return not {"No", "not", "no"} & set(words)


def vcd(answer: str, there: bool) -> bool:
    """eval_pope.py of VCD: what is looked for depends on what is true."""
    said = answer.lower().strip()
    return "yes" in said if there else "no" not in said


def opera(answer: str, there: bool = True) -> bool:
    """pope_eval.py of OPERA: no, if any sentence has the word No, not, no, NO or one that ends in n't."""
    words = answer.replace(".", "").replace(",", "").split(" ")
    return not any(word in ("No", "not", "no", "NO") or word.endswith("n't") for word in words)


def strict(answer: str, there: bool = True) -> bool | None:
    """The first word decides, whatever its case; None if it is neither yes nor no."""
    word = re.search(r"[^\W\d_]+(?:'[^\W\d_]+)*", answer)
    return {"yes": True, "no": False}.get(word[0].lower()) if word else None


RULES: dict[str, Callable[[str, bool], bool | None]] = {
    "official": official,
    "vcd": vcd,
    "opera": opera,
    "strict": strict,
}
_CELLS = ("TP", "FP", "TN", "FN", "unanswered yes", "unanswered no")


class Pope(Benchmark):
    """Question files, a split each. `rule` is one of RULES."""

    name = "pope"
    averaged = True

    def __init__(
        self, paths: Sequence[Path], *, rule: str = "official", suffix: str = ONE_WORD, limit: int | None = None
    ) -> None:
        """Read the files.

        Args:
            paths: of the files; the split is named after the file: `coco_pope_random.json` is `coco random`.
            rule: how an answer becomes yes or no.
            suffix: after each question, when it is asked.
            limit: only so many questions of each file.

        Raises:
            SettingsError: no such rule, a file cannot be read, or two have the same name.
        """
        if rule not in RULES:
            raise SettingsError(f"--rule {rule!r}: expected {', '.join(RULES)}")
        self.rule = rule
        self._paths = dict(zip(split_names(paths), paths, strict=True))
        self._questions = {split: read_questions(path)[:limit] for split, path in self._paths.items()}
        asks = (
            Ask(_id(split, asked), asked.image, asked.text + suffix, f"{asked.image}: {asked.text}")
            for split, questions in self._questions.items()
            for asked in questions
        )
        self.parts = (Part("pope", "ask", tuple(asks), tuple(self._paths)),)

    def score(self, part: Part, texts: Texts) -> dict[str, Tally]:
        """Counts of TP, FP, TN, FN, of questions without a yes or no (`strict`), and of words."""
        return {split: self._tally(split, texts) for split in part.groups}

    def _tally(self, split: str, texts: Texts) -> Tally:
        tally = Tally()
        for asked, text in self._answered(split, texts):
            row = tally.counts.setdefault(asked.image, dict.fromkeys((*_CELLS, "neither", "words"), 0))
            cell = _cell(asked.there, RULES[self.rule](text, asked.there))
            row[cell] += 1
            row["neither"] += strict(text) is None
            row["words"] += len(text.split())
            tally.right[_id(split, asked)] = cell in ("TP", "TN")
        return tally

    def figures(self, group: str, total: Mapping[str, float]) -> dict[str, float]:
        """Accuracy, precision, recall and F1 as evaluate.py; FPR as the paper's appendix; in percent but for words.

        What is unanswered (`strict`) is wrong: it counts in the denominators of accuracy, recall, FPR and yes.
        """
        tp, fp, tn, fn, unanswered_yes, unanswered_no = (total[cell] for cell in _CELLS)
        answers = tp + tn + fp + fn + unanswered_yes + unanswered_no
        precision = ratio(tp, tp + fp)
        recall = ratio(tp, tp + fn + unanswered_yes)
        shares = {
            "accuracy": ratio(tp + tn, answers),
            "F1": ratio(2 * precision * recall, precision + recall),
            "precision": precision,
            "recall": recall,
            "FPR": ratio(fp, fp + tn + unanswered_no),
            "yes": ratio(tp + fp, answers),
            "neither": ratio(total["neither"], answers),
        }
        return {name: 100 * share for name, share in shares.items()} | {"words": ratio(total["words"], answers)}

    def read(self, paths: Sequence[Path]) -> dict[str, dict[str, str]]:
        """A file a split: `{"question", "answer"}` in the order of the questions, or `{"question_id", "text"}`."""
        if len(paths) != len(self._paths):
            raise SettingsError(
                f"{paths[0]}: {len(paths)} files of answers to {len(self._paths)} files of questions: "
                "give one for each, in the same order"
            )
        texts: dict[str, str] = {}
        for split, path in self._matched(paths):
            texts |= self._read_split(split, path)
        return {"pope": texts}

    def _matched(self, paths: Sequence[Path]) -> list[tuple[str, Path]]:
        """Splits and their answers: by name where all files of answers have those of the questions, else in order."""
        questions = list(self._paths.values())
        named = {named_after(path, questions): path for path in paths}
        if named.keys() == {*questions}:
            paths = [named[file] for file in questions]
        for file, path in zip(questions, paths, strict=True):
            if named_after(path, questions) not in (None, file):
                raise SettingsError(
                    f"{path}: by its name it does not answer {file}: give one for each, in the same order, or rename it"
                )
        return list(zip(self._paths, paths, strict=True))

    def _read_split(self, split: str, path: Path) -> dict[str, str]:
        questions = self._questions[split]
        by_number = {asked.number: asked for asked in questions}
        found: dict[str, str] = {}
        where = str(path)
        for position, (where, row) in enumerate(read_rows(path)):
            if "label" in row and "answer" not in row and str(row.get("text")).rstrip().endswith("?"):
                raise SettingsError(f"{where}: is a question, expected an answer: is --answers right?")
            if "question_id" in row:
                number = id_of(where, row, "question_id")
                if number not in by_number:
                    raise SettingsError(f"{where}: question_id {number} is not in {self._paths[split]}")
                asked = by_number[number]
            elif position < len(questions):
                asked = questions[position]
            else:
                raise SettingsError(f"{where}: too many answers: {self._paths[split]} has {len(questions)} questions")
            said = str(row.get("question", row.get("prompt", asked.text)))
            image = Path(str(row.get("image", asked.image))).name
            if asked.text not in said or image != Path(asked.image).name:
                raise SettingsError(
                    f"{where}: answers {said!r} about {image}, but question {asked.number} of {self._paths[split]} is "
                    f"{asked.text!r} about {asked.image}"
                )
            if _id(split, asked) in found:
                raise SettingsError(f"{where}: question {asked.number} was answered before")
            found[_id(split, asked)] = text_of(where, row, "answer", "text")
        missing = next((asked for asked in questions if _id(split, asked) not in found), None)
        if missing is not None:
            raise SettingsError(
                f"{where}: the file ends after {len(found)} of {len(questions)} answers: "
                f"question {missing.number} of {self._paths[split]} has none"
            )
        return found

    def export(self, texts: Mapping[str, Texts], folder: Path) -> list[Path]:
        """A file of JSON lines a split: what POPE's, VCD's and OPERA's scripts look for."""
        written = []
        for split, path in self._paths.items():
            target = folder / f"{path.stem}.jsonl"
            with replacing(target) as file:
                for asked, text in self._answered(split, texts["pope"]):
                    row = {"question_id": asked.number, "image": asked.image, "question": asked.text}
                    file.write(json.dumps(row | {"answer": text, "text": text}, ensure_ascii=False).encode() + b"\n")
            written.append(target)
        return written

    def details(self, part: Part, texts: Texts) -> Iterator[dict[str, Any]]:
        """Each answer, and what the rule takes it for."""
        for split in part.groups:
            for asked, text in self._answered(split, texts):
                yes = RULES[self.rule](text, asked.there)
                said = "" if yes is None else "yes" if yes else "no"
                truth = "yes" if asked.there else "no"
                row = {"split": split, "question_id": asked.number, "image": asked.image, "question": asked.text}
                yield row | {"label": truth, "answer": text, "taken_for": said, "right": said == truth}

    def stand_ins(self) -> dict[str, str]:
        """The rule `strict`, which is of no published script."""
        return {"pope": "rule strict"} if self.rule == "strict" else {}

    def facts(self) -> dict[str, Any]:
        """The rule and the files."""
        return {"rule": self.rule, "questions": {split: str(path) for split, path in self._paths.items()}}

    def _answered(self, split: str, texts: Texts) -> Iterator[tuple[Question, str]]:
        for asked in self._questions[split]:
            if (text := texts.get(_id(split, asked))) is not None:
                yield asked, text


def _id(split: str, asked: Question) -> str:
    return f"{split}/{asked.number}"


def _cell(there: bool, yes: bool | None) -> str:
    if yes is None:
        return "unanswered yes" if there else "unanswered no"
    if there:
        return "TP" if yes else "FN"
    return "FP" if yes else "TN"
