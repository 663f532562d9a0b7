"""CHAIR's text rule: which objects of COCO a caption mentions (Rohrbach et al. 2018).

Oddities here are also in the official scripts, and are kept because they change figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sira_cli.language import CHAIR_WORDS


def read_synonyms(text: str) -> dict[str, str]:
    """Read every word of the list with the head of its line, which is the category's name in COCO.

    Lines are split at a comma and exactly one space, so " motor bike" and " cheesecake", which follow two spaces, keep
    one and never match a caption. iPhone never matches either, because captions are lower-cased.
    """
    lines = [line.strip().split(", ") for line in text.splitlines()]
    return {word: line[0] for line in lines for word in line}


HEADS = read_synonyms(CHAIR_WORDS.read_text(encoding="utf-8"))

_ANIMALS = ("bird", "cat", "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe", "animal", "cub")
_KEPT = (
    *("motor bike", "motor cycle", "air plane", "traffic light", "street light", "traffic signal", "stop light"),
    *("fire hydrant", "stop sign", "parking meter", "suit case", "sports ball", "baseball bat", "baseball glove"),
    *("tennis racket", "wine glass", "hot dog", "cell phone", "mobile phone", "teddy bear", "hair drier"),
    *("potted plant", "laptop computer"),
    # Not objects: they keep their words from being taken for a plate (not an object either) or a train.
    *("home plate", "train track"),
)
# Pairs of words and their replacement. The official list also has "stove top oven": never found, as it has three.
MERGES = {
    **{pair: pair for pair in _KEPT},
    **{f"{age} {animal}": animal for animal in _ANIMALS for age in ("baby", "adult")},  # not a person
    **{f"passenger {vehicle}": vehicle for vehicle in ("jet", "train")},  # also in place of the passenger
    "bow tie": "tie",
    "toilet seat": "toilet",
    "wine glas": "wine glass",  # `singularize` of "wine glass"
}


@dataclass(frozen=True)
class Mentions:
    """The objects that a caption's tokens mention.

    Attributes:
        tokens: after merges; their number is the official script's length of the caption.
        words: words of the list, in order, repeats included.
        heads: of `words`, their categories.
        places: of `words`, the official `hallucination_idxs` if they are hallucinated.
    """

    tokens: tuple[str, ...]
    words: tuple[str, ...]
    heads: tuple[str, ...]
    places: tuple[int, ...]


def mentions(tokens: Sequence[str]) -> Mentions:
    """Apply the rule to the lemmas or singulars of a caption.

    Pairs are merged greedily from left to right. With a toilet, a seat is not a chair. `places` are positions before
    merging, but looked up by the position after seats were dropped: after a dropped seat they are too low, as in the
    official script.
    """
    merged: list[str] = []
    starts: list[int] = []
    place = 0
    while place < len(tokens):
        pair = " ".join(tokens[place : place + 2])
        starts.append(place)
        merged.append(MERGES.get(pair, tokens[place]))
        place += 2 if pair in MERGES else 1
    kept = [token for token in merged if token != "seat"] if {"toilet", "seat"} <= set(merged) else merged
    found = [(word, start) for word, start in zip(kept, starts, strict=False) if word in HEADS]
    return Mentions(
        tokens=tuple(merged),
        words=tuple(word for word, _ in found),
        heads=tuple(HEADS[word] for word, _ in found),
        places=tuple(start for _, start in found),
    )
