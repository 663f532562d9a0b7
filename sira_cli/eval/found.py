"""The benchmarks whose files lie in one folder.

| in the folder | benchmark |
|---|---|
| `pope/*.json`, and if there are any `repope/*.json` | POPE, with RePOPE |
| `coco/` with `annotations/` and `ids.txt` | CHAIR |
| `amber/` | AMBER |
| `NAME/`, such as `dash-b/` | the benchmark of that name in the catalogue, unless a judge is needed |
| `images/` | pictures of those whose own folder has none |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from sira_cli.errors import PictureError, SettingsError
from sira_cli.eval.amber.benchmark import Amber
from sira_cli.eval.amber.similarity import Similarity, find_similarity
from sira_cli.eval.base import Benchmark, Part
from sira_cli.eval.card import Asking, Card
from sira_cli.eval.catalog import CARDS, LENGTHS
from sira_cli.eval.chair.benchmark import Chair
from sira_cli.eval.chair.rows import read_ids
from sira_cli.eval.pope import Pope
from sira_cli.language.language import find_language


@dataclass(frozen=True)
class Found:
    """A benchmark with its files read, and the folder of its pictures."""

    card: Card
    benchmark: Benchmark
    images: Path


def find_benchmarks(folder: Path, limit: int | None = None) -> list[Found]:
    """Return the benchmarks in a folder, in the order of the catalogue.

    Args:
        folder: laid out as above.
        limit: maximum number of questions per file (POPE), or of pictures, per file or subset.

    Raises:
        SettingsError: it holds no benchmark, or a file is missing.
        DataError: a file cannot be read.
        PictureError: a benchmark has no pictures.
    """
    if not folder.is_dir():
        raise SettingsError(f"`data=` {folder}: is not a folder")
    found = []
    for card in CARDS.values():
        if not card.judged and (benchmark := _read(card, folder, limit)) is not None:
            found.append(Found(card, benchmark, _images(card, folder, benchmark)))
    if not found:
        raise SettingsError(
            f"`data=` {folder}: holds no benchmark: expected folders such as pope, coco, amber, dash-b, with the files "
            "that docs/benchmarks.md names; those that need a judge are not run"
        )
    return found


def unjudged(folder: Path) -> list[str]:
    """Return the names of the benchmarks in a folder that are left out because they need a judge."""
    return [card.name for card in CARDS.values() if card.judged and (folder / card.name).is_dir()]


def _images(card: Card, folder: Path, benchmark: Benchmark) -> Path:
    """Return the folder of a benchmark's pictures.

    Raises:
        PictureError: it holds none of them.
    """
    own = folder / card.name / card.pictures
    images = own if card.pictures and own.is_dir() else folder / "images"
    if not any((images / ask.picture).exists() for part in benchmark.parts for ask in part.asks):
        raise PictureError(f"`data=` {folder}: none of the pictures of {card.name} is in {images}: put them there")
    return images


def _read(card: Card, folder: Path, limit: int | None) -> Benchmark | None:
    if card.read is not None:
        return card.read(folder / card.name, Asking(limit=limit)) if (folder / card.name).is_dir() else None
    reader = _READERS.get(card.name)
    return None if reader is None else reader(folder, limit)


def _pope(folder: Path, limit: int | None) -> Pope | None:
    files, corrected = (sorted((folder / name).glob("*.json")) for name in ("pope", "repope"))
    if not files and (folder / "pope").is_dir():
        raise SettingsError(f"{folder / 'pope'}: holds no .json file: expected POPE's files of questions")
    return Pope(files, limit=limit, repope=corrected) if files else None


def _chair(folder: Path, limit: int | None) -> Chair | None:
    if not (folder / "coco").is_dir():
        return None
    ids = folder / "coco" / "ids.txt"
    return Chair.of(folder / "coco", ids=list(islice(read_ids(ids), limit)), lengths=LENGTHS)


def _amber(folder: Path, limit: int | None) -> Amber | None:
    data = folder / "amber"
    if not data.is_dir():
        return None
    benchmark = Amber.of(data, language=find_language("auto", ["nouns"]), similarity=_similarity())
    return replace(benchmark, parts=tuple(first_pictures(part, limit) for part in benchmark.parts))


def _similarity() -> Similarity:
    """Return AMBER's own where it is installed, else equal words, which the report says."""
    try:
        return find_similarity()
    except SettingsError:
        return find_similarity("exact")


def first_pictures(part: Part, count: int | None) -> Part:
    """Return the asks of a part about its first pictures."""
    first = {*list(dict.fromkeys(ask.picture for ask in part.asks))[:count]}
    return replace(part, asks=tuple(ask for ask in part.asks if ask.picture in first))


_READERS: dict[str, Callable[[Path, int | None], Benchmark | None]] = {"pope": _pope, "chair": _chair, "amber": _amber}
