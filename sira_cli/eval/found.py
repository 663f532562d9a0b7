"""The benchmarks whose files lie in one folder.

| in the folder | benchmark |
|---|---|
| `pope/*.json`, and if there are any `repope/*.json` | POPE, with RePOPE |
| `coco/` with `annotations/` and `ids.txt` | CHAIR |
| `NAME/`, such as `amber/` or `dash-b/` | the benchmark of that name in the catalogue |
| `images/` | pictures of those whose own folder has none |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sira_cli.errors import PictureError, SettingsError
from sira_cli.eval.base import Benchmark
from sira_cli.eval.card import Asking, Card
from sira_cli.eval.catalog import benchmarks


@dataclass(frozen=True)
class Found:
    """A benchmark with its files read, and the folder of its pictures."""

    card: Card
    benchmark: Benchmark
    images: Path


def find_benchmarks(
    folder: Path,
    limit: int | None = None,
    cards: Sequence[Card] = (),
    options: Mapping[str, Mapping[str, str]] | None = None,
) -> list[Found]:
    """Return the benchmarks in a folder, in the order of `cards` or of the catalogue.

    Args:
        folder: laid out as above.
        limit: maximum number of questions per file (POPE), or of pictures, per file or subset.
        cards: benchmarks that must exist in the folder; empty: all that exist, except those that need a judge.
        options: of each benchmark, by its name; checked (`catalog.options_of_each`).

    Raises:
        SettingsError: the folder holds no benchmark, a file is missing, or a benchmark needs a judge.
        DataError: a file cannot be read.
        PictureError: a benchmark has no pictures.
    """
    if not folder.is_dir():
        raise SettingsError(f"{folder}: is not a folder")
    for card in cards:
        if card.judged:
            raise SettingsError(
                f"{card.name}: a judge has to read its answers: give its folder alone with `images=` FOLDER, `output=` "
                "FOLDER and `export=` official"
            )
        if not _data(card, folder).is_dir():
            raise SettingsError(
                f"{folder}: has no folder {_data(card, folder).name} with {card.content}; to give {card.name}'s files "
                "themselves, add `images=` FOLDER to ask the model, or `answers=` FILE to score answers"
            )
    found = []
    for card in cards or [card for card in benchmarks().values() if not card.judged]:
        if _data(card, folder).is_dir():
            given = {**_defaults(card, folder), **(options or {}).get(card.name, {})}
            benchmark = card.open(card.files_in([_data(card, folder)]), Asking(limit=limit, options=given))
            found.append(Found(card, benchmark, _images(card, folder, benchmark)))
    if not found:
        raise SettingsError(
            f"{folder}: holds no benchmark: expected folders such as pope, coco, amber, dash-b, with the files "
            "that docs/benchmarks.md names; those that need a judge are not run"
        )
    return found


def unjudged(folder: Path) -> list[str]:
    """Return the names of the benchmarks in a folder that are left out because they need a judge."""
    return [card.name for card in benchmarks().values() if card.judged and (folder / card.name).is_dir()]


def _data(card: Card, folder: Path) -> Path:
    return folder / (card.folder or card.name)


def _images(card: Card, folder: Path, benchmark: Benchmark) -> Path:
    """Return the folder of a benchmark's pictures."""
    own = folder / card.name / card.pictures
    images = own if card.pictures and own.is_dir() else folder / "images"
    if not any((images / ask.picture).exists() for part in benchmark.parts for ask in part.asks):
        raise PictureError(f"{folder}: none of the pictures of {card.name} is in {images}: put them there")
    return images


def _defaults(card: Card, folder: Path) -> dict[str, str]:
    """Return default options of a benchmark in a folder: AMBER's word vectors may be missing."""
    if card.name == "pope" and any((folder / "repope").glob("*.json")):
        return {"repope": str(folder / "repope")}
    return {"similarity": "auto"} if card.name == "amber" else {}
