"""RePOPE (Neuhaus and Hein 2025): POPE's COCO questions with corrected labels; ambiguous ones are left out.

Its questions are POPE's, so that one run of answers gives the figures of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sira_cli.errors import DataError, SettingsError
from sira_cli.eval.pope_questions import PopeQuestion, read_questions
from sira_cli.pictures.rows import brief, some

LABEL = "RePOPE"


def group_of(split: str) -> str:
    """Return the group of a split's questions under the corrected labels."""
    return f"{split}, {LABEL}"


def relabelled(paths: Sequence[Path], splits: Mapping[str, Sequence[PopeQuestion]]) -> dict[str, list[PopeQuestion]]:
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
