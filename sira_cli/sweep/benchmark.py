"""Yes/no questions about pictures, in splits: POPE's files, or the bundled validation scenes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from sira_cli.demo.evaluate import Questions, held_out
from sira_cli.demo.figures import SPLITS
from sira_cli.demo.language import yes_no_question
from sira_cli.demo.scenes import VALIDATION_SEEDS, Scene, render
from sira_cli.errors import SettingsError
from sira_cli.images import open_picture
from sira_cli.results import hash_of

SCENES = 200  # unless a limit is given


@dataclass(frozen=True)
class Asked:
    """A question about a picture.

    Attributes:
        picture: its name in the benchmark.
        text: of the question.
        there: whether yes is the true answer.
        splits: those that the question belongs to; one that asks it twice is named twice.
    """

    picture: str
    text: str
    there: bool
    splits: tuple[str, ...]


@dataclass(frozen=True)
class Benchmark:
    """Questions, those about one picture side by side.

    Attributes:
        splits: their names.
        questions: each once, whatever number of splits it belongs to.
        open: a picture by its name; raises PictureError.
        scenes: what the pictures show, if they are the bundled ones.
        folder: where the pictures are, if they are files.
    """

    splits: tuple[str, ...]
    questions: tuple[Asked, ...]
    open: Callable[[str], Image.Image]
    scenes: tuple[Scene, ...] = ()
    folder: str = ""

    @property
    def pictures(self) -> list[str]:
        """Their names, each once."""
        return list(dict.fromkeys(asked.picture for asked in self.questions))

    def settings(self) -> dict[str, Any]:
        """What decides the answers, as JSON holds it."""
        return {
            "splits": list(self.splits),
            "images": self.folder,
            "questions": len(self.questions),
            "questions_sha256": hash_of(questions=[asdict(asked) for asked in self.questions]),
        }


def scenes(limit: int | None = None, suffix: str = "") -> Benchmark:
    """The first validation scenes, with questions in POPE's three splits.

    Args:
        limit: how many scenes, instead of SCENES.
        suffix: after each question.
    """
    subjects = {str(seed): held_out(seed) for seed in VALIDATION_SEEDS[: limit or SCENES]}
    about = Questions().about
    questions = (
        Asked(name, yes_no_question(asked.name) + suffix, asked.there, asked.splits)
        for name, of in subjects.items()
        for asked in about(of)
    )
    return Benchmark(SPLITS, tuple(questions), lambda name: render(subjects[name])[0], tuple(subjects.values()))


def files(paths: Sequence[Path], folder: Path, limit: int | None = None, suffix: str = "") -> Benchmark:
    """POPE's question files, each a split that is named as the file is.

    Args:
        paths: files of JSON lines or of a JSON array, with `image`, `text` and `label` (yes or no).
        folder: where the images are.
        limit: only the first so many questions of each file.
        suffix: after each question.

    Raises:
        SettingsError: a file cannot be read, or a line of it; or two have the same name.
    """
    splits = tuple(path.stem for path in paths)
    for number, split in enumerate(splits):
        if split in splits[:number]:
            raise SettingsError(f"{paths[number]}: another file is named {split}, too: rename one, their splits mix up")
    found: dict[str, dict[tuple[str, bool], list[str]]] = {}  # by picture
    for path, split in zip(paths, splits, strict=True):
        rows = list(_read(path))[:limit]
        if not rows:
            raise SettingsError(f"{path}: holds no questions")
        for picture, text, there in rows:
            found.setdefault(picture, {}).setdefault((text + suffix, there), []).append(split)
    questions = (
        Asked(picture, text, there, tuple(belongs_to))
        for picture, about in found.items()
        for (text, there), belongs_to in about.items()
    )
    pictures = folder.resolve()
    return Benchmark(splits, tuple(questions), lambda name: open_picture(pictures / name).image, folder=str(pictures))


def _read(path: Path) -> Iterator[tuple[str, str, bool]]:
    """Picture, question and whether yes is true."""
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if content.lstrip().startswith("["):
        for number, row in enumerate(_json(path, content), start=1):
            yield _fields(row, f"{path}: question {number}")
        return
    for number, line in enumerate(content.split("\n"), start=1):
        if line.strip():
            yield _fields(_json(path, line, number), f"{path}: line {number}")


def _json(path: Path, text: str, line: int = 1) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise SettingsError(f"{path}: line {line + error.lineno - 1} is not JSON: {error.msg}") from error


def _fields(row: Any, where: str) -> tuple[str, str, bool]:
    wrong = [name for name in ("image", "text", "label") if not isinstance(row, dict) or type(row.get(name)) is not str]
    if wrong:
        raise SettingsError(f"{where}: expected image, text and label, as in POPE's files: {wrong[0]} is no text")
    label = row["label"].strip().lower()
    if label not in ("yes", "no"):
        raise SettingsError(f"{where}: label must be yes or no, got {row['label']!r}")
    return row["image"], row["text"], label == "yes"
