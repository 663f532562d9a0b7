"""Scenes as the files of benchmarks, so that these run end to end without downloads.

| folder | content |
|---|---|
| `images/` | the pictures, lossless, named after the scenes' seeds |
| `pope/` | a question file for each of POPE's splits |
| `coco/` | `ids.txt`, and `annotations/` with objects and reference captions, from which CHAIR takes the truth |
| `amber/` | AMBER's data folder: queries, annotations, relations, safe words |
| `repope/` | POPE's questions without those about faint objects |

The same scenes give the same bytes.
"""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sira_cli.demo.export_amber import amber
from sira_cli.demo.language import NUMBERS, article, caption, yes_no_question
from sira_cli.demo.questions import SPLITS, Questions
from sira_cli.demo.scenes import SIDE, Scene, render
from sira_cli.demo.world import OBJECTS
from sira_cli.eval.chair.words import HEADS
from sira_cli.files import make_folder, write_whole

WEAK = 0.6  # opacity below which a thing is faint: RePOPE leaves ambiguous questions out


def export(
    scenes: Sequence[Scene],
    folder: Path,
    on_progress: Callable[[int], None] = lambda done: None,
    *,
    overwrite: bool = False,
) -> None:
    """Write scenes of different seeds in the formats of the benchmarks."""
    annotations = folder / "coco/annotations"
    for place in (folder / "images", folder / "pope", annotations):
        make_folder(place)
    write = functools.partial(write_whole, overwrite=overwrite)

    def write_files(files: Mapping[str, str], where: str) -> None:
        for name, content in files.items():
            make_folder((folder / where / name).parent)
            write(folder / where / name, content.encode())

    # First, because it detects an export of other scenes before anything is written.
    write(folder / "coco/ids.txt", "".join(f"{scene.seed}\n" for scene in scenes).encode())
    areas: dict[int, list[int]] = {}
    for done, scene in enumerate(scenes, start=1):
        picture, seen = render(scene)
        encoded = io.BytesIO()
        picture.save(encoded, "PNG")
        write(folder / "images" / file_name(scene), encoded.getvalue())
        areas[scene.seed] = np.bincount(seen.ravel(), minlength=1 + len(scene.things))[1:].tolist()
        on_progress(done)

    pope = _pope(scenes)
    for split, rows in pope.items():
        write(folder / f"pope/scenes_pope_{split}.json", "".join(json.dumps(row) + "\n" for row in rows).encode())
    write_files(_repope(pope, {file_name(scene): scene for scene in scenes}), "repope")
    write(annotations / "instances_val2014.json", json.dumps(_instances(scenes, areas)).encode())
    write(annotations / "captions_val2014.json", json.dumps(_captions(scenes)).encode())
    write_files(amber(scenes, file_name), "amber")


def file_name(scene: Scene) -> str:
    """Return the name of a scene's picture; like COCO's, it ends in the image id, which is the scene's seed."""
    return f"scene_{scene.seed:012d}.png"


def _pope(scenes: Sequence[Scene]) -> dict[str, list[dict[str, Any]]]:
    """Return the questions of each split, alternating yes and no."""
    about = Questions().about
    rows: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    for scene in scenes:
        asked = about(scene)
        present = [question for question in asked if question.expected]
        for split in SPLITS:
            absent = [question for question in asked if not question.expected and split in question.splits]
            # A scene of few objects has fewer to ask yes about: as many no go with them, to keep the balance.
            for pair in zip(present, absent, strict=False):
                for question in pair:
                    row = {
                        "question_id": len(rows[split]) + 1,
                        "image": file_name(scene),
                        "text": yes_no_question(question.name),
                        "label": "yes" if question.expected else "no",
                    }
                    rows[split].append(row)
    return rows


def _repope(pope: Mapping[str, Sequence[dict[str, Any]]], scenes: Mapping[str, Scene]) -> dict[str, str]:
    """Return RePOPE's files: POPE's questions without those about faint objects; labels of scenes are correct."""
    files = {}
    for split, rows in pope.items():
        kept = [row for row in rows if not _faint(scenes[row["image"]], row["text"])]
        files[f"scenes_repope_{split}.json"] = "".join(json.dumps(row) + "\n" for row in kept)
    return files


def _faint(scene: Scene, question: str) -> bool:
    """Return whether a question is about an object of which every instance is faint."""
    about = next((things for name, things in scene.objects.items() if yes_no_question(name) == question), [])
    return bool(about) and all(thing.strength < WEAK for thing in about)


def _instances(scenes: Sequence[Scene], areas: dict[int, list[int]]) -> dict[str, Any]:
    """Return the boxes of objects that have a COCO category. CHAIR cannot count others."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(HEADS.values()), start=1)}
    things = [
        (scene, thing, area)
        for scene in scenes
        for thing, area in zip(scene.things, areas[scene.seed], strict=True)
        if thing.name in HEADS
    ]
    annotations = []
    for number, (scene, thing, area) in enumerate(things, start=1):
        x0, y0, x1, y1 = thing.box
        row = {
            "id": number,
            "image_id": scene.seed,
            "category_id": numbers[HEADS[thing.name]],
            "bbox": [x0, y0, x1 - x0, y1 - y0],
            "area": area,
            "iscrowd": 0,
        }
        annotations.append(row)
    # The world has no supercategories, but readers of COCO's files expect some.
    categories = [{"id": number, "name": name, "supercategory": "object"} for name, number in numbers.items()]
    return {**_head(scenes), "annotations": annotations, "categories": categories}


def _captions(scenes: Sequence[Scene]) -> dict[str, Any]:
    """Return two reference captions per scene."""
    texts = [(scene.seed, text) for scene in scenes for text in _references(scene)]
    rows = [{"id": number, "image_id": seed, "caption": text} for number, (seed, text) in enumerate(texts, start=1)]
    return {**_head(scenes), "annotations": rows}


def _references(scene: Scene) -> Iterator[str]:
    """Return a caption like those that the bundled model learned, and a list of all objects with their colours.

    CHAIR takes the colour orange for the fruit. With colours in a reference, a true "orange" is not a hallucination.
    """
    yield caption(scene, np.random.default_rng([scene.seed, scene.broken, 4]))
    phrases = []
    for name, things in scene.objects.items():
        color = things[0].color
        one = len(things) == 1
        phrases.append(
            f"{article(color)} {color} {name}" if one else f"{NUMBERS[len(things)]} {color} {OBJECTS[name].plural}"
        )
    yield f"{article(scene.place).capitalize()} {scene.place} with {', '.join(phrases)}."


def _head(scenes: Sequence[Scene]) -> dict[str, Any]:
    """Return the first fields of COCO's annotation files."""
    images = [{"id": scene.seed, "file_name": file_name(scene), "width": SIDE, "height": SIDE} for scene in scenes]
    return {"info": {"description": "Test scenes of sira demo"}, "licenses": [], "images": images}
