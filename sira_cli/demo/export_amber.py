"""Scenes as AMBER's data folder (Wang et al. 2023)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from sira_cli.demo.language import NUMBERS, article
from sira_cli.demo.scenes import Scene
from sira_cli.demo.world import COLORS, OBJECTS, PLACES

REQUEST = "Describe this image."
MAX_HALLU = 5  # objects a picture that a model may well make up, about as many as AMBER lists

Row = tuple[str, str, bool]  # AMBER's type of question, its text, whether yes is true


def amber(scenes: Sequence[Scene], file_name: Callable[[Scene], str]) -> dict[str, str]:
    """Return the text of each file, by its path in the data folder."""
    annotations: list[dict[str, Any]] = []
    queries: list[dict[str, Any]] = []
    for number, scene in enumerate(scenes, start=1):
        objects = {"truth": list(scene.objects), "hallu": expected(scene)}
        annotations.append({"id": number, "type": "generative", **objects})
        queries.append({"id": number, "image": file_name(scene), "query": REQUEST})
    # In AMBER's order: attributes of all pictures, then absent objects, then relations.
    asked = [
        (scene, question)
        for about in (_attributes, _existence, _relations)
        for scene in scenes
        for question in about(scene)
    ]
    for number, (scene, (kind, text, is_so)) in enumerate(asked, start=len(scenes) + 1):
        annotations.append({"id": number, "type": kind, "truth": "yes" if is_so else "no"})
        queries.append({"id": number, "image": file_name(scene), "query": text})
    return {
        "annotations.json": _json(annotations),
        "relation.json": _json(_relation()),
        # Nouns are single words there: of a traffic light, "light" remains. AMBER has the same word on its list.
        "safe_words.txt": "light\n",
        "metrics.txt": _metrics(),
        "query/query_all.json": _json(queries),
        "query/query_generative.json": _json(queries[: len(scenes)]),
        "query/query_discriminative.json": _json(queries[len(scenes) :]),
    }


def expected(scene: Scene) -> list[str]:
    """Return typical objects of the place that are absent, the most typical first."""
    chances = PLACES[scene.place].objects
    absent = [name for name in chances if name not in scene.objects]
    return sorted(absent, key=lambda name: -chances[name])[:MAX_HALLU]


def _attributes(scene: Scene) -> Iterator[Row]:
    """Ask about colour and number of one object, and the action of one in the air, once for yes and once for no."""
    rng = np.random.default_rng([scene.seed, scene.broken, 5])
    name = str(rng.choice(list(scene.objects)))
    things = scene.objects[name]
    (color,) = {thing.color for thing in things}
    other = str(rng.choice([other for other in COLORS if other != color]))
    verb = "Is" if len(things) == 1 else "Are"
    noun = name if len(things) == 1 else OBJECTS[name].plural
    for said in (color, other):
        yield "discriminative-attribute-state", f"{verb} the {noun} {said} in this image?", said == color
    for count in (len(things), 1 + len(things) % 3):
        text = f"Is there one {name}" if count == 1 else f"Are there {NUMBERS[count]} {OBJECTS[name].plural}"
        yield "discriminative-attribute-number", f"{text} in this image?", count == len(things)
    for name in scene.objects:
        if OBJECTS[name].where == "air":
            for does in ("fly", "stand"):
                yield "discriminative-attribute-action", f"Does the {name} {does} in this image?", does == "fly"


def _existence(scene: Scene) -> Iterator[Row]:
    """Ask about absent objects, as all of AMBER's questions of this type do."""
    for name in expected(scene):
        yield "discriminative-hallucination", f"Is there {article(name)} {name} in this image?", False


def _relations(scene: Scene) -> Iterator[Row]:
    """Ask which of two objects is further left, if that is clear; yes and no have AMBER's two names."""
    single = {name: things[0].where for name, things in scene.objects.items() if len(things) == 1}
    left = [name for name, where in single.items() if where == "left"]
    right = [name for name, where in single.items() if where == "right"]
    for one, other in zip(left[:1], right[:1], strict=False):
        yield "discriminative-relation", f"Is the {one} to the left of the {other} in this image?", True
        yield "relation", f"Is the {other} to the left of the {one} in this image?", False


def _relation() -> dict[str, list[str]]:
    """Return every object with the words that also mean it.

    AMBER compares single nouns, so names of two words never match, as in its own data.
    """
    return {name: [*kind.synonyms, kind.plural] for name, kind in OBJECTS.items()}


def _metrics() -> str:
    """Return the start values of AMBER's counters; denominators are not zero."""
    captions = ("chair", "safe_cover", "hallu_cover", "non_hallu")
    # All questions, then attributes (state, number, action), relations (association), hallucinations.
    questions = [
        f"{dimension}qa_{count}"
        for dimension in ("", "as_", "an_", "aa_", "asso_", "ha_")
        for count in ("correct", "no", "ans_no")
    ]
    return "".join(f"{name}_score=0\n{name}_num=0.001\n" for name in (*captions, *questions))


def _json(value: Any) -> str:
    return json.dumps(value, indent=4)
