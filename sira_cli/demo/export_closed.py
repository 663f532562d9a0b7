"""Scenes as the files of RePOPE, DASH-B, NaturalBench and MME, where the truth is known."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sira_cli.demo.export_amber import expected
from sira_cli.demo.language import NUMBERS, article, yes_no_question
from sira_cli.demo.scenes import Scene
from sira_cli.demo.world import COLORS, OBJECTS

SIDES = ("left", "middle", "right")
WEAK = 0.6  # opacity below which a thing is faint: RePOPE leaves ambiguous questions out
SUFFIX = " Please answer yes or no."

Questions = tuple[str, str]  # one whose answer is yes, one whose answer is no


def repope(pope: Mapping[str, Sequence[dict[str, Any]]], scenes: Mapping[str, Scene]) -> dict[str, str]:
    """Return RePOPE's files: POPE's questions without those about faint objects. Labels of scenes need no correction.

    Args:
        pope: the questions of each split.
        scenes: by the name of their picture.
    """
    files = {}
    for split, rows in pope.items():
        kept = [row for row in rows if not _faint(scenes[row["image"]], row["text"])]
        files[f"scenes_repope_{split}.json"] = "".join(json.dumps(row) + "\n" for row in kept)
    return files


def _faint(scene: Scene, question: str) -> bool:
    """Return whether a question is about an object of which every instance is faint."""
    about = next((things for name, things in scene.objects.items() if yes_no_question(name) == question), [])
    return bool(about) and all(thing.strength < WEAK for thing in about)


def dash_b(scenes: Sequence[Scene], file_name: Callable[[Scene], str]) -> tuple[dict[str, str], dict[str, Scene]]:
    """Return DASH-B's lists, and its pictures by path: each scene with a present and a typical absent object."""
    lists: dict[str, dict[str, list[str]]] = {"pos": {}, "neg": {}}
    pictures = {}
    for scene in scenes:
        for side, names in (("pos", [*scene.objects][:1]), ("neg", expected(scene)[:1])):
            for name in names:
                lists[side].setdefault(name, []).append(file_name(scene))
                pictures[f"{side}/drawn/{name}/{file_name(scene)}"] = scene
    return {f"dash_benchmark_{side}.json": json.dumps({"drawn": names}) for side, names in lists.items()}, pictures


def naturalbench(scenes: Sequence[Scene], file_name: Callable[[Scene], str]) -> dict[str, str]:
    """Return NaturalBench's questions about pairs of scenes: an object of each that the other lacks."""
    rows: list[dict[str, Any]] = []
    for pair in zip(scenes[::2], scenes[1::2], strict=False):
        own = [
            next((name for name in one.objects if name not in other.objects), "") for one, other in (pair, pair[::-1])
        ]
        if not all(own):
            continue
        for asked, name in enumerate(own):
            for shown, scene in enumerate(pair):
                row = {"Index": len(rows), "Image": file_name(scene), "Question": yes_no_question(name)}
                rows.append(row | {"Answer": "Yes" if asked == shown else "No", "Question_Type": "yes_no"})
    return {"naturalbench.jsonl": "".join(json.dumps(row) + "\n" for row in rows)}


def mme(scenes: Sequence[Scene], file_name: Callable[[Scene], str]) -> tuple[dict[str, str], dict[str, Scene]]:
    """Return the files of MME's four hallucination subsets, and their pictures, by path."""
    files, pictures = {}, {}
    for scene in scenes:
        for subset, (true, false) in pairs_of(scene):
            stem = file_name(scene).partition(".")[0]
            files[f"{subset}/{stem}.txt"] = f"{true}{SUFFIX}\tYes\n{false}{SUFFIX}\tNo\n"
            pictures[f"{subset}/{file_name(scene)}"] = scene
    return files, pictures


def pairs_of(scene: Scene) -> Iterator[tuple[str, Questions]]:
    """Yield a pair of questions per subset, about the scene's first object."""
    name, things = next(iter(scene.objects.items()))
    absent = next(iter(expected(scene)), "") or next(other for other in OBJECTS if other not in scene.objects)
    yield "existence", (yes_no_question(name), yes_no_question(absent))
    yield "count", (_count(name, len(things)), _count(name, len(things) % (len(NUMBERS) - 1) + 1))
    sides, colors = {thing.where for thing in things}, {thing.color for thing in things}
    if other := [side for side in SIDES if side not in sides]:
        yield "position", (_place(name, things[0].where), _place(name, other[0]))
    missing = next(color for color in COLORS if color not in colors)
    yield "color", (_color(name, things[0].color), _color(name, missing))


def _count(name: str, number: int) -> str:
    if number == 1:
        return f"Is there only one {name} in the image?"
    return f"Are there {NUMBERS[number]} {OBJECTS[name].plural} in the image?"


def _place(name: str, side: str) -> str:
    where = "in the middle" if side == "middle" else f"on the {side}"
    return f"Is there {article(name)} {name} {where} of the image?"


def _color(name: str, color: str) -> str:
    return f"Is there {article(color)} {color} {name} in the image?"
