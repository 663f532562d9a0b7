"""What `sira eval --list`, the commands and the documents say about a benchmark, and how its files are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from sira_cli.eval.base import Benchmark

Wording = Literal["official", "ours"]  # the benchmark's own words, or those of POPE's questions here


@dataclass(frozen=True)
class Asking:
    """How a benchmark is asked.

    Attributes:
        wording: `official`: in the words of its authors. `ours`: ending in `base.ONE_WORD`, as POPE here.
        limit: maximum number of pictures, or of groups of pictures, per file or subset.
    """

    wording: Wording = "official"
    limit: int | None = None


@dataclass(frozen=True)
class Card:
    """A benchmark before its files are read. Its texts are shown as they are, so they begin like sentences.

    Attributes:
        name: of the command `sira eval NAME`.
        title: the first line of its help, without a full stop.
        source: authors and year.
        figures: the figures' names.
        files: in the data folder, all of them needed.
        holds: the data folder's content in words; default: the files.
        pictures: the folder of the pictures, in the data folder; empty if the pictures are another data set's.
        size: of the download: files, and pictures.
        licence: of the files; "none stated" where the authors state none.
        url: where the files are.
        answers: fields of a row in a file of answers of other tools.
        read: makes the benchmark from the data folder; None: its command has options of its own.
        note: more lines of the help.
        command: the command line, if it is an option of another command.
        judged: a judge elsewhere has to read the answers.
        main: the groups that `sira eval all` shows, if the benchmark has them; empty: all.
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
    read: Callable[[Path, Asking], Benchmark] | None = None
    note: str = ""
    command: str = ""
    holds: str = ""
    judged: bool = False
    main: tuple[str, ...] = ()

    @property
    def help(self) -> str:
        """The short help of the command."""
        return f"{self.title}."

    @property
    def content(self) -> str:
        """The content of the data folder, in words."""
        return self.holds or " and ".join(self.files)

    def find(self, folder: Path) -> list[Path]:
        """Return the benchmark's files in a data folder.

        Raises:
            SettingsError: one is missing, or it is not a folder.
        """
        if not folder.is_dir():
            raise SettingsError(f"`data=` {folder}: is not a folder: expected the folder with {self.content}")
        paths = [folder / name for name in self.files]
        for path in paths:
            if not path.exists():
                raise SettingsError(f"`data=` {folder}: has no {path.name}: get {self.name}'s files from {self.url}")
        return paths
