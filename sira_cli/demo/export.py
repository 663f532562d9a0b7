"""Scenes as the files of benchmarks, so that these run end to end without downloads; equal scenes give equal bytes.

`images/`: the pictures, named after the scenes' seeds. `pope/`: a question file per split. `coco/`: `ids.txt` and
`annotations/`, for CHAIR. `amber/`: AMBER's data folder.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sira_cli.demo.questions import NUMBERS, SPLITS, Questions, article, caption, yes_no_question
from sira_cli.demo.scenes import COLORS, OBJECTS, PLACES, SIDE, Scene, render
from sira_cli.eval.chair import HEADS
from sira_cli.files import make_folder, write_whole

MAX_HALLU = 5  # objects a picture that a model may well make up, about as many as AMBER lists

Rows = list[dict[str, Any]]


def export(
    scenes: Sequence[Scene], folder: Path, progress: Callable[[int], None] = lambda done: None, overwrite: bool = False
) -> None:
    """Write scenes of different seeds in the formats of the benchmarks."""

    def write(where: str, content: str | bytes) -> None:
        path = folder / where
        make_folder(path.parent)
        data = content.encode() if isinstance(content, str) else content
        write_whole(path, data, overwrite=overwrite)

    # First, because it detects an export of other scenes before anything is written.
    write("coco/ids.txt", "".join(f"{scene.seed}\n" for scene in scenes))
    areas: dict[int, list[int]] = {}  # pixels of each object that are seen, by the scene's seed
    for done, scene in enumerate(scenes, start=1):
        picture, seen = render(scene)
        file = io.BytesIO()
        picture.save(file, "PNG")
        write(f"images/{file_name(scene)}", file.getvalue())
        pixels = np.bincount(seen.ravel(), minlength=1 + len(scene.things))
        areas[scene.seed] = pixels[1:].tolist()
        progress(done)
    for split, rows in _pope(scenes).items():
        write(f"pope/scenes_pope_{split}.json", "".join(json.dumps(row) + "\n" for row in rows))
    for name, content in _coco(scenes, areas).items():
        write(f"coco/annotations/{name}_val2014.json", json.dumps(content))
    for name, text in _amber(scenes).items():
        write(f"amber/{name}", text)


def file_name(scene: Scene) -> str:
    """Return the name of a scene's picture; like COCO's, it ends in the image id, which is the scene's seed."""
    return f"scene_{scene.seed:012d}.png"


def _pope(scenes: Sequence[Scene]) -> dict[str, Rows]:
    """Return the questions of each split, alternating yes and no."""
    about = Questions().about
    rows: dict[str, Rows] = {split: [] for split in SPLITS}
    for scene in scenes:
        questions = about(scene)
        present = [question for question in questions if question.expected]
        for split in SPLITS:
            absent = [question for question in questions if not question.expected and split in question.splits]
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


# COCO, for CHAIR.


def _coco(scenes: Sequence[Scene], areas: dict[int, list[int]]) -> dict[str, Any]:
    """Return the content of each file of annotations."""
    images: Rows = []
    captions: Rows = []
    for scene in scenes:
        images.append({"id": scene.seed, "file_name": file_name(scene), "width": SIDE, "height": SIDE})
        for text in _references(scene):
            captions.append({"id": len(captions) + 1, "image_id": scene.seed, "caption": text})
    head = {"info": {"description": "Test scenes of sira demo"}, "licenses": [], "images": images}
    return {"instances": head | _instances(scenes, areas), "captions": head | {"annotations": captions}}


def _instances(scenes: Sequence[Scene], areas: dict[int, list[int]]) -> dict[str, Any]:
    """Return the boxes of objects that have a COCO category. CHAIR cannot count others."""
    # The world has no supercategories, but readers of COCO's files expect some.
    categories: Rows = []
    for number, name in enumerate(dict.fromkeys(HEADS.values()), start=1):
        categories.append({"id": number, "name": name, "supercategory": "object"})
    numbers = {category["name"]: category["id"] for category in categories}
    rows: Rows = []
    for scene in scenes:
        for thing, area in zip(scene.things, areas[scene.seed], strict=True):
            if thing.name not in HEADS:
                continue
            x0, y0, x1, y1 = thing.box
            row = {
                "id": len(rows) + 1,
                "image_id": scene.seed,
                "category_id": numbers[HEADS[thing.name]],
                "bbox": [x0, y0, x1 - x0, y1 - y0],
                "area": area,
                "iscrowd": 0,
            }
            rows.append(row)
    return {"annotations": rows, "categories": categories}


def _references(scene: Scene) -> Iterator[str]:
    """Yield a caption like those that the bundled model learned, and a list of all objects with their colours.

    CHAIR takes the colour orange for the fruit. With colours in a reference, a true "orange" is not a hallucination.
    """
    yield caption(scene, np.random.default_rng([scene.seed, scene.broken, 4]))
    phrases = []
    for name, things in scene.objects.items():
        color = things[0].color
        if len(things) == 1:
            phrases.append(f"{article(color)} {color} {name}")
        else:
            phrases.append(f"{NUMBERS[len(things)]} {color} {OBJECTS[name].plural}")
    yield f"{article(scene.place).capitalize()} {scene.place} with {', '.join(phrases)}."


# AMBER (Wang et al. 2023).


class Query(NamedTuple):
    """A yes/no question, with AMBER's name of its type; `is_so`: whether yes is true."""

    type: str
    text: str
    is_so: bool


def _amber(scenes: Sequence[Scene]) -> dict[str, str]:
    """Return the text of each file, by its path in AMBER's data folder."""
    annotations: Rows = []
    queries: Rows = []
    for number, scene in enumerate(scenes, start=1):
        annotations.append(
            {"id": number, "type": "generative", "truth": list(scene.objects), "hallu": _expected(scene)}
        )
        queries.append({"id": number, "image": file_name(scene), "query": "Describe this image."})
    # In AMBER's order: attributes of all pictures, then absent objects, then relations.
    for queries_about in (_attributes, _existence, _relations):
        for scene in scenes:
            for query in queries_about(scene):
                number = len(queries) + 1
                annotations.append({"id": number, "type": query.type, "truth": "yes" if query.is_so else "no"})
                queries.append({"id": number, "image": file_name(scene), "query": query.text})
    # AMBER compares single nouns, so names of two words never match, as in its own data.
    relation = {name: [*kind.synonyms, kind.plural] for name, kind in OBJECTS.items()}
    contents = {
        "annotations": annotations,
        "relation": relation,
        "query/query_all": queries,
        "query/query_generative": queries[: len(scenes)],
        "query/query_discriminative": queries[len(scenes) :],
    }
    files = {f"{name}.json": json.dumps(content, indent=4) for name, content in contents.items()}
    # Nouns are single words there: of a traffic light, "light" remains. AMBER has the same word on its list.
    files["safe_words.txt"] = "light\n"
    # AMBER's counters: of captions; of all questions, attributes (state, number, action), relations, hallucinations.
    counters = ["chair", "safe_cover", "hallu_cover", "non_hallu"]
    for dimension in ("", "as_", "an_", "aa_", "asso_", "ha_"):
        counters += [f"{dimension}qa_{count}" for count in ("correct", "no", "ans_no")]
    files["metrics.txt"] = "".join(f"{name}_score=0\n{name}_num=0.001\n" for name in counters)
    return files


def _expected(scene: Scene) -> list[str]:
    """Return typical objects of the place that are absent, the most typical first."""
    chances = PLACES[scene.place].objects
    absent = [name for name in chances if name not in scene.objects]
    return sorted(absent, key=lambda name: -chances[name])[:MAX_HALLU]


def _attributes(scene: Scene) -> Iterator[Query]:
    """Ask about colour and number of one object, and the action of one in the air, once for yes and once for no."""
    rng = np.random.default_rng([scene.seed, scene.broken, 5])
    name = str(rng.choice(list(scene.objects)))
    things = scene.objects[name]
    plural = OBJECTS[name].plural
    (color,) = {thing.color for thing in things}
    other_color = str(rng.choice([other for other in COLORS if other != color]))
    subject = f"Is the {name}" if len(things) == 1 else f"Are the {plural}"
    yield Query("discriminative-attribute-state", f"{subject} {color} in this image?", True)
    yield Query("discriminative-attribute-state", f"{subject} {other_color} in this image?", False)
    for count in (len(things), 1 + len(things) % 3):
        text = f"Is there one {name}" if count == 1 else f"Are there {NUMBERS[count]} {plural}"
        yield Query("discriminative-attribute-number", f"{text} in this image?", count == len(things))
    for name in scene.objects:
        if OBJECTS[name].where == "air":
            yield Query("discriminative-attribute-action", f"Does the {name} fly in this image?", True)
            yield Query("discriminative-attribute-action", f"Does the {name} stand in this image?", False)


def _existence(scene: Scene) -> Iterator[Query]:
    """Ask about absent objects, as all of AMBER's questions of this type do."""
    for name in _expected(scene):
        yield Query("discriminative-hallucination", f"Is there {article(name)} {name} in this image?", False)


def _relations(scene: Scene) -> Iterator[Query]:
    """Ask which of two objects is further left, if that is clear; yes and no have AMBER's two names."""
    left = []
    right = []
    for name, things in scene.objects.items():
        if len(things) > 1:
            continue
        x0, _, x1, _ = things[0].box
        middle = (x0 + x1) / 2
        if middle < SIDE / 3:
            left.append(name)
        elif middle > SIDE * 2 / 3:
            right.append(name)
    if left and right:
        yield Query("discriminative-relation", f"Is the {left[0]} to the left of the {right[0]} in this image?", True)
        yield Query("relation", f"Is the {right[0]} to the left of the {left[0]} in this image?", False)
