"""POPE (Li et al. 2023): how an answer becomes yes or no, the counts, and their figures."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from sira_cli.eval.stats.tally import Tally, ratio

CELLS = ("TP", "FP", "TN", "FN", "unanswered yes", "unanswered no")
DENOMINATORS = {
    "accuracy": CELLS,
    "F1": ("TP", "TP", "FP", "FN", "unanswered yes"),
    "precision": ("TP", "FP"),
    "recall": ("TP", "FN", "unanswered yes"),
    "FPR": ("FP", "TN", "unanswered no"),
    "yes": CELLS,
    "neither": CELLS,
}
FIGURES = ("accuracy", "F1", "precision", "recall", "FPR", "yes")


def official(answer: str, expected: bool = True) -> bool:
    """Read an answer as evaluate.py of POPE does: yes, unless the first sentence has the word No, not or no."""
    words = answer.split(".")[0].replace(",", "").split(" ")
    return not {"No", "not", "no"} & set(words)


def vcd(answer: str, expected: bool) -> bool:
    """Read an answer as eval_pope.py of VCD does: the words it looks for depend on the true answer."""
    lower = answer.lower().strip()
    return "yes" in lower if expected else "no" not in lower


def opera(answer: str, expected: bool = True) -> bool:
    """Read an answer as pope_eval.py of OPERA does: no, if any word is No, not, no, NO or ends in n't."""
    words = answer.replace(".", "").replace(",", "").split(" ")
    return not any(word in ("No", "not", "no", "NO") or word.endswith("n't") for word in words)


def strict(answer: str, expected: bool = True) -> bool | None:
    """Let the first word decide, whatever its case; None if it is neither yes nor no."""
    word = re.search(r"[^\W\d_]+(?:'[^\W\d_]+)*", answer)
    return {"yes": True, "no": False}.get(word[0].lower()) if word else None


def repope(answer: str, expected: bool = True) -> bool | None:
    """Read an answer as compute_answer of RePOPE and DASH-B: yes if it contains yes, else no if it contains no, else
    None.
    """
    lower = answer.lower()
    return True if "yes" in lower else False if "no" in lower else None


RULES: dict[str, Callable[[str, bool], bool | None]] = {
    "official": official,
    "vcd": vcd,
    "opera": opera,
    "strict": strict,
    "repope": repope,
}


def add_answer(tally: Tally, picture: str, ask: str, text: str, expected: bool, rule: str = "official") -> None:
    """Count an answer as the rule reads it, and as `neither` if its first word is neither yes nor no."""
    unread = ("unread",) if rule == "repope" else ()
    row = tally.counts.setdefault(picture, dict.fromkeys((*CELLS, *unread, "neither", "words"), 0))
    yes = RULES[rule](text, expected)
    cell = "unread" if unread and yes is None else _cell(expected, yes)
    row[cell] += 1
    row["neither"] += strict(text) is None
    row["words"] += len(text.split())
    tally.right[ask] = cell in ("TP", "TN")


def pope_figures(total: Mapping[str, float]) -> dict[str, float]:
    """Return accuracy, precision, recall and F1 as evaluate.py, FPR as the paper's appendix, in percent; and `words`.

    Unanswered questions (rule `strict`) are wrong: they count in the denominators of accuracy, recall, FPR and yes.
    Unread answers (rule `repope`) count in none of these.
    """
    tp, fp, tn, fn, unanswered_yes, unanswered_no = (total[cell] for cell in CELLS)
    answers = tp + tn + fp + fn + unanswered_yes + unanswered_no
    said = answers + total.get("unread", 0)
    precision = ratio(tp, tp + fp)
    recall = ratio(tp, tp + fn + unanswered_yes)
    shares = {
        "accuracy": ratio(tp + tn, answers),
        "F1": ratio(2 * precision * recall, precision + recall),
        "precision": precision,
        "recall": recall,
        "FPR": ratio(fp, fp + tn + unanswered_no),
        "yes": ratio(tp + fp, answers),
        "neither": ratio(total["neither"], said),
    }
    return {name: 100 * share for name, share in shares.items()} | {"words": ratio(total["words"], said)}


def _cell(expected: bool, yes: bool | None) -> str:
    if yes is None:
        return "unanswered yes" if expected else "unanswered no"
    if expected:
        return "TP" if yes else "FN"
    return "FP" if yes else "TN"
