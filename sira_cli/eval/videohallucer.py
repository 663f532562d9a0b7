"""VideoHallucer (Wang et al. 2024): pairs of a basic and a hallucinated question about clips; both have to be right."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sira_cli.data.rows import brief, read_rows, text_of
from sira_cli.errors import DataError
from sira_cli.eval.base import Part, Texts
from sira_cli.eval.card import WORDING, Asking, Card
from sira_cli.eval.stats.tally import Denominators, Tally, ratio
from sira_cli.eval.yes_no import Question, YesNo, ours, shared_figures
from sira_cli.files import write_whole

# The subsets that make up the final accuracy, with the beginning of their files of answers.
SUBSETS = {
    "object_relation": "obj_rel",
    "temporal": "temporal",
    "semantic_detail": "semantic",
    "external_factual": "fact",
    "external_nonfactual": "nonfact",
}
ALL = "all"
SIDES = ("basic", "hallucination")
SUFFIX = "\nAnswer the question using 'yes' or 'no'."


class VideoHallucer(YesNo):
    """VideoHallucer's questions, pair by pair."""

    name = "videohallucer"

    def said(self, question: Question, text: str) -> str:
        """Read an answer as cal_score: the true answer counts if it is anywhere in the text, as a word."""
        other = "no" if question.expected == "yes" else "yes"
        found = (word for word in (question.expected, other) if re.search(rf"\b({word})\b", text, re.IGNORECASE))
        return next(found, "")

    def score(self, part: Part, texts: Texts) -> dict[str, Tally]:
        """Count right answers, and pairs with both right, by subset; pairs without both answers are left out."""
        tallies = {group: Tally() for group in part.groups}
        for basic, other in zip(self.questions[::2], self.questions[1::2], strict=True):
            if basic.id not in texts or other.id not in texts:
                continue
            right = [self.right(each, texts[each.id]) for each in (basic, other)]
            for group in (basic.group, ALL):
                none = {f"{subset} {name}": 0 for subset in _subsets(group) for name in (*SIDES, "both", "pairs")}
                for each, is_right in zip((basic, other), right, strict=True):
                    side = each.id.rpartition("/")[2]
                    counts = none | {f"{basic.group} {side}": is_right}
                    if each is other:
                        counts |= {f"{basic.group} both": all(right), f"{basic.group} pairs": 1}
                    self.count(tallies[group], basic.together, each, texts[each.id], counts)
        return tallies

    def figures(self, group: str, total: Mapping[str, float]) -> dict[str, float]:
        """Return the three accuracies of evaluation.py in percent; those of `all` are means over the subsets."""
        names = {"basic": "basic", "hallucination": "hallucination", "both": "accuracy"}
        subsets = _subsets(group)
        found = {
            name: 100 * sum(ratio(total[f"{each} {of}"], total[f"{each} pairs"]) for each in subsets) / len(subsets)
            for of, name in names.items()
        }
        return found | shared_figures(total)

    def denominators(self, group: str) -> Denominators:
        """Return the counts that each share divides by."""
        pairs = tuple(f"{subset} pairs" for subset in _subsets(group))
        return {**dict.fromkeys(("basic", "hallucination", "accuracy"), pairs), "neither": ("answers",)}

    def rows(self, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield rows, also of the authors' files of answers, `obj_rel_MODEL.json`: pairs with `predict`."""
        subset = next((name for name, start in SUBSETS.items() if path.name.startswith(f"{start}_")), "")
        if not subset:
            yield from super().rows(path)
            return
        for number, (where, row) in enumerate(read_rows(path), start=1):
            for side in SIDES:
                found = row.get(side)
                if not isinstance(found, dict) or not isinstance(found.get("predict"), str):
                    raise DataError(f"{where}: {side}: expected an object with `predict`, got {brief(found)}")
                about = {"id": f"{subset}/{number}/{side}", "question": found.get("question")}
                yield where, about | {"text": found["predict"]}

    def export(self, texts: Mapping[str, Texts], folder: Path) -> list[Path]:
        """Write the answers as the authors' files of answers, of a model named sira."""
        files = []
        for subset, start in SUBSETS.items():
            pairs: list[dict[str, Any]] = []
            for question, text in self.answered(texts[self.name], subset):
                side = question.id.rpartition("/")[2]
                pairs += [{}] * (side == SIDES[0])
                about = {"video": question.picture.rpartition("/")[2], "question": question.text}
                pairs[-1] = {**pairs[-1], side: about | {"answer": question.expected, "predict": text}}
            files.append(folder / f"{start}_sira.json")
            write_whole(files[-1], json.dumps(pairs, ensure_ascii=False, indent=4).encode())
        return files


def _subsets(group: str) -> tuple[str, ...]:
    return tuple(SUBSETS) if group == ALL else (group,)


def _read(folder: Path, asking: Asking) -> VideoHallucer:
    known: list[Question] = []
    asked: list[Question] = []
    for subset, path in zip(SUBSETS, CARD.find(folder), strict=True):
        found = [
            question
            for number, (where, row) in enumerate(read_rows(path), start=1)
            for question in _pair(where, row, subset, number, asking)
        ]
        known += found
        asked += found if asking.limit is None else found[: 2 * asking.limit]
    return VideoHallucer(asked, (*SUBSETS, ALL), known=known)


def _pair(where: str, row: dict[str, Any], subset: str, number: int, asking: Asking) -> Iterator[Question]:
    if not all(isinstance(row.get(side), dict) for side in SIDES):
        raise DataError(f"{where}: expected a question `basic` and one `hallucination`, got {brief(row)}")
    together = f"{subset}/videos/{text_of(where, row['basic'], 'video')}"
    for side in SIDES:
        each = row[side]
        text, expected = text_of(where, each, "question"), text_of(where, each, "answer")
        if expected not in ("yes", "no"):
            raise DataError(f"{where}: answer is {brief(expected)}, expected yes or no")
        prompt = text + SUFFIX if asking.wording == "official" else ours(text)
        picture = f"{subset}/videos/{text_of(where, each, 'video')}"
        yield Question(f"{subset}/{number}/{side}", picture, text, prompt, expected, subset, together)


CARD = Card(
    name=VideoHallucer.name,
    title="Pairs of a basic and a hallucinated question about clips",
    source="Wang et al. 2024",
    figures="basic, hallucination, accuracy",
    files=tuple(f"{subset}/{subset}.json" for subset in SUBSETS),
    holds=f"the folders {', '.join(SUBSETS)}",
    pictures=".",
    size="948 clips and 1,952 questions",
    licence="MIT (questions)",
    url="https://huggingface.co/datasets/ColorfulAI/VideoHallucer",
    answers="files of answers of the authors' scripts",
    read=_read,
    options=(WORDING,),
    main=(ALL,),
)
