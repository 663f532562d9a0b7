"""POPE (Li et al. 2023): yes/no questions about objects; RePOPE (Neuhaus and Hein 2025) corrects its labels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sira_cli.errors import DataError, SettingsError
from sira_cli.eval.answers import Form, expand, holds_splits, named_after, of_split, read_answer_rows
from sira_cli.eval.benchmark import MEAN, ONE_WORD, Ask, Asking, Benchmark, Counted, Part, Texts, json_files
from sira_cli.eval.figures import POPE_DENOMINATORS, RULES, count_answer, pope_figures
from sira_cli.eval.statistics import Denominators
from sira_cli.pictures.rows import brief, id_of, read_rows, some, text_of

LABEL = "RePOPE"
FORMS = (  # of POPE's evaluate.py, in the order of the questions; of VCD's eval_pope.py; and of pope-audit
    Form("answer", (), ("question", "image")),
    Form("text", ("question_id",), ("question", "prompt", "image", "answer_id", "model_id", "metadata")),
    Form("pred_8tok", ("question_id", "pred_2tok"), ("label", "top_token_id")),
)
# Editions differ in the last word: the file of COCO's adversarial split that VCD, OPERA and VISTA ship says "imange" in
# 57 rows; POPE's own and RePOPE's do not.
_QUESTION = re.compile(r"\bis there an? (.+?) in the \w+\?", re.IGNORECASE)


def object_of(text: str) -> str:
    """Return the object that a question of POPE asks for; of any other text, all of it."""
    found = _QUESTION.search(text)
    return text.strip().lower() if found is None else found[1].lower()


@dataclass(frozen=True)
class PopeQuestion:
    """A row of a question file; `expected`: whether yes is the true answer."""

    number: int
    image: str
    text: str
    expected: bool

    @property
    def stated(self) -> str:
        """The question in messages, with its picture."""
        return f"{brief(self.text)} about {some([self.image])}"

    @property
    def known(self) -> tuple[int, str, str]:
        """What other editions keep of a question: its number, picture and object."""
        return self.number, self.image, object_of(self.text)

    def is_in(self, prompt: str) -> bool:
        """Return whether a prompt asks this question, in the words of any edition."""
        return self.text in prompt or object_of(self.text) == object_of(prompt)


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
        image = text_of(where, row, "image")
        questions[number] = PopeQuestion(number, image, text_of(where, row, "text"), label == "yes")
    if not questions:
        raise DataError(f"{path}: holds no questions")
    return list(questions.values())


def split_names(paths: Sequence[Path]) -> list[str]:
    """Return a name for each file; that of `coco_pope_random.json` is the paper's, `coco random`."""
    names: list[str] = []
    for path in paths:
        dataset, _, split = path.stem.partition("_pope_")
        name = f"{dataset} {split}" if dataset and split else path.stem
        if name in names:
            raise SettingsError(f"{path}: another file is also named {name}: rename one, or their splits mix")
        names.append(name)
    return names


def opened(paths: Sequence[Path], asking: Asking) -> Pope:
    """Read POPE as `sira eval` asks for it."""
    repope = expand("repope", asking.options["repope"]) if "repope" in asking.options else []
    files = json_files(repope, "RePOPE's files")
    return Pope(paths, limit=asking.limit, repope=files, **asking.given("rule", "suffix"))


class Pope(Benchmark):
    """POPE over some question files, one split per file; `rule`, one of `figures.RULES`, says what is yes or no."""

    name = "pope"

    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        *,
        rule: str = "official",
        suffix: str = ONE_WORD,
        limit: int | None = None,
        repope: Sequence[str | Path] = (),
    ) -> None:
        """Read the file or files: `suffix` follows each question, `limit` is per file, RePOPE's make more groups."""
        if rule not in RULES:
            raise SettingsError(f"`rule=` {rule!r}: expected {', '.join(RULES)}")
        self.rule = rule
        listed = [paths] if isinstance(paths, str | Path) else paths
        files = [Path(path) for path in listed]
        self._paths = dict(zip(split_names(files), files, strict=True))
        self._everything = {split: read_questions(path) for split, path in self._paths.items()}  # answers may have all
        # The questions of each group of figures, with its labels, and the split whose answers it takes.
        self._groups: dict[str, tuple[str, list[PopeQuestion]]] = {}
        asks = []
        for split, everything in self._everything.items():
            questions = everything[:limit]
            self._groups[split] = split, questions
            for question in questions:
                unit = f"{question.image}: {question.text}"
                asks.append(Ask(f"{split}/{question.number}", question.image, question.text + suffix, unit))
        self._repope = [Path(path) for path in repope]
        for split, questions in _relabelled(self._repope, self._everything).items():
            self._groups[_group(split)] = split, questions
        self.parts = (Part("pope", "ask", tuple(asks), tuple(self._groups)),)

    def count(self, part: Part, texts: Texts) -> Iterator[Counted]:
        """Count TP, FP, TN, FN, answers without yes or no (rule `strict`), and words."""
        for group in part.groups:
            split, questions = self._groups[group]
            for question in questions:
                id_ = f"{split}/{question.number}"
                if id_ in texts:
                    right, counts = count_answer(texts[id_], question.expected, self.rule)
                    yield Counted(id_, question.image, (group,), right, counts)

    def means(self, part: Part) -> dict[str, tuple[str, ...]]:
        """Return the means over POPE's splits, and over RePOPE's."""
        splits = tuple(self._paths)
        return {MEAN: splits, _group(MEAN): tuple(group for group in part.groups if group not in splits)}

    def figures(self, group: str, total: Mapping[str, float], *, smooth: bool = False) -> dict[str, float]:
        """Return the figures of `pope_figures`."""
        return pope_figures(total)

    def denominators(self, group: str) -> Denominators:
        """Return the denominators of `pope_figures`."""
        return POPE_DENOMINATORS

    def read(self, paths: Sequence[Path]) -> dict[str, dict[str, str]]:
        """Read one file per split, in one of FORMS, or samples of lmms-eval, also with all splits in one file."""
        whole = len(paths) == 1 and holds_splits(paths[0])
        if whole:
            paths = [*paths] * len(self._paths)
        if len(paths) != len(self._paths):
            raise SettingsError(
                f"{paths[0]}: {len(paths)} files of answers to {len(self._paths)} files of questions: "
                "give one for each, in the same order"
            )
        texts: dict[str, str] = {}
        for split, path in zip(self._paths, paths if whole else self._matched(paths), strict=True):
            texts |= self._read_split(split, path, whole)
        return {"pope": texts}

    def _matched(self, paths: Sequence[Path]) -> Sequence[Path]:
        """Put files of answers in the order of the splits: by name if all are named after the questions."""
        questions = list(self._paths.values())
        named = {named_after(path, questions): path for path in paths}
        if named.keys() == {*questions}:
            return [named[file] for file in questions]
        for file, path in zip(questions, paths, strict=True):
            if named_after(path, questions) not in (None, file):
                raise SettingsError(
                    f"{path}: the name does not match {file}: give one for each, in the same order, or rename it"
                )
        return paths

    def _read_split(self, split: str, path: Path, whole: bool) -> dict[str, str]:
        """Read the answers to a split's questions from a file, or from the samples of all splits."""
        everything = self._everything[split]
        _, asked = self._groups[split]
        by_number = {question.number: question for question in everything}
        texts: dict[int, str] = {}
        where = str(path)
        file = self._paths[split]
        rows = list(read_answer_rows(path, *FORMS))
        if whole:
            rows = of_split(rows, split, {str(number): question.is_in for number, question in by_number.items()})
        for position, (where, row) in enumerate(rows):
            if "question_id" in row:
                number = id_of(where, row, "question_id")
                if number not in by_number:
                    raise DataError(f"{where}: question_id {number} is not in {file}")
                question = by_number[number]
            elif position >= len(everything):
                raise DataError(f"{where}: too many answers: {file} has {len(everything)} questions")
            else:
                question = everything[position]
            prompt = str(row.get("question", row.get("prompt", question.text)))
            image = Path(str(row.get("image", question.image))).name
            if not question.is_in(prompt) or image not in (Path(question.image).name, Path(question.image).stem):
                raise DataError(
                    f"{where}: answers {brief(prompt)} about {some([image])}, but question {question.number} of "
                    f"{file} is {question.stated}"
                )
            if row["text"].endswith("?") and question.is_in(row["text"]):
                raise DataError(f"{where}: is a question, expected an answer: is `answers=` right?")
            if question.number in texts:
                raise DataError(f"{where}: question {question.number} is answered twice")
            texts[question.number] = row["text"]
        numbers = [question.number for question in asked]
        missing = [number for number in numbers if number not in texts]
        if missing:
            raise DataError(
                f"{where}: the file ends after {len(asked) - len(missing)} of {len(asked)} answers: "
                f"question {missing[0]} of {file} has none"
            )
        return {f"{split}/{number}": texts[number] for number in numbers}

    def stand_ins(self) -> dict[str, str]:
        """Return the remark that no published script has the rule `strict`."""
        return {"pope": "rule strict"} if self.rule == "strict" else {}

    def facts(self) -> dict[str, Any]:
        """Return the rule and the files."""
        questions = {split: str(path) for split, path in self._paths.items()}
        facts: dict[str, Any] = {"rule": self.rule, "questions": questions}
        if self._repope:
            facts[LABEL] = [str(path) for path in self._repope]
        return facts


def _group(split: str) -> str:
    """Return the group of a split's questions under RePOPE's labels."""
    return f"{split}, {LABEL}"


def _relabelled(paths: Sequence[Path], splits: Mapping[str, Sequence[PopeQuestion]]) -> dict[str, list[PopeQuestion]]:
    """Return each split's questions with the labels of RePOPE's files, in any order of the files."""
    corrected: dict[str, list[PopeQuestion]] = {}
    for path in paths:
        questions = read_questions(path)
        strange: dict[str, list[PopeQuestion]] = {}
        for split, everything in splits.items():
            known = {question.known for question in everything}
            strange[split] = [question for question in questions if question.known not in known]
        split = min(strange, key=lambda name: len(strange[name]))  # the one with most of the questions
        if strange[split]:
            misfit = strange[split][0]
            raise DataError(
                f"{path}: question {misfit.number}, {misfit.stated}, is not in any of the files of questions: expected "
                "RePOPE's files of the same splits"
            )
        if split in corrected:
            raise SettingsError(f"`repope=` {path}: another file is also of {split}: give one per split")
        corrected[split] = questions
    return {split: corrected[split] for split in splits if split in corrected}
