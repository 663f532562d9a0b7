"""Which pictures a run is about: those that paths, lists and files of groups name, or questions about them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sira_cli.data.groups import listed_groups
from sira_cli.data.questions import question_pictures
from sira_cli.errors import SettingsError
from sira_cli.pictures.find import Shard, check_any_exists, find_pictures
from sira_cli.pictures.left_out import Pictures
from sira_cli.pictures.lists import read_list
from sira_cli.pictures.picture import Picture, group_of
from sira_cli.pictures.sources import STDIN


@dataclass(frozen=True)
class Selection:
    """The pictures of a run, as its caller names them.

    Attributes:
        paths: files, folders, globs and URIs; with `questions`, the folder of their pictures, or nothing.
        questions: a file of questions, as for `question_pictures`.
        files_from: a file of further paths, `-` for stdin; the rows of a .jsonl are groups, as for `listed_groups`.
        together: whether all pictures are shown at once, in one prompt.
        recursive, exclude, shard, limit, image_column, id_column: as for `find_pictures`.
    """

    paths: Sequence[str]
    questions: Path | None = None
    files_from: str | None = None
    together: bool = False
    recursive: bool = False
    exclude: Sequence[str] | None = None
    shard: Shard | None = None
    limit: int | None = None
    image_column: str | None = None
    id_column: str | None = None

    def pictures(self, asking: Callable[[str], str] = str) -> Pictures:
        """Return the pictures. Missing ones are found before a model is loaded."""
        if self.questions is not None or (self.files_from or "").endswith(".jsonl"):
            found = Pictures(self._listed(asking))
            check_any_exists(found)
            return found
        if self.together:
            for name, value in (("shard", self.shard), ("limit", self.limit)):
                if value is not None:
                    raise SettingsError(
                        f"`{name}=` chooses among pictures, but `together=` shows all of them at once: leave it out"
                    )
        named = find_pictures(
            self.all_paths(),
            recursive=self.recursive,
            exclude=self.exclude or (),
            image_column=self.image_column,
            id_column=self.id_column,
            repeats=self.together,
            **self._taken,
        )
        check_any_exists(named)
        if not self.together:
            return named
        if group := next((picture for picture in named if picture.sources[0].several), None):
            raise SettingsError(
                f"{group.shown} is several pictures that are shown together already: leave out `together=`"
            )
        return Pictures([group_of(named)], named.left_out)

    def all_paths(self) -> list[str]:
        """Return the paths, and those that `files_from` adds."""
        if self.files_from is None:
            return list(self.paths)
        if self.files_from == STDIN:
            if STDIN in self.paths:
                raise SettingsError("stdin cannot be both a picture (-) and a list of pictures (`files_from=` -)")
            listed = read_list(sys.stdin.buffer, "stdin")
        else:
            try:
                with Path(self.files_from).open("rb") as file:
                    listed = read_list(file, f"`files_from=` {self.files_from}")
            except OSError as error:
                raise SettingsError(f"`files_from=` {self.files_from}: cannot be read: {error.strerror}") from error
        if not self.paths and not listed:
            raise SettingsError(f"`files_from=` {self.files_from}: names no pictures")
        return [*self.paths, *listed]

    @property
    def _taken(self) -> dict[str, Any]:
        return {"shard": self.shard, "limit": self.limit}

    def _listed(self, asking: Callable[[str], str]) -> list[Picture]:
        """Return the rows of a file of questions or groups."""
        if self.questions is None:
            if self.paths or self.together:
                raise SettingsError(
                    f"`files_from=` {self.files_from} says itself which pictures are shown together: give nothing else"
                )
            return listed_groups(Path(str(self.files_from)), **self._taken)
        if self.together:
            raise SettingsError("`questions=` says itself which pictures are shown together: leave out `together=`")
        if len(self.paths) > 1 or self.files_from is not None:
            raise SettingsError("`questions=` names the pictures: give only their folder, or nothing")
        return question_pictures(self.questions, asking, images=next(iter(self.paths), None), **self._taken)
