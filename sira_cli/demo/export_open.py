"""Scenes as the files of HallusionBench, PhD, MMHal-Bench and HaloQuest, where the truth is known."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

from sira_cli.demo.export_amber import expected
from sira_cli.demo.export_closed import pairs_of
from sira_cli.demo.language import NUMBERS, article, yes_no_question
from sira_cli.demo.scenes import Scene
from sira_cli.demo.world import OBJECTS

NAMES = 3  # objects that HallusionBench's questions are about, in each set
TASKS = {  # PhD's, by the subset of MME with such questions
    "existence": "object recognition",
    "count": "counting",
    "position": "positional recognition",
    "color": "attribute recognition",
}
KINDS = ("attribute", "adversarial", "counting", "environment")  # of MMHal-Bench's questions, by turns
COLUMNS = ("image_name", "url", "image type", "hallucination type", "question", "groundtruth responses", "split")

FileName = Callable[[Scene], str]


def hallusion(scenes: Sequence[Scene], file_name: FileName) -> dict[str, str]:
    """Return HallusionBench's questions about pairs of scenes: the same objects; the second scene counts as changed."""
    rows: list[dict[str, Any]] = []
    for number, pair in enumerate(zip(scenes[::2], scenes[1::2], strict=False)):
        names = dict.fromkeys([*list(pair[0].objects)[: NAMES - 1], *pair[1].objects])
        for figure, scene in enumerate(pair):
            for question, name in enumerate(list(names)[:NAMES]):
                here = name in scene.objects
                ids = {"category": "VD", "subcategory": "drawn", "visual_input": str(1 + figure)}
                ids |= {"set_id": str(number), "figure_id": str(figure), "question_id": str(question)}
                truth = f"There is {'a' if here else 'no'} {name}."
                row = {"question": yes_no_question(name), "gt_answer_details": truth, "gt_answer": str(int(here))}
                rows.append(ids | row | {"filename": f"./{file_name(scene)}"})
    return {"HallusionBench.json": json.dumps(rows)}


def phd(scenes: Sequence[Scene]) -> tuple[dict[str, str], dict[str, Scene]]:
    """Return PhD's questions, and its pictures by path; scenes with untypical objects are those against common sense.

    Its pictures have COCO's names, which end in .jpg, but are PNG files, because scenes are lossless.
    """
    rows: list[dict[str, Any]] = []
    pictures = {}
    for scene in scenes:
        path = f"CCS_images/{scene.seed}.png" if scene.broken else f"val2014/COCO_val2014_{scene.seed:012d}.jpg"
        pictures[f"images/{path}"] = scene
        more: dict[str, Any] = {"context": {"iac": _inaccurate(scene), "icc": _incorrect(scene)}}
        if scene.broken:
            more = {"ccs_description": f"Its objects are not those of a {scene.place}."}
        for subset, (true, false) in pairs_of(scene):
            about = {"image_id": str(scene.seed), "task": TASKS[subset], "yes_question": true, "no_question": false}
            rows.append(about | more)
    return {"data.json": json.dumps(rows)}, pictures


def mmhal(scenes: Sequence[Scene], file_name: FileName) -> dict[str, str]:
    """Return MMHal-Bench's template: one question per scene, alternating four kinds."""
    rows = []
    for number, scene in enumerate(scenes):
        name, things = next(iter(scene.objects.items()))
        none = absent(scene)
        asked = {
            "attribute": (f"What colour is the {name}?", f"It is {things[0].color}."),
            "adversarial": (f"What colour is the {none}?", f"There is no {none} in the picture."),
            "counting": (f"How many {OBJECTS[name].plural} are there?", f"There are {NUMBERS[len(things)]}."),
            "environment": ("What place is this?", f"It is {article(scene.place)} {scene.place}."),
        }
        kind = KINDS[number % len(KINDS)]
        about = {"question_type": kind, "question_topic": "drawn", "image_id": str(scene.seed)}
        source = {"image_src": f"https://example.org/{file_name(scene)}", "image_content": list(scene.objects)}
        question, answer = asked[kind]
        rows.append(about | source | {"question": question, "gt_answer": answer, "model_answer": ""})
    return {"response_template.json": json.dumps(rows)}


def haloquest(scenes: Sequence[Scene], file_name: FileName) -> dict[str, str]:
    """Return HaloQuest's table: three questions per scene, one of each kind."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["", *COLUMNS])
    number = 0
    for scene in scenes:
        name, things = next(iter(scene.objects.items()))
        none = absent(scene)
        for kind, question, answer in (
            ("false premises", f"What colour is the {none}?", f"There is no {none}; no {none} can be seen"),
            ("visual challenge", f"How many {OBJECTS[name].plural} are there?", NUMBERS[len(things)]),
            ("insufficient context", f"Who owns the {name}?", "That cannot be known from the picture"),
        ):
            shown = (file_name(scene), f"https://example.org/{file_name(scene)}", "generated")
            writer.writerow([number, *shown, kind, question, answer, "eval"])
            number += 1
    return {"haloquest-eval.csv": table.getvalue()}


def absent(scene: Scene) -> str:
    """Return an object that is not in a scene, a typical one if there is any."""
    return next(iter(expected(scene)), "") or next(name for name in OBJECTS if name not in scene.objects)


def _inaccurate(scene: Scene) -> str:
    return f"It was a fine day, and the {scene.place} was quiet."


def _incorrect(scene: Scene) -> str:
    name = next(iter(scene.objects))
    return f"The picture shows {article(absent(scene))} {absent(scene)}, and there is no {name} in it."
