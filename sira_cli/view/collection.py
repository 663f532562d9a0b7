"""A collection of pictures and their texts.

captions.jsonl      records of sira, or any lines of JSON with a picture and a text; also .json, .csv, .tsv
photos/             pictures with text files next to them; else metadata.jsonl, metadata.csv, or files of records
shard.tar, .parquet a data set with texts inside; a .parquet file of records
"""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from sira_cli.data.captions.files import CaptionRow
from sira_cli.data.parts import recorded
from sira_cli.errors import DataError, SiraError
from sira_cli.pictures import stores
from sira_cli.pictures.find import find_pictures, is_container
from sira_cli.pictures.names import from_text
from sira_cli.pictures.picture import Picture
from sira_cli.view.index import Entry, Index, IndexRow
from sira_cli.view.items import CaptionItem
from sira_cli.view.places import EDITS, folder_of, reading_of
from sira_cli.view.reading import Reading

_AT_ONCE = 2000  # captions that are added to the index in one go
_ROWS = 500  # that are requested at once
_CONTAINERS = 8  # data sets whose names are kept in memory


class GoneError(SiraError):
    """A caption no longer exists."""


class Collection:
    """Pictures with their texts, which stay where they are: an index holds the fields for search and sort. Thread-safe.

    Attributes:
        source: the file or folder.
        index: of the captions, by number; a number is kept when a file is read again.
        version: incremented by each reading that found something.
    """

    def __init__(self, source: Path, reading: Reading, start: Path) -> None:
        """Make an empty collection; `catch_up` reads the captions.

        Args:
            source: the file or folder.
            reading: the reader of the source.
            start: the folder that picture names are relative to.
        """
        self.source, self.index, self.version = source, Index(), 0
        self._reading, self._start, self._broken = reading, start, 0
        self._methods: set[str] = set()
        self._one_at_a_time = threading.Lock()
        self._inside: dict[Path, dict[str, Picture]] = {}
        self._numbers: tuple[int, array[int]] = (-1, array("i"))
        self._looked = -1  # the last number whose picture was checked

    @classmethod
    def open(
        cls,
        source: str | Path,
        *,
        recursive: bool = False,
        caption_extension: str = ".txt",
        image_column: str | None = None,
        text_column: str | None = None,
        images: Path | None = None,
    ) -> Collection:
        """Return a collection for `catch_up` to read; arguments and errors are those of `read`."""
        place = Path(source)
        extension = caption_extension if caption_extension.startswith(".") else f".{caption_extension}"
        reading = reading_of(source, recursive, extension, image_column, text_column)
        return cls(place, reading, images or folder_of(place))

    @classmethod
    def read(cls, source: str | Path, **settings: Any) -> Collection:
        """Read captions; pictures are not opened.

        Args:
            source: a file of captions, a folder, or a data set (.tar, .parquet, .arrow).
            settings: `recursive`: include subfolders. `caption_extension`: of text files next to pictures (`.txt`).
                `image_column`, `text_column`: of files of captions; by default the first usual name.
                `images`: the folder that names in these files start from, if not the file's own.

        Raises:
            DataError: nothing in it can be read.
            SettingsError: the path is not a source of captions, or holds no pictures.
        """
        found = cls.open(source, **settings)
        found.catch_up()
        found.check_found()
        return found

    def catch_up(self) -> bool:
        """Read new captions on disk; return whether there were any. Edited texts must then be applied again.

        Raises:
            DataError, SettingsError: the source cannot be read; earlier captions are kept.
        """
        with self._one_at_a_time:
            if not self._reading.is_changed():
                return False
            try:
                self._read_new(self._reading.starts_over())
            except BaseException:
                self._reading.forget()
                raise
            return True

    def _read_new(self, restart: bool) -> None:
        entries = self._reading.read()
        for batch in iter(lambda: list(islice(entries, _AT_ONCE)), []):
            self._add(batch, restart)
            restart = False
        if restart:
            self._add([], restart)  # nothing is left

    def _add(self, batch: list[Entry | None], restart: bool) -> None:
        known = [entry for entry in batch if entry is not None]
        self.index.add(known, restart=restart)
        self._broken = len(batch) - len(known) + (0 if restart else self._broken)
        self._methods.update(entry.method for entry in known)
        self._looked = -1 if restart else self._looked
        self.version += 1

    def overlook(self) -> None:
        """Treat the state on disk as read, after a text file was written."""
        self._reading.overlook()

    def check_found(self) -> None:
        """Check that at least one caption was found.

        Raises:
            DataError: no captions.
        """
        if not len(self):
            raise DataError(f"{self.source}: holds no captions that can be read ({self.broken:,} broken lines)")

    @property
    def done(self) -> float:
        """Share of the file that was read, 0 to 1."""
        return self._reading.done

    @property
    def broken(self) -> int:
        """Number of lines that could not be read."""
        return self._broken + self._reading.torn

    def __len__(self) -> int:
        """Return the number of captions."""
        return self.index.figure("count(*)")

    @property
    def items(self) -> Sequence[CaptionItem]:
        """The captions in order, each read when it is looked at."""
        return _Items(self)

    def numbers(self) -> array[int]:
        """Return the numbers of all captions, in order."""
        version = self.version
        if self._numbers[0] != version:
            self._numbers = version, array("i", (packed >> 2 for packed in self.index.shown()))
        return self._numbers[1]

    def item(self, number: int) -> CaptionItem:
        """Return a caption.

        Raises:
            GoneError: this number no longer exists.
        """
        row = self.index.row(number)
        kept = None if row is None or row.gone else self._reading.again(row.file, row.start, row.size)
        name = "" if row is None else row.image
        if (
            row is None
            or kept is None
            or (isinstance(kept, CaptionRow) and (kept.name, kept.method) != (row.name, row.method))
        ):
            raise GoneError(f"{name}: is no longer in {self.source.name}: nothing was changed")
        if isinstance(kept, CaptionItem):
            return replace(kept, id=f"{kept.id}#{row.nth}") if row.nth > 1 else kept
        columns = (kept.text_column, kept.image_column)
        picture = self._picture(kept.image)
        return CaptionItem(self._id(row), kept.image, picture, kept.text or "", kept.values, kept.raw, *columns)

    def lines(self) -> Iterator[tuple[int, str, bytes | None]]:
        """Yield number, id, and the line of JSON of all captions in order; None for captions without such a line."""
        numbers = self.numbers()
        for first in range(0, len(numbers), _ROWS):
            for row in self.index.rows(numbers[first : first + _ROWS]):
                yield row.number, self._id(row), self._reading.raw(row.file, row.start, row.size)

    def find(self, name: str) -> int | None:
        """Return the number of the caption with an id."""
        rows = [*self.index.rows_of(name), *self.index.rows_of(name.rpartition("#")[0])]
        return next((row.number for row in rows if self._id(row) == name), None)

    def _id(self, row: IndexRow) -> str:
        same = self.index.rows_of(row.name) if len(self._methods) > 1 else []
        if len({each.method for each in same}) > 1:
            return f"{row.name}#{row.method}"
        return f"{row.name}#{row.nth}" if row.nth > 1 else row.name

    @property
    def methods(self) -> int:
        """Number of methods that wrote the captions."""
        return len(self._methods)

    @property
    def folder(self) -> Path:
        """The folder that names are relative to."""
        return folder_of(self.source)

    @property
    def edits_file(self) -> Path:
        """The default file of edits: next to the file, or in the folder."""
        return self.folder / f"{'captions' if self.source.is_dir() else self.source.stem}{EDITS}"

    @property
    def missing(self) -> frozenset[int]:
        """The numbers of missing pictures; all are checked."""
        self._looked = -1
        self.look_for_pictures()
        return frozenset(number for (number,) in self.index.ask("SELECT number FROM items WHERE missing AND NOT gone"))

    def look_for_pictures(self, go_on: Callable[[], bool] = lambda: True) -> bool:
        """Note in the index the missing pictures of new captions; return whether the index changed.

        Args:
            go_on: returns whether to continue; called often.
        """
        news = False
        while go_on() and (rows := self.index.columns("image, missing", self._looked, _AT_ONCE)):
            found = [(self._is_missing(number, image), number, missing) for number, image, missing in rows]
            changed = [(now, number) for now, number, before in found if now != bool(before)]
            self.index.change("missing", changed)
            news, self._looked = news or bool(changed), rows[-1][0]
        return news

    def _is_missing(self, number: int, image: str) -> bool:
        if stores.is_uri(image) or os.path.lexists(f"{self._start}/{from_text(image)}"):
            return False
        try:
            return self.item(number).picture.is_missing()
        except GoneError:
            return True

    def _picture(self, image: str) -> Picture:
        """Return the picture that a line names; names of pictures in a data set are relative to its folder."""
        picture = recorded(image, self._start)
        container = _container_above(Path(picture.location)) if picture.is_missing() else None
        if container is None:
            return picture
        known = self._inside.get(container)
        if known is None:
            known = {each.name_in(self._start.resolve()): each for each in find_pictures([str(container)])}
            self._inside = {**dict(islice(reversed(self._inside.items()), _CONTAINERS - 1)), container: known}
        return known.get(image, picture)

    def identities(self) -> Iterator[Callable[[], Iterator[tuple[int, int]]]]:
        """Yield ways to identify pictures: by name, path, content; each yields hashes (0: none) and numbers."""
        yield lambda: ((hash(image), number) for number, image in self.hashes("image"))
        yield lambda: ((hash(self._picture(image).address), number) for number, image in self.hashes("image"))
        yield lambda: ((content, number) for number, content in self.hashes("content"))

    def hashes(self, column: str) -> Iterator[tuple[int, Any]]:
        """Yield all numbers, each with a column of the index."""
        after = -1
        while rows := self.index.columns(column, after, _AT_ONCE):
            yield from rows
            after = rows[-1][0]


class _Items(Sequence[CaptionItem]):
    def __init__(self, captions: Collection) -> None:
        self._captions, self._numbers = captions, captions.numbers()

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self._captions.item(number) for number in self._numbers[place]]
        return self._captions.item(self._numbers[place])


def _container_above(path: Path) -> Path | None:
    return next((above for above in path.parents if is_container(above.name) and above.is_file()), None)
