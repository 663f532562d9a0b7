"""POPE's and CHAIR's counts, rules and figures, for benchmarks, sweeps and drawn scenes."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence

from sira_cli.eval.statistics import Counts, Figure, MethodFigures, Tally, percent, ratio
from sira_cli.models.texts import repetition

CELLS = ("TP", "FP", "TN", "FN", "unanswered yes", "unanswered no")
POPE_DENOMINATORS = {
    "accuracy": CELLS,
    "F1": ("TP", "TP", "FP", "FN", "unanswered yes"),
    "precision": ("TP", "FP"),
    "recall": ("TP", "FN", "unanswered yes"),
    "FPR": ("FP", "TN", "unanswered no"),
    "yes": CELLS,
    "neither": CELLS,
}
# By the true answer, the cell of each answer that is read; None: it is neither yes nor no.
_CELLS: dict[bool, dict[bool | None, str]] = {
    True: {True: "TP", False: "FN", None: "unanswered yes"},
    False: {True: "FP", False: "TN", None: "unanswered no"},
}
ANSWER_FIGURES = ("accuracy", "F1", "precision", "recall", "FPR", "yes")  # those that tables show
CHAIR_DENOMINATORS = {"CHAIRs": ("captions",), "CHAIRi": ("mentions",), "recall": ("objects",)}
TEXT_DENOMINATORS = {"F1": ("kinds", "objects"), "broken": ("captions",)}
CLAUSE = 4  # words of a clause that a sound text does not repeat


# POPE (Li et al. 2023): how an answer becomes yes or no.


def official(answer: str, expected: bool) -> bool:
    """Read an answer as evaluate.py of POPE does: yes, unless the first sentence has the word No, not or no."""
    first = answer.split(".")[0].replace(",", "")
    return {"No", "not", "no"}.isdisjoint(first.split(" "))


def vcd(answer: str, expected: bool) -> bool:
    """Read an answer as eval_pope.py of VCD does: the words it looks for depend on the true answer."""
    lower = answer.lower().strip()
    return "yes" in lower if expected else "no" not in lower


def opera(answer: str, expected: bool) -> bool:
    """Read an answer as pope_eval.py of OPERA does: no, if any word is No, not, no, NO or ends in n't."""
    for word in answer.replace(".", "").replace(",", "").split(" "):
        if word in ("No", "not", "no", "NO") or word.endswith("n't"):
            return False
    return True


def strict(answer: str, expected: bool = True) -> bool | None:
    """Let the first word decide, whatever its case; None if it is neither yes nor no."""
    word = re.search(r"[^\W\d_]+(?:'[^\W\d_]+)*", answer)
    if word is None:
        return None
    return {"yes": True, "no": False}.get(word[0].lower())


def repope(answer: str, expected: bool) -> bool | None:
    """Read an answer as compute_answer of RePOPE: yes if it contains yes, else no if it contains no, else None."""
    lower = answer.lower()
    if "yes" in lower:
        return True
    return False if "no" in lower else None


RULES: dict[str, Callable[[str, bool], bool | None]] = {
    "official": official,
    "vcd": vcd,
    "opera": opera,
    "strict": strict,
    "repope": repope,
}


def count_answer(text: str, expected: bool, rule: str = "official") -> tuple[bool, Counts]:
    """Return whether the rule reads an answer as the true one, and its counts; `neither`: by its first word."""
    cells = dict(_CELLS[expected])
    counts: Counts = dict.fromkeys(CELLS, 0)
    if rule == "repope":
        cells[None] = "unread"
        counts["unread"] = 0
    cell = cells[RULES[rule](text, expected)]
    counts[cell] = 1
    counts["neither"] = int(strict(text) is None)
    counts["words"] = len(text.split())
    return cell in ("TP", "TN"), counts


def pope_figures(total: Mapping[str, float]) -> dict[str, float]:
    """Return accuracy, precision, recall and F1 as evaluate.py, FPR as the paper's appendix, in percent; and `words`.

    Unanswered questions (rule `strict`) are wrong: they count in the denominators of accuracy, recall, FPR and yes.
    Unread answers (rule `repope`) count in none of these.
    """
    true_yes = total["TP"]
    said_yes = true_yes + total["FP"]
    expect_yes = true_yes + total["FN"] + total["unanswered yes"]
    expect_no = total["FP"] + total["TN"] + total["unanswered no"]
    answers = expect_yes + expect_no
    texts = answers + total.get("unread", 0)
    precision = ratio(true_yes, said_yes)
    recall = ratio(true_yes, expect_yes)
    return {
        "accuracy": percent(true_yes + total["TN"], answers),
        "F1": percent(2 * precision * recall, precision + recall),
        "precision": 100 * precision,
        "recall": 100 * recall,
        "FPR": percent(total["FP"], expect_no),
        "yes": percent(said_yes, answers),
        "neither": percent(total["neither"], texts),
        "words": ratio(total["words"], texts),
    }


# CHAIR (Rohrbach et al. 2018).


def mention_counts(mentioned: Sequence[str], truth: Collection[str]) -> Counts:
    """Count a caption's mentions against the objects in the picture."""
    wrong = [name for name in mentioned if name not in truth]
    return {
        "captions": 1,
        "hallucinated captions": int(bool(wrong)),
        "mentions": len(mentioned),
        "hallucinated mentions": len(wrong),
        "objects": len(truth),
        "recalled objects": len({*truth}.intersection(mentioned)),
    }


def chair_figures(total: Mapping[str, float]) -> dict[str, float]:
    """Return CHAIRs, CHAIRi and recall in percent, as OPERA's chair.py.

    CHAIRs: captions that mention an absent object. CHAIRi: absent objects among all mentioned. recall: objects in the
    picture that are mentioned.
    """
    return {
        "CHAIRs": percent(total["hallucinated captions"], total["captions"]),
        "CHAIRi": percent(total["hallucinated mentions"], total["mentions"]),
        "recall": percent(total["recalled objects"], total["objects"]),
    }


def text_counts(text: str, mentioned: Sequence[str]) -> Counts:
    """Count a caption's words, and the kinds of objects that it mentions; `broken`: it is empty or repeats itself."""
    clauses = [tuple(clause.split()) for clause in re.split(r"[.,;:!?\n]|\band\b", text.lower())]
    long = [words for words in clauses if len(words) >= CLAUSE]
    broken = not text.strip() or len({*long}) < len(long) or bool(repetition(text))
    return {
        "words": len(text.split()),
        "kinds": len({*mentioned}),
        "broken": int(broken),
    }


def text_figures(total: Mapping[str, float]) -> dict[str, float]:
    """Return F1 of the kinds of objects that captions mention, `words`, broken texts, and, if counted, `seconds`."""
    captions = total["captions"]
    figures = {
        "F1": percent(2 * total["recalled objects"], total["kinds"] + total["objects"]),
        "words": ratio(total["words"], captions),
        "broken": percent(total["broken"], captions),
    }
    if "seconds" in total:
        figures["seconds"] = ratio(total["seconds"], captions)
    return figures


# Captions and answers together: `CHAIRi`, `random accuracy`, `mean accuracy`.

CAPTION_DENOMINATORS = {"CHAIRs": ("captions",), "CHAIRi": ("mentions",), "coverage": ("objects",)}


def caption_figures(total: Mapping[str, float]) -> dict[str, float]:
    """Return CHAIRs, CHAIRi and coverage (CHAIR's recall) in percent, and the mean number of words."""
    figures = chair_figures(total)
    figures["coverage"] = figures.pop("recall")
    return figures | {"words": ratio(total["words"], total["captions"])}


def answer_figures(total: Mapping[str, float]) -> dict[str, float]:
    """Return the figures of yes/no answers that tables show."""
    figures = pope_figures(total)
    return {name: figures[name] for name in ANSWER_FIGURES}


def compared(captions: Mapping[str, Tally], splits: Mapping[str, Mapping[str, Tally]]) -> dict[str, MethodFigures]:
    """Compare methods by captions, by the answers in each split, and by the means over splits.

    Args:
        captions: what is counted in captions, by method; may be empty.
        splits: what is counted in yes/no answers, by split and method; may be empty.

    Returns:
        The groups for `named_figures`: the empty name for captions, then `random ` and the like, and `mean `.
    """
    groups: dict[str, MethodFigures] = {}
    if captions:
        groups[""] = MethodFigures.of(captions, caption_figures, CAPTION_DENOMINATORS)
    answers = []
    for split, tallies in splits.items():
        answers.append(MethodFigures.of(tallies, answer_figures, POPE_DENOMINATORS))
        groups[f"{split} "] = answers[-1]
    if answers:
        groups["mean "] = MethodFigures.mean(answers)
    return groups


def named_figures(groups: Mapping[str, MethodFigures], method: str, minus: str = "") -> dict[str, Figure]:
    """Combine a method's figures of all groups, by group and name; or their differences to those of another method."""
    named = {}
    for group, compared in groups.items():
        figures = compared.differences(method, minus) if minus else compared.figures(method)
        for name, figure in figures.items():
            named[f"{group}{name}"] = figure
    return named
