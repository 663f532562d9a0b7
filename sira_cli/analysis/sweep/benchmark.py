"""Yes/no questions about pictures, in splits: POPE's files, or the bundled validation scenes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from sira_cli.demo.evaluate import Questions, held_out
from sira_cli.demo.figures import SPLITS
from sira_cli.demo.language import yes_no_question
from sira_cli.demo.scenes import VALIDATION_SEEDS, Scene, render
from sira_cli.eval.pope import read_questions, split_names
from sira_cli.models.records import hash_of
from sira_cli.pictures.opening import open_picture

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
    """POPE's question files, each a split that is named after the file.

    Args:
        paths: files of JSON lines or of a JSON array, with `image`, `text` and `label` (yes or no).
        folder: where the images are.
        limit: only the first so many questions of each file.
        suffix: after each question.

    Raises:
        SettingsError: a file cannot be read, or a line of it; or two have the same name.
    """
    splits = tuple(split_names(paths))
    found: dict[str, dict[tuple[str, bool], list[str]]] = {}  # by picture
    for path, split in zip(paths, splits, strict=True):
        for asked in read_questions(path)[:limit]:
            found.setdefault(asked.image, {}).setdefault((asked.text + suffix, asked.there), []).append(split)
    questions = (
        Asked(picture, text, there, tuple(belongs_to))
        for picture, about in found.items()
        for (text, there), belongs_to in about.items()
    )
    pictures = folder.resolve()
    return Benchmark(splits, tuple(questions), lambda name: open_picture(pictures / name).image, folder=str(pictures))
