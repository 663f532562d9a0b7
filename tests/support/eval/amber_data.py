"""AMBER's folder with three captions and eight questions, answers to them, and a benchmark of it."""

from __future__ import annotations

import zlib
from pathlib import Path

from sira_cli.eval.amber import Amber, Similarity
from tests.support.eval.writing import save

RELATION = {
    "sky": [],
    "cloud": [],
    "sun": [],
    "forest": ["tree", "bush"],
    "tree": ["forest", "bush"],
    "ship": ["boat"],
    "person": ["man", "woman"],
    "dog": ["puppy"],
    "puppy": ["dog"],
    "light": [],
}
CAPTIONS = [
    (["sky", "forest", "tree", "ship", "ship"], ["cloud", "dog"]),
    (["person"], ["sun"]),
    (["cloud", "sky"], ["ship"]),
]
QUESTIONS = [  # from id 4 on
    ("discriminative-attribute-state", "yes", "a.jpg"),
    ("discriminative-attribute-state", "no", "a.jpg"),
    ("discriminative-attribute-number", "no", "b.jpg"),
    ("discriminative-attribute-action", "yes", "b.jpg"),
    ("discriminative-hallucination", "no", "a.jpg"),
    ("discriminative-hallucination", "no", "c.jpg"),
    ("discriminative-relation", "yes", "c.jpg"),
    ("relation", "no", "c.jpg"),
]
SAID = {"1": "A sky over a boat, a ship and a tree.", "2": "The sun and the light: a dog, a man.", "3": "The sun."}
ANSWERED = {"4": "Yes", "5": "No", "6": "Yes", "7": "No", "8": "No", "9": "No.", "10": "yes", "11": "No"}


class Nouns:
    official = True

    def nouns(self, text):
        return [word.strip(".,:") for word in text.split()]

    def facts(self):
        return {"name": "words"}


def near(*pairs: set[str]) -> Similarity:
    """Words are near themselves and whatever `pairs` say; without pairs about every twelfth word."""

    def above(one, other):
        if pairs or one == other:
            return one == other or {one, other} in pairs
        return zlib.crc32(" ".join(sorted((one, other))).encode()) % 12 == 0

    return Similarity("near", above, official=True)


def lay_out(folder: Path) -> Path:
    annotations = [
        {"id": number, "type": "generative", "truth": truth, "hallu": hallu}
        for number, (truth, hallu) in enumerate(CAPTIONS, start=1)
    ] + [{"id": number, "type": kind, "truth": truth} for number, (kind, truth, _) in enumerate(QUESTIONS, start=4)]
    captions = [{"id": n, "image": f"{name}.jpg", "query": "Describe this image."} for n, name in enumerate("abc", 1)]
    questions = [{"id": n, "image": image, "query": f"Is it {n}?"} for n, (_, _, image) in enumerate(QUESTIONS, 4)]
    save(folder / "annotations.json", annotations)
    save(folder / "relation.json", RELATION)
    save(folder / "safe_words.txt", "orange\nlight")
    save(folder / "query" / "query_generative.json", captions)
    save(folder / "query" / "query_discriminative.json", questions)
    return folder


def benchmark(folder: Path, **options) -> Amber:
    return Amber(folder, **{"language": Nouns(), "similarity": near({"sun", "cloud"}), **options})


def figures(amber: Amber, *texts: dict[str, str]) -> dict[str, dict[str, float]]:
    scored = [amber.score(part, given) for part, given in zip(amber.parts, texts, strict=True)]
    return {group: amber.figures(group, tally.total()) for tallies in scored for group, tally in tallies.items()}
