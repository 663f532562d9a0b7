"""AMBER's counts and figures (arXiv 2311.07397), to the digit as in its script inference.py."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from sira_cli.eval.amber.data import Annotated, PartName
from sira_cli.eval.amber.words import Judged
from sira_cli.eval.statistics import Counts, Denominators

GROUPS: dict[PartName, tuple[str, ...]] = {
    "generative": ("generative",),
    "discriminative": ("discriminative", "existence", "attribute", "state", "number", "action", "relation"),
}
DIMENSIONS = {  # by `type` in annotations.json
    "generative": ("generative",),
    "discriminative-hallucination": ("discriminative", "existence"),
    "discriminative-attribute-state": ("discriminative", "attribute", "state"),
    "discriminative-attribute-number": ("discriminative", "attribute", "number"),
    "discriminative-attribute-action": ("discriminative", "attribute", "action"),
}
OTHERWISE = ("discriminative", "relation")  # for every other type, as in the script

# The script reads AMBER's metrics.txt, where every denominator starts at 0.001; attribute is three of them together.
# That keeps every share off the middle between two roundings, so the order in which floats are added does not matter.
START = 0.001
STARTS = {"attribute": 3 * START}
F1_START = 0.0001
F1_STARTS = {"existence": 0.001}  # perhaps a slip, but it changes digits

DENOMINATORS: dict[PartName, Denominators] = {
    "generative": {"CHAIR": ("mentions",), "Cover": ("truth",), "Hal": ("answers",), "Cog": ("hallu words",)},
    "discriminative": {
        "accuracy": ("answers",),
        "precision": ("answered no",),
        "recall": ("no",),
        "F1": ("no", "answered no"),
        "yes": ("answers",),
        "neither": ("answers",),
    },
}


def groups_of(annotated: Annotated) -> tuple[str, ...]:
    """Return the groups that count an answer."""
    return DIMENSIONS.get(annotated.kind, OTHERWISE)


def is_right(annotated: Annotated, response: str) -> bool:
    """Return whether an answer to a question is the true one; only `Yes` and `No` are answers."""
    return response == ("Yes" if annotated.truth == ("yes",) else "No")


def caption_counts(annotated: Annotated, judged: Judged, text: str) -> Counts:
    """Return the counts of a caption."""
    return {
        "answers": 1,
        "clean answers": int(not judged.hallucinated),
        "mentions": len(judged.mentions),
        "hallucinated mentions": len(judged.hallucinated),
        "truth": len(annotated.truth),
        "covered truth": len(judged.covered),
        "hallu words": len(annotated.hallu),
        "marked hallu words": len(judged.cognitive),
        "words": len(text.split()),
    }


def answer_counts(annotated: Annotated, response: str) -> Counts:
    """Return the counts of an answer to a question; the positive class is `no`."""
    no = annotated.truth == ("no",)
    return {
        "answers": 1,
        "right": int(is_right(annotated, response)),
        "no": int(no),
        "answered no": int(response == "No"),
        "rightly no": int(no and response == "No"),
        "answered yes": int(response == "Yes"),
        "neither": int(response not in ("Yes", "No")),
    }


def figures_of(group: str, total: Mapping[str, float], digits: int | None = 1) -> dict[str, float]:
    """Make the figures of a group from sums of counts, rounded as the script rounds; None does not round."""
    # plain floats: numpy's round differently; missing counts are 0
    counts = defaultdict(float, {name: float(count) for name, count in total.items()})

    def rounded(percent: float) -> float:
        return percent if digits is None else round(percent, digits)

    return _of_captions(counts, rounded) if group == "generative" else _of_answers(group, counts, rounded)


def _of_captions(counts: Counts, rounded: Callable[[float], float]) -> dict[str, float]:
    return {
        "CHAIR": rounded(_percent(counts["hallucinated mentions"], counts["mentions"], START)),
        "Cover": rounded(_percent(counts["covered truth"], counts["truth"], START)),
        "Hal": rounded(100 - _percent(counts["clean answers"], counts["answers"], START)),
        "Cog": rounded(_percent(counts["marked hallu words"], counts["hallu words"], START)),
        "words": counts["words"] / counts["answers"] if counts["answers"] else 0.0,
    }


def _of_answers(group: str, counts: Counts, rounded: Callable[[float], float]) -> dict[str, float]:
    start = STARTS.get(group, START)
    precision = rounded(_percent(counts["rightly no"], counts["answered no"], start))
    recall = rounded(_percent(counts["rightly no"], counts["no"], start))
    p, r = precision / 100, recall / 100  # rounded before they become F1
    return {
        "accuracy": rounded(_percent(counts["right"], counts["answers"], start)),
        "precision": precision,
        "recall": recall,
        "F1": rounded(2 * p * r / (p + r + F1_STARTS.get(group, F1_START)) * 100),
        "yes": _percent(counts["answered yes"], counts["answers"]),
        "neither": _percent(counts["neither"], counts["answers"]),
    }


def _percent(count: float, of: float, start: float = 0.0) -> float:
    return count / (start + of) * 100 if start + of else 0.0
