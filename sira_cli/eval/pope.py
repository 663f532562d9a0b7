"""POPE (Li et al. 2023): yes/no questions about objects, scored as published scripts do.

RePOPE (Neuhaus and Hein 2025) corrects the labels of POPE's COCO questions and leaves ambiguous ones out. Its questions
are POPE's, so that one run of answers gives the figures of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sira_cli.errors import DataError, SettingsError
from sira_cli.eval.answers import Form, holds_samples, holds_splits, named_after, of_split, read_answer_rows
from sira_cli.eval.benchmark import MEAN, ONE_WORD, Ask, Benchmark, Part, Texts
from sira_cli.eval.figures import POPE_DENOMINATORS, RULES, add_answer, pope_figures
from sira_cli.eval.paper import pope_group
from sira_cli.eval.statistics import Denominators, Tally
from sira_cli.pictures.rows import brief, id_of, read_rows, some, text_of

LABEL = "RePOPE"
FORMS = (  # of POPE's evaluate.py, in the order of the questions; and of VCD's eval_pope.py
    Form("answer", (), ("question", "image")),
    Form("text", ("question_id",), ("question", "prompt", "image", "answer_id", "model_id", "metadata")),
)


@dataclass(frozen=True)
class PopeQuestion:
    """A row of a question file; `expected`: whether yes is the true answer."""

    number: int
    image: str
    text: str
    expected: bool


def read_questions(path: Path) -> list[PopeQuestion]:
    """Read a file of POPE: JSON lines or a JSON array of `image`, `text`, `label` and, maybe, `question_id`."""
    questions: dict[int, PopeQuestion] = {}
    for where, row in read_rows(path):
        label = text_of(where, row, "label").strip().lower()
        if label not in ("yes", "no"):
            raise DataError(f"{where}: label must be yes or no, got {brief(row['label'])}")
        number = id_of(where, row, "question_id") if "question_id" in row else len(questions) + 1
        if number in questions:
            raise DataError(f"{where}: question_id {number} stands twice: every question needs its own")
        questions[number] = PopeQuestion(
            number, text_of(where, row, "image"), text_of(where, row, "text"), label == "yes"
        )
    if not questions:
        raise DataError(f"{path}: holds no questions")
    return list(questions.values())


def split_names(paths: Sequence[Path]) -> list[str]:
    """Return a name for each file."""
    names = [pope_group(path.stem) for path in paths]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise SettingsError(f"{paths[number]}: another file is also named {name}: rename one, or their splits mix")
    return names


class Pope(Benchmark):
    """POPE over some question files, one split per file.

    Attributes:
        rule: how an answer becomes yes or no; one of `figures.RULES`.
    """

    name = "pope"

    def __init__(
        self,
        paths: Sequence[str | Path],
        *,
        rule: str = "official",
        suffix: str = ONE_WORD,
        limit: int | None = None,
        repope: Sequence[str | Path] = (),
    ) -> None:
        """Read the files.

        Args:
            paths: the question files; splits are named after them: `coco_pope_random.json` is `coco random`.
            rule: how an answer becomes yes or no.
            suffix: text after each question in the prompt.
            limit: maximum number of questions per file.
            repope: RePOPE's files: more groups, with the same answers under its labels.

        Raises:
            SettingsError: no such rule, two files with the same name, or two RePOPE files for one split.
            DataError: a file cannot be read, or a RePOPE file has other questions.
        """
        if rule not in RULES:
            raise SettingsError(f"`rule=` {rule!r}: expected {', '.join(RULES)}")
        self.rule = rule
        files = [Path(path) for path in paths]
        self._paths = dict(zip(split_names(files), files, strict=True))
        self._everything = {split: read_questions(path) for split, path in self._paths.items()}  # answers may have all
        self._questions = {split: questions[:limit] for split, questions in self._everything.items()}
        asks = (
            Ask(_id(split, question), question.image, question.text + suffix, f"{question.image}: {question.text}")
            for split, questions in self._questions.items()
            for question in questions
        )
        self._repope = [Path(path) for path in repope]
        corrected = _relabelled(self._repope, self._everything) if repope else {}
        taken = {split: {question.number for question in questions} for split, questions in self._questions.items()}
        # The questions of each group of figures, with its labels, and the split whose answers it takes.
        self._groups = {split: (split, questions) for split, questions in self._questions.items()} | {
            _group(split): (split, [question for question in questions if question.number in taken[split]])
            for split, questions in corrected.items()
        }
        self.parts = (Part("pope", "ask", tuple(asks), tuple(self._groups)),)

    def score(self, part: Part, texts: Texts) -> dict[str, Tally]:
        """Count TP, FP, TN, FN, answers without yes or no (rule `strict`), and words."""
        return {group: self._tally(group, texts) for group in part.groups}

    def _tally(self, group: str, texts: Texts) -> Tally:
        tally = Tally()
        for id_, question, text in self._answered(group, texts):
            add_answer(tally, question.image, id_, text, question.expected, self.rule)
        return tally

    def means(self, part: Part) -> dict[str, tuple[str, ...]]:
        """Return the means over POPE's splits, and over RePOPE's."""
        splits = tuple(self._questions)
        return {MEAN: splits, _group(MEAN): tuple(group for group in part.groups if group not in splits)}

    def figures(self, group: str, total: Mapping[str, float]) -> dict[str, float]:
        """Return the figures of `pope_figures`."""
        return pope_figures(total)

    def denominators(self, group: str) -> Denominators:
        """Return the denominators of `pope_figures`."""
        return POPE_DENOMINATORS

    def read(self, paths: Sequence[Path]) -> dict[str, dict[str, str]]:
        """Read one file per split, in one of FORMS, or samples of lmms-eval, also with all splits in one file."""
        if len(paths) == 1 and holds_splits(paths[0]):
            paths = [*paths] * len(self._paths)
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
        """Pair splits with files of answers: by name if all files are named after the questions, else in order."""
        questions = list(self._paths.values())
        if len({*paths}) == 1:
            return [(split, paths[0]) for split in self._paths]
        named = {named_after(path, questions): path for path in paths}
        if named.keys() == {*questions}:
            paths = [named[file] for file in questions]
        for file, path in zip(questions, paths, strict=True):
            if named_after(path, questions) not in (None, file):
                raise SettingsError(
                    f"{path}: the name does not match {file}: give one for each, in the same order, or rename it"
                )
        return list(zip(self._paths, paths, strict=True))

    def _read_split(self, split: str, path: Path) -> dict[str, str]:
        everything, questions = self._everything[split], self._questions[split]
        by_number = {question.number: question for question in everything}
        found: dict[str, str] = {}
        where = str(path)
        rows = list(read_answer_rows(path, *FORMS))
        if holds_samples(path):
            rows = of_split(rows, split, {str(question.number): question.text for question in everything})
        for position, (where, row) in enumerate(rows):
            if "question_id" in row:
                number = id_of(where, row, "question_id")
                if number not in by_number:
                    raise DataError(f"{where}: question_id {number} is not in {self._paths[split]}")
                question = by_number[number]
            elif position < len(everything):
                question = everything[position]
            else:
                raise DataError(f"{where}: too many answers: {self._paths[split]} has {len(everything)} questions")
            said = str(row.get("question", row.get("prompt", question.text)))
            image = Path(str(row.get("image", question.image))).name
            if question.text not in said or image not in (Path(question.image).name, Path(question.image).stem):
                raise DataError(
                    f"{where}: answers {brief(said)} about {some([image])}, but question {question.number} of "
                    f"{self._paths[split]} is {brief(question.text)} about {some([question.image])}"
                )
            if row["text"] == question.text:
                raise DataError(f"{where}: is a question, expected an answer: is `answers=` right?")
            if _id(split, question) in found:
                raise DataError(f"{where}: question {question.number} is answered twice")
            found[_id(split, question)] = row["text"]
        asked = [_id(split, question) for question in questions]
        found = {id_: found[id_] for id_ in asked if id_ in found}
        missing = next((question for question in questions if _id(split, question) not in found), None)
        if missing is not None:
            raise DataError(
                f"{where}: the file ends after {len(found)} of {len(questions)} answers: "
                f"question {missing.number} of {self._paths[split]} has none"
            )
        return found

    def details(self, part: Part, texts: Texts) -> Iterator[dict[str, Any]]:
        """Yield each answer, and how the rule reads it."""
        for group in part.groups:
            for _, question, text in self._answered(group, texts):
                yes = RULES[self.rule](text, question.expected)
                said = "" if yes is None else "yes" if yes else "no"
                truth = "yes" if question.expected else "no"
                row = {
                    "split": group,
                    "question_id": question.number,
                    "image": question.image,
                    "question": question.text,
                }
                yield row | {"label": truth, "answer": text, "taken_for": said, "right": said == truth}

    def stand_ins(self) -> dict[str, str]:
        """Return the remark that no published script has the rule `strict`."""
        return {"pope": "rule strict"} if self.rule == "strict" else {}

    def facts(self) -> dict[str, Any]:
        """Return the rule and the files."""
        facts = {"rule": self.rule, "questions": {split: str(path) for split, path in self._paths.items()}}
        return facts | ({LABEL: [str(path) for path in self._repope]} if self._repope else {})

    def _answered(self, group: str, texts: Texts) -> Iterator[tuple[str, PopeQuestion, str]]:
        """Yield the id, question and answer of every answered question of a group."""
        split, questions = self._groups[group]
        for question in questions:
            if (text := texts.get(id_ := _id(split, question))) is not None:
                yield id_, question, text


def _id(split: str, question: PopeQuestion) -> str:
    return f"{split}/{question.number}"


def _group(split: str) -> str:
    """Return the group of a split's questions under RePOPE's labels."""
    return f"{split}, {LABEL}"


def _relabelled(paths: Sequence[Path], splits: Mapping[str, Sequence[PopeQuestion]]) -> dict[str, list[PopeQuestion]]:
    """Return each split's questions with the labels of RePOPE's files, in any order of the files."""
    found: dict[str, list[PopeQuestion]] = {}
    for path in paths:
        questions = read_questions(path)
        split, misfit = _split(questions, splits)
        if misfit is not None:
            raise DataError(
                f"{path}: question {misfit.number}, {brief(misfit.text)} about {some([misfit.image])}, is not in "
                "any of the files of questions: expected RePOPE's files of the same splits"
            )
        if split in found:
            raise SettingsError(f"`repope=` {path}: another file is also of {split}: give one per split")
        found[split] = questions
    return {split: found[split] for split in splits if split in found}


def _split(
    questions: Sequence[PopeQuestion], splits: Mapping[str, Sequence[PopeQuestion]]
) -> tuple[str, PopeQuestion | None]:
    """Return the split with most of the questions, and the first question that it lacks, if any."""
    known = {split: {_about(question) for question in of} for split, of in splits.items()}
    fit = {split: sum(_about(question) in of for question in questions) for split, of in known.items()}
    split = max(fit, key=lambda name: fit[name])
    return split, next((question for question in questions if _about(question) not in known[split]), None)


def _about(question: PopeQuestion) -> tuple[int, str, str]:
    return question.number, question.image, question.text
