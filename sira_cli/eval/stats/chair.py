"""CHAIR (Rohrbach et al. 2018): the counts of a caption, and the figures made from them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sira_cli.eval.stats.tally import Counts, ratio

DENOMINATORS = {"CHAIRs": ("captions",), "CHAIRi": ("mentions",), "recall": ("objects",)}


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
        "CHAIRs": 100 * ratio(total["hallucinated captions"], total["captions"]),
        "CHAIRi": 100 * ratio(total["hallucinated mentions"], total["mentions"]),
        "recall": 100 * ratio(total["recalled objects"], total["objects"]),
    }
