"""Data folders of four scenes, as `sira demo --export` writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sira_cli.demo import export_open
from sira_cli.demo.export import file_name
from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import TEST_SEEDS, Scene, render
from tests.support.eval.writing import save

SCENES = [held_out(seed) for seed in TEST_SEEDS[:4]]  # the second and the fourth have untypical objects


def hallusion(folder: Path) -> Path:
    return _written(folder, export_open.hallusion(SCENES, file_name), "hallusion_bench/{}")


def mmhal(folder: Path) -> Path:
    """Its pictures have a number before their names, as in the archive."""
    return _written(folder, export_open.mmhal(SCENES, file_name), "images/07_{}")


def haloquest(folder: Path) -> Path:
    return _written(folder, export_open.haloquest(SCENES, file_name), "images/{}")


def phd(folder: Path) -> Path:
    """The second of its usual pictures is among COCO's training pictures."""
    files, pictures = export_open.phd(SCENES)
    second = f"images/val2014/COCO_val2014_{SCENES[2].seed:012d}.jpg"
    _draw(
        {
            folder / path.replace("val2014", "train2014") if path == second else folder / path: of
            for path, of in pictures.items()
        }
    )
    return _written(folder, files)


def _written(folder: Path, files: Mapping[str, str], pictures: str = "") -> Path:
    for name, content in files.items():
        save(folder / name, content)
    if pictures:
        _draw({folder / pictures.format(file_name(scene)): scene for scene in SCENES})
    return folder


def _draw(pictures: Mapping[Path, Scene]) -> None:
    for path, scene in pictures.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        render(scene)[0].save(path)
