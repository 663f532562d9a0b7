"""Scenes as the files of POPE, COCO and AMBER, so that their benchmarks run end to end with nothing to download.

| folder | what it holds |
|---|---|
| `images/` | the pictures, lossless, named after the scenes' seeds |
| `pope/` | a question file for each of POPE's splits |
| `coco/` | `ids.txt`, and `annotations/` with objects and reference captions, from which CHAIR takes the truth |
| `amber/` | AMBER's data folder: queries, annotations, relations, safe words |

The same scenes give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sira_cli.demo.evaluate import Questions
from sira_cli.demo.export_amber import amber
from sira_cli.demo.figures import SPLITS
from sira_cli.demo.language import NUMBERS, article, caption, yes_no_question
from sira_cli.demo.scenes import SIDE, Scene, render
from sira_cli.demo.world import OBJECTS
from sira_cli.eval.chair.words import HEADS
from sira_cli.files import make_folder, replacing


@dataclass(frozen=True)
class Exported:
    """The folders that were written.

    Attributes:
        images: the pictures of all three benchmarks.
        pope: POPE's question files.
        coco: COCO's folder with `annotations/`, and the image ids.
        amber: AMBER's data folder.
    """

    images: Path
    pope: Path
    coco: Path
    amber: Path


def export(subjects: Sequence[Scene], folder: Path, on_progress: Callable[[int], None] = lambda done: None) -> Exported:
    """Write scenes of different seeds as the benchmarks have their data.

    Args:
        subjects: the scenes.
        folder: made if it is not there; files of an earlier export are replaced.
        on_progress: told how many pictures are drawn.

    Raises:
        SiraError: something cannot be written.
    """
    to = Exported(folder / "images", folder / "pope", folder / "coco", folder / "amber")
    for place in (to.images, to.pope, to.coco / "annotations", to.amber / "query"):
        make_folder(place)
    areas: dict[int, list[int]] = {}
    for done, of in enumerate(subjects, start=1):
        picture, seen = render(of)
        with replacing(to.images / file_name(of)) as file:
            picture.save(file, "PNG")
        areas[of.seed] = np.bincount(seen.ravel(), minlength=1 + len(of.things))[1:].tolist()
        on_progress(done)

    for split, rows in _pope(subjects).items():
        _write(to.pope / f"scenes_pope_{split}.json", "".join(json.dumps(row) + "\n" for row in rows))
    _write(to.coco / "annotations" / "instances_val2014.json", json.dumps(_instances(subjects, areas)))
    _write(to.coco / "annotations" / "captions_val2014.json", json.dumps(_captions(subjects)))
    _write(to.coco / "ids.txt", "".join(f"{of.seed}\n" for of in subjects))
    for name, text in amber(subjects, file_name).items():
        _write(to.amber / name, text)
    return to


def file_name(of: Scene) -> str:
    """A scene's picture; like COCO's, its name ends in the image id, which is the scene's seed."""
    return f"scene_{of.seed:012d}.png"


def _pope(subjects: Sequence[Scene]) -> dict[str, list[dict[str, Any]]]:
    """The questions of each split: yes and no by turns."""
    about = Questions().about
    rows: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    for of in subjects:
        asked = about(of)
        there = [question for question in asked if question.there]
        for split in SPLITS:
            absent = [question for question in asked if not question.there and split in question.splits]
            # A scene of few objects has fewer to ask yes about: as many no go with them, to keep the balance.
            for pair in zip(there, absent, strict=False):
                for question in pair:
                    row = {
                        "question_id": len(rows[split]) + 1,
                        "image": file_name(of),
                        "text": yes_no_question(question.name),
                        "label": "yes" if question.there else "no",
                    }
                    rows[split].append(row)
    return rows


def _instances(subjects: Sequence[Scene], areas: dict[int, list[int]]) -> dict[str, Any]:
    """Boxes of the things that COCO has a category for. CHAIR cannot count others: they are left out.

    Args:
        subjects: the scenes.
        areas: by seed, how many pixels of each thing are seen.
    """
    numbers = {name: number for number, name in enumerate(dict.fromkeys(HEADS.values()), start=1)}
    things = [
        (of, thing, area)
        for of in subjects
        for thing, area in zip(of.things, areas[of.seed], strict=True)
        if thing.name in HEADS
    ]
    annotations = []
    for number, (of, thing, area) in enumerate(things, start=1):
        x0, y0, x1, y1 = thing.box
        row = {
            "id": number,
            "image_id": of.seed,
            "category_id": numbers[HEADS[thing.name]],
            "bbox": [x0, y0, x1 - x0, y1 - y0],
            "area": area,
            "iscrowd": 0,
        }
        annotations.append(row)
    # Nothing that is known of the world tells supercategories, but readers of COCO's files expect some.
    categories = [{"id": number, "name": name, "supercategory": "object"} for name, number in numbers.items()]
    return {**_head(subjects), "annotations": annotations, "categories": categories}


def _captions(subjects: Sequence[Scene]) -> dict[str, Any]:
    """Two reference captions a scene."""
    texts = [(of.seed, text) for of in subjects for text in _references(of)]
    rows = [{"id": number, "image_id": seed, "caption": text} for number, (seed, text) in enumerate(texts, start=1)]
    return {**_head(subjects), "annotations": rows}


def _references(of: Scene) -> Iterator[str]:
    """A caption as the bundled model learned them, and a list of everything with its colour.

    CHAIR takes the colour orange for the fruit. With the colours in a reference, it is no hallucination to say truly
    that something is orange.
    """
    yield caption(of, np.random.default_rng([of.seed, of.broken, 4]))
    phrases = []
    for name, things in of.objects.items():
        color = things[0].color
        one = len(things) == 1
        phrases.append(
            f"{article(color)} {color} {name}" if one else f"{NUMBERS[len(things)]} {color} {OBJECTS[name].plural}"
        )
    yield f"{article(of.place).capitalize()} {of.place} with {', '.join(phrases)}."


def _head(subjects: Sequence[Scene]) -> dict[str, Any]:
    """What COCO's annotation files begin with."""
    images = [{"id": of.seed, "file_name": file_name(of), "width": SIDE, "height": SIDE} for of in subjects]
    return {"info": {"description": "Test scenes of sira demo"}, "licenses": [], "images": images}


def _write(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode())
