"""NaturalBench (Li et al. 2024): two questions about two pictures, whose answers swap with the picture."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sira_cli.data.rows import brief, id_of, read_rows, text_of
from sira_cli.errors import DataError
from sira_cli.eval.base import Part, Texts
from sira_cli.eval.card import WORDING, Asking, Card
from sira_cli.eval.stats.tally import Denominators, Tally, ratio
from sira_cli.eval.yes_no import Question, YesNo, ours, shared_figures

GROUP = "all"
FOUR = 4  # question 0 about pictures 0 and 1, question 1 about pictures 0 and 1
KINDS = {  # by `Question_Type`: the two answers, and the words that ask for one of them
    "yes_no": (("yes", "no"), " Please answer Yes or No."),
    "multiple_choice": (("A", "B"), " Please output the letter corresponding to the correct option."),
}


class NaturalBench(YesNo):
    """NaturalBench's questions, in consecutive groups of four."""

    name = "naturalbench"

    def said(self, question: Question, text: str) -> str:
        """Read an answer as extract_answer does: the first of the two words, ignoring case."""
        words = next(words for words, _ in KINDS.values() if question.expected in words)
        places = {word: re.search(rf"\b{word}\b", text, re.IGNORECASE) for word in words}
        found = [(place.start(), word) for word, place in places.items() if place is not None]
        return min(found)[1] if found else ""

    def score(self, part: Part, texts: Texts) -> dict[str, Tally]:
        """Count right answers, questions and pictures with both answers right, and groups with all four.

        A group with a missing answer is left out.
        """
        tally = Tally()
        for start in range(0, len(self.questions), FOUR):
            four = self.questions[start : start + FOUR]
            if not all(question.id in texts for question in four):
                continue
            right = [self.right(question, texts[question.id]) for question in four]
            groups = {
                "questions": (right[0] and right[1]) + (right[2] and right[3]),
                "pictures": (right[0] and right[2]) + (right[1] and right[3]),
                "all four": all(right),
                "groups": 1,
            }
            for question in four:
                text = texts[question.id]
                yes = self.said(question, text) in ("yes", "A")
                counts = {**groups, "right": self.right(question, text), "yes": yes}
                self.count(tally, four[0].picture, question, text, counts)
                groups = dict.fromkeys(groups, 0)  # counted once
        return {GROUP: tally}

    def figures(self, group: str, total: Mapping[str, float]) -> dict[str, float]:
        """Return Acc, Q_Acc, I_Acc and G_Acc as get_scores, and the share of yes (or A), which ideally is a half."""
        shares = {
            "Acc": ratio(total["right"], total["answers"]),
            "Q_Acc": ratio(total["questions"], 2 * total["groups"]),
            "I_Acc": ratio(total["pictures"], 2 * total["groups"]),
            "G_Acc": ratio(total["all four"], total["groups"]),
            "yes": ratio(total["yes"], total["answers"]),
        }
        return {name: 100 * share for name, share in shares.items()} | shared_figures(total)

    def denominators(self, group: str) -> Denominators:
        """Return the counts that each share divides by."""
        found: dict[str, Sequence[str]] = dict.fromkeys(("Acc", "yes", "neither"), ("answers",))
        return found | {"Q_Acc": ("groups", "groups"), "I_Acc": ("groups", "groups"), "G_Acc": ("groups",)}

    def find(self, row: Mapping[str, Any], path: Path) -> str | None:
        """Also find a question by `Index`, as in the script's rows, or by VLMEvalKit's `index`."""
        number = str(row.get("Index", row.get("index")))
        return number if number in self._known else super().find(row, path)

    def official(self, question: Question, text: str) -> dict[str, Any]:
        """Return a row of the data set, with the answer."""
        return {"Index": int(question.id), "Question": question.text, "text": text}


def _read(folder: Path, asking: Asking) -> NaturalBench:
    (path,) = CARD.find(folder)
    known = list(_questions(path, asking))
    asked = known if asking.limit is None else known[: FOUR * asking.limit]
    return NaturalBench(asked, (GROUP,), known=known)


def _questions(path: Path, asking: Asking) -> Iterator[Question]:
    first: list[str] = []
    number = -1
    for number, (where, row) in enumerate(read_rows(path)):
        if id_of(where, row, "Index") != number:
            raise DataError(f"{where}: Index is {brief(row['Index'])}, expected {number}: rows are out of order")
        kind, text = text_of(where, row, "Question_Type"), text_of(where, row, "Question")
        if kind not in KINDS:
            raise DataError(f"{where}: Question_Type is {brief(kind)}, expected {' or '.join(KINDS)}")
        first = [*first, text] if number % FOUR else [text]
        if number % 2 and text != first[-2]:
            raise DataError(f"{where}: expected the question of the row before, about its other picture")
        answers, suffix = KINDS[kind]
        # By place, as the script counts: the first picture's answer to question 0 is yes (or A), the second's no.
        expected = answers[number % FOUR in (1, 2)]
        prompt = text + suffix if asking.wording == "official" or kind != "yes_no" else ours(text)
        yield Question(str(number), text_of(where, row, "Image"), text, prompt, expected, GROUP)
    if number < 0 or (number + 1) % FOUR:
        raise DataError(f"{path}: holds {number + 1} questions, expected groups of four")


CARD = Card(
    name=NaturalBench.name,
    title="Pairs of questions about pairs of pictures, whose answers swap with the picture",
    source="Li et al. 2024",
    figures="Acc, Q_Acc, I_Acc, G_Acc, yes-rate",
    files=("naturalbench.jsonl",),
    pictures="images",
    size="7,600 questions in 1,900 groups, with their pictures",
    licence="see its page",
    url="https://huggingface.co/datasets/BaiqiL/NaturalBench-lmms-eval",
    answers='{"Index", "text"}',
    read=_read,
    options=(WORDING,),
)
