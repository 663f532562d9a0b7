"""A drawn world that moves, in the forms of EventHallusion and VideoHallucer: `python -m tools.moving FOLDER -n 100`.

A clip is a scene in which two things happen, to one thing each: it enters, leaves, moves, or changes its colour. All
questions follow from that. `sira eval eventhallusion FOLDER/eventhallusion --images FOLDER/eventhallusion/videos` asks
them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import av
import numpy as np

from sira_cli.demo.scenes import SIDE, VALIDATION_SEEDS, Scene, SceneObject, make_scene, render
from sira_cli.demo.world import OBJECTS
from sira_cli.eval.eventhallusion import SPLITS
from sira_cli.eval.videohallucer import SUBSETS

FRAMES, RATE = 16, 4  # of a clip, and per second
WORDS = {"enters": "enter", "leaves": "leave", "moves": "move", "turns": "change its colour"}


@dataclass(frozen=True)
class Event:
    """What happens to a thing: `kind` of `WORDS`, `index` in the scene, the first frame that shows it."""

    kind: str
    index: int
    frame: int
    color: str = ""


@dataclass(frozen=True)
class Film:
    """A scene, and what happens in it, in order."""

    scene: Scene
    events: tuple[Event, ...]

    def at(self, frame: int) -> Scene:
        """Return the scene that a frame shows. What is absent is painted without strength: the rest stays as it is."""
        things = list(self.scene.things)
        for event in self.events:
            thing, happened = things[event.index], frame >= event.frame
            if (event.kind == "enters") != happened and event.kind in ("enters", "leaves"):
                things[event.index] = replace(thing, strength=0.0)
            elif happened and event.kind == "moves":
                things[event.index] = replace(thing, box=_moved(thing))
            elif happened and event.kind == "turns":
                things[event.index] = replace(thing, color=event.color)
        return replace(self.scene, things=tuple(things))

    def name(self, event: Event) -> str:
        """Return the thing that an event happens to."""
        return self.scene.things[event.index].name

    @property
    def still(self) -> str:
        """A kind of thing that nothing happens to."""
        busy = {self.name(event) for event in self.events}
        return next(thing.name for thing in self.scene.things if thing.name not in busy)


def make_film(seed: int) -> Film | None:
    """Return the film of a seed; None: in its scene too few things are seen well and the only ones of their kind."""
    scene = make_scene(seed)
    rng = np.random.default_rng([seed, 2])
    alone = [
        index
        for index, thing in enumerate(scene.things)
        if len(scene.objects[thing.name]) == 1 and thing.strength == 1 and len(OBJECTS[thing.name].colors) > 1
    ]
    if len(alone) < 2 or len(scene.objects) < 3:
        return None
    kinds = rng.choice(list(WORDS), size=2, replace=False)
    events = []
    for kind, index, frame in zip(kinds, rng.permutation(alone)[:2], (FRAMES // 3, 2 * FRAMES // 3), strict=True):
        others = [color for color in OBJECTS[scene.things[index].name].colors if color != scene.things[index].color]
        events.append(Event(str(kind), int(index), frame, str(rng.choice(others))))
    return Film(scene, tuple(events))


def _moved(thing: SceneObject) -> tuple[int, int, int, int]:
    """Return its box at the other side of the picture."""
    x0, y0, x1, y1 = thing.box
    width = x1 - x0
    start = 0 if (x0 + x1) / 2 > SIDE / 2 else SIDE - width
    return start, y0, start + width, y1


def write_film(film: Film, path: Path) -> None:
    """Write a film as mp4."""
    path.parent.mkdir(parents=True, exist_ok=True)
    frame: Any = av.VideoFrame  # its methods have no annotations
    with av.open(str(path), "w") as output:
        stream: Any = output.add_stream("libx264", rate=RATE)
        stream.width, stream.height, stream.pix_fmt = SIDE, SIDE, "yuv420p"
        for number in range(FRAMES):
            output.mux(stream.encode(frame.from_image(render(film.at(number))[0])))
        output.mux(stream.encode())


def asked(film: Film) -> tuple[str, str, str]:
    """Return a question about an event, one about an order, and one about a thing to which nothing happens."""
    first, second = film.events
    order = f"Does the {film.name(first)} {WORDS[first.kind]} before the {film.name(second)} {_does(second)}?"
    return (
        f"Does the {film.name(first)} {WORDS[first.kind]} during the video?",
        order,
        f"Does the {film.still} {WORDS[first.kind]} during the video?",
    )


def _does(event: Event) -> str:
    return "changes its colour" if event.kind == "turns" else event.kind


def export(films: Sequence[Film], folder: Path) -> None:
    """Write clips and questions in the forms of both benchmarks."""
    splits: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    subsets: dict[str, list[dict[str, Any]]] = {subset: [] for subset in SUBSETS}  # the external ones stay empty
    for number, film in enumerate(films):
        swapped = replace(film, events=film.events[::-1])
        (event, order, still), (_, wrong, _) = asked(film), asked(swapped)
        told = (((event, "Yes."),), ((order, "Yes."), (wrong, "No.")), ((still, "No."),))
        for split, pairs in zip(SPLITS, told, strict=True):
            id_ = f"{split}_{number}"
            questions = [{"question": question, "answer": answer} for question, answer in pairs]
            splits[split].append({"id": id_, "questions": questions})
            write_film(film, folder / "eventhallusion" / "videos" / split / f"{id_}.mp4")
        for subset, basic, other in (("semantic_detail", event, still), ("temporal", order, wrong)):
            video = f"{number}.mp4"
            subsets[subset].append(
                {
                    "basic": {"video": video, "question": basic, "answer": "yes"},
                    "hallucination": {"video": video, "question": other, "answer": "no"},
                }
            )
            write_film(film, folder / "videohallucer" / subset / "videos" / video)
    for split, rows in splits.items():
        _save(folder / "eventhallusion" / "questions" / f"{split}_questions.json", rows)
    for subset, rows in subsets.items():
        _save(folder / "videohallucer" / subset / f"{subset}.json", rows)


def _save(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=1), encoding="utf-8")


def main() -> None:
    """Write the films of the first validation seeds that have one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-n", type=int, default=100, help="number of films")
    given = parser.parse_args()
    found = (film for seed in VALIDATION_SEEDS if (film := make_film(seed)) is not None)
    export([next(found) for _ in range(given.n)], given.folder)


if __name__ == "__main__":
    main()
