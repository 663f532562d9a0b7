"""Benchmarks made up for tests, and answers to them: one of two groups, a few images of COCO, and AMBER's folder."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path

from sira_cli.eval.amber import Amber
from sira_cli.eval.answers import Answers, Form, read_answer_rows
from sira_cli.eval.benchmark import Ask, Benchmark, Counted, Part
from sira_cli.eval.similarity import Similarity
from tests.support.eval.writing import save


def share(total: Mapping[str, float]) -> dict[str, float]:
    return {"share": 100 * total["right"] / total["all"] if total["all"] else 0.0}


class Made(Benchmark):
    """A benchmark of two groups: what is said is right if it is `1`."""

    name = "made"

    def __init__(self, pictures: int = 40) -> None:
        asks = (Ask(f"{group}/{number}", f"{number}.jpg", "?") for group in "ab" for number in range(pictures))
        self.parts = (Part("only", "ask", tuple(asks), ("a", "b")),)

    def means(self, part):
        return {"mean": part.groups}

    def count(self, part, texts):
        for ask in part.asks:
            if ask.id in texts:
                right = texts[ask.id] == "1"
                yield Counted(ask.id, ask.picture, (ask.id[0],), right, {"right": right, "all": 1})

    def figures(self, group, total, *, smooth=False):
        return share(total)

    def denominators(self, group):
        return {"share": ("all",)}

    def read(self, paths):
        return {"only": {row["id"]: row["text"] for _, row in read_answer_rows(paths[0], Form("said", ("id",)))}}


def said(name: str, a: str, b: str) -> Answers:
    texts = {f"{group}/{number}": text for group, row in (("a", a), ("b", b)) for number, text in enumerate(row)}
    return Answers(name, {"only": {ask: text for ask, text in texts.items() if text != "-"}})


# COCO.

IMAGES = {  # objects, reference captions
    7: (["person", "dog"], ["A man walks his dogs.", "A boy near a bench"]),
    8: (["car", "car"], ["Cars on a road."]),
    310196: ([], ["Nothing much."]),
}
CAPTIONS = {
    # 7: person, dog (twice) and bench are there; the cat twice and the car are not.
    "7": "A woman with a dog and a cat; the dog and the cat are near a car.",
    "8": "Two cars.",
    "310196": "",
}


def write_coco(folder: Path, images=IMAGES, split: str = "val", year: str = "2014") -> Path:
    """COCO's files about a few images."""
    listed = [{"id": image, "file_name": f"COCO_{split}{year}_{image:012d}.jpg"} for image in images]
    known = {"person": 10, "dog": 11, "cat": 12, "car": 13}
    instances = [{"image_id": image, "category_id": known[name]} for image in images for name in images[image][0]]
    captions = [{"image_id": image, "caption": text} for image, (_, texts) in images.items() for text in texts]
    categories = [{"id": number, "name": name} for name, number in known.items()]
    content = {"images": listed, "categories": categories, "annotations": instances}
    save(folder / f"instances_{split}{year}.json", content)
    save(folder / f"captions_{split}{year}.json", {"images": listed, "annotations": captions})
    return folder


# AMBER: three captions and eight questions.

RELATION = {"sky": [], "cloud": [], "sun": [], "light": [], "forest": ["tree", "bush"], "tree": ["forest", "bush"]}
RELATION |= {"ship": ["boat"], "person": ["man", "woman"], "dog": ["puppy"], "puppy": ["dog"]}
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


def write_amber(folder: Path) -> Path:
    captions = [
        {"id": 1, "type": "generative", "truth": ["sky", "forest", "tree", "ship", "ship"], "hallu": ["cloud", "dog"]},
        {"id": 2, "type": "generative", "truth": ["person"], "hallu": ["sun"]},
        {"id": 3, "type": "generative", "truth": ["cloud", "sky"], "hallu": ["ship"]},
    ]
    kinds = ["attribute-state", "attribute-state", "attribute-number", "attribute-action"]
    kinds = [f"discriminative-{kind}" for kind in (*kinds, "hallucination", "hallucination", "relation")] + ["relation"]
    truths = {n: {"type": kind, "truth": "yes" if n in (4, 7, 10) else "no"} for n, kind in enumerate(kinds, 4)}
    annotations = [*captions, *({"id": n, **truth} for n, truth in truths.items())]
    asked = [{"id": n, "image": f"{name}.jpg", "query": "Describe this image."} for n, name in enumerate("abc", 1)]
    save(folder / "query" / "query_generative.json", asked)
    asked = [{"id": n, "image": f"{name}.jpg", "query": f"Is it {n}?"} for n, name in enumerate("aabbaccc", 4)]
    save(folder / "query" / "query_discriminative.json", asked)
    save(folder / "annotations.json", annotations)
    save(folder / "relation.json", RELATION)
    save(folder / "safe_words.txt", "orange\nlight")
    return folder


def benchmark(folder: Path, **options) -> Amber:
    return Amber(folder, **{"language": Nouns(), "similarity": near({"sun", "cloud"}), **options})


def figures(amber: Amber, *texts: dict[str, str]) -> dict[str, dict[str, float]]:
    scored = [amber.score(part, given) for part, given in zip(amber.parts, texts, strict=True)]
    return {group: amber.figures(group, tally.total()) for tallies in scored for group, tally in tallies.items()}
