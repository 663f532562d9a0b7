"""Yes/no benchmarks whose figures are the recall of yes, the recall of no, their harmonic mean, and the accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from sira_cli.eval.base import Part, Texts
from sira_cli.eval.stats.tally import Denominators, Tally, ratio
from sira_cli.eval.yes_no import Question, YesNo, harmonic_mean, shared_figures

TRUTHS = ("yes", "no")


class Recalls(YesNo):
    """Questions with yes or no as the true answer.

    Attributes:
        names: of the figures `accuracy`, `yes`, `no` (recalls) and `both` (their harmonic mean), in the report's order.
    """

    names: ClassVar[Mapping[str, str]]

    def groups_of(self, question: Question) -> Sequence[str]:
        """Return the groups that count a question."""
        return (question.group,)

    def score(self, part: Part, texts: Texts) -> dict[str, Tally]:
        """Count right answers where yes is true, and where no is."""
        tallies = {group: Tally() for group in part.groups}
        for question, text in self.answered(texts):
            counts = {f"{name} {truth}": 0 for name in ("right", "asked") for truth in TRUTHS}
            counts[f"asked {question.expected}"] = 1
            counts[f"right {question.expected}"] = self.right(question, text)
            for group in self.groups_of(question):
                self.count(tallies[group], question.picture, question, text, counts)
        return tallies

    def figures(self, group: str, total: Mapping[str, float]) -> dict[str, float]:
        """Return the figures in percent."""
        yes, no = (ratio(total[f"right {truth}"], total[f"asked {truth}"]) for truth in TRUTHS)
        accuracy = ratio(total["right yes"] + total["right no"], total["answers"])
        shares = {"accuracy": accuracy, "yes": yes, "no": no, "both": harmonic_mean(yes, no)}
        return {name: 100 * shares[of] for of, name in self.names.items()} | shared_figures(total)

    def denominators(self, group: str) -> Denominators:
        """Return the counts that each share divides by."""
        asked = {truth: (f"asked {truth}",) for truth in TRUTHS}
        found = {name: asked.get(of, ("answers",)) for of, name in self.names.items()}
        return found | {"neither": ("answers",)}
