"""Facts about a benchmark, as `sira eval --list` and the documents show them, and the function that reads its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from sira_cli.errors import SettingsError
from sira_cli.eval.options import Option

if TYPE_CHECKING:
    from sira_cli.eval.answers.read import AnswerFiles
    from sira_cli.eval.base import Benchmark

Wording = Literal["official", "ours"]  # the benchmark's own words, or those of POPE's questions here
WORDING = Option(
    "wording", "the benchmark's own words, or those of POPE's questions here", ("official", "ours"), "official"
)


@dataclass(frozen=True)
class Asking:
    """How a benchmark is asked.

    Attributes:
        wording: `official`: in the words of its authors. `ours`: ending in `base.ONE_WORD`, as POPE here.
        limit: maximum number of pictures, or of groups of pictures, per file or subset.
        options: the benchmark's other options, by name.
        sources: files of answers to score; empty if a model is asked.
        max_new_tokens: length limit of a run's texts in tokens, if given.
    """

    wording: Wording = "official"
    limit: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    sources: Sequence[AnswerFiles] = ()
    max_new_tokens: int | None = None


@dataclass(frozen=True)
class Card:
    """A benchmark before its files are read. Its texts are shown as they are, so they begin like sentences.

    Attributes:
        name: as in `sira eval NAME`.
        title: one line, without a full stop.
        source: authors and year.
        figures: the figures' names.
        files: in the data folder, all of them needed.
        holds: the data folder's content in words; default: the files.
        pictures: folder of the pictures inside the data folder; empty if they belong to another data set.
        size: of the download: files, and pictures.
        licence: of the files; "none stated" where the authors state none.
        url: where the files are.
        answers: fields of a row in a file of answers of other tools.
        read: makes the benchmark from the data folder, or from the list of files (`several`); None: it is part of
            another one.
        several: its data are files, such as one per split, instead of a folder.
        options: settings that not all benchmarks have.
        folder: the data folder in a folder of benchmarks; default: the name.
        note: further remarks.
        command: the command line, if it is an option of another benchmark.
        judged: whether an external judge has to read the answers.
        main: the groups that `sira eval all` shows; empty: all.
    """

    name: str
    title: str
    source: str
    figures: str
    files: tuple[str, ...]
    size: str
    licence: str
    url: str
    answers: str = ""
    pictures: str = ""
    read: Callable[[Any, Asking], Benchmark] | None = None
    several: bool = False
    options: tuple[Option, ...] = ()
    folder: str = ""
    note: str = ""
    command: str = ""
    holds: str = ""
    judged: bool = False
    main: tuple[str, ...] = ()

    @property
    def content(self) -> str:
        """The content of the data folder, in words."""
        return self.holds or " and ".join(self.files)

    def files_in(self, paths: Sequence[Path]) -> list[Path]:
        """Return the data of a benchmark with several files: a folder stands for its .json files.

        Raises:
            SettingsError: the folder has no such files, or a benchmark with one folder is given none or several.
        """
        if not self.several:
            if len(paths) != 1:
                raise SettingsError(f"{self.name}: expected one PATH, the folder with {self.content}, got {len(paths)}")
            return list(paths)
        files = []
        for path in paths:
            inside = sorted(path.glob("*.json")) if path.is_dir() else [path]
            if not inside:
                raise SettingsError(f"{path}: holds no .json file: expected {self.content}")
            files += inside
        if not files:
            raise SettingsError(f"{self.name}: PATH is missing: give {self.content}")
        return files

    def open(self, paths: Sequence[Path], asking: Asking | None = None) -> Benchmark:
        """Read the benchmark's files.

        Args:
            paths: from `files_in`.
            asking: how it is asked; `options` are checked (`catalog.options_of_each`).

        Raises:
            SettingsError: an option does not fit, or a file is missing.
            DataError: a file cannot be read.
        """
        assert self.read is not None
        asking = asking or Asking()
        if "wording" in asking.options:
            asking = replace(asking, wording=cast("Wording", asking.options["wording"]))
        return self.read(paths if self.several else paths[0], asking)

    def find(self, folder: Path) -> list[Path]:
        """Return the benchmark's files in a data folder.

        Raises:
            SettingsError: a file is missing, or the path is not a folder.
        """
        if not folder.is_dir():
            raise SettingsError(f"{folder}: is not a folder: expected the folder with {self.content}")
        paths = [folder / name for name in self.files]
        for path in paths:
            if not path.exists():
                raise SettingsError(f"{folder}: has no {path.name}: get {self.name}'s files from {self.url}")
        return paths
