"""Drawn scenes in the formats of benchmarks whose own files may not be shipped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import TEST_SEEDS, Scene, render
from sira_cli.demo.world import OBJECTS

SCENES = [held_out(seed) for seed in TEST_SEEDS[:4]]


def draw(scene: Scene, path: Path) -> None:
    """Save a scene's picture; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    render(scene)[0].save(path)


def absent(scene: Scene, count: int = 1) -> list[str]:
    return [name for name in OBJECTS if name not in scene.objects][:count]


def save(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def lines(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    return save(path, "".join(json.dumps(row) + "\n" for row in rows))


def dash_b(folder: Path) -> Path:
    """DASH-B's two files and folders: of each scene an object that is there, and one that is not."""
    found: dict[str, dict[str, list[str]]] = {"pos": {}, "neg": {}}
    for scene in SCENES:
        for side, name in (("pos", next(iter(scene.objects))), ("neg", *absent(scene))):
            file = f"{scene.seed}.png"
            found[side].setdefault(name, []).append(file)
            draw(scene, folder / side / "drawn" / name / file)
    for side, objects in found.items():
        save(folder / f"dash_benchmark_{side}.json", {"drawn": objects})
    return folder


def naturalbench(folder: Path) -> Path:
    """Groups of two scenes: about each an object that only this one has."""
    rows = []
    for number in range(0, len(SCENES), 2):
        pair = SCENES[number : number + 2]
        names = [f"{scene.seed}.png" for scene in pair]
        for scene, name in zip(pair, names, strict=True):
            draw(scene, folder / "images" / name)
        own = [next(name for name in one.objects if name not in other.objects) for one, other in (pair, pair[::-1])]
        for asked, object_ in enumerate(own):
            for shown, name in enumerate(names):
                answer = "Yes" if asked == shown else "No"
                row = {"Index": len(rows), "Image": name, "Question": f"Is there a {object_} in the image?"}
                rows.append(row | {"Answer": answer, "Question_Type": "yes_no"})
    lines(folder / "naturalbench.jsonl", rows)
    return folder


def mme(folder: Path, subsets: Sequence[str] = ("existence", "count", "position", "color", "posters")) -> Path:
    """MME's folders: of each scene an object that is there, and one that is not; `posters` with its two folders."""
    for subset in subsets:
        texts, pictures = (
            (f"{subset}/questions_answers_YN", f"{subset}/images") if subset == "posters" else 2 * (subset,)
        )
        for scene in SCENES[:2]:
            draw(scene, folder / pictures / f"{scene.seed}.png")
            asked = ((next(iter(scene.objects)), "Yes"), (*absent(scene), "No"))
            said = (f"Is there a {name} in this image? Please answer yes or no.\t{label}\n" for name, label in asked)
            save(folder / texts / f"{scene.seed}.txt", "".join(said) + "\n")
    return folder
