"""Existing captions, each with its picture, from all supported places.

photos/             a text file next to each picture; without any, metadata.jsonl or metadata.csv; without these,
                    the pictures' XMP and IPTC
shard-000.tar       also .parquet and .arrow: a member or a column with the text
captions.jsonl      also .json, .csv and .tsv: a column that names the picture, and one with the text
records of sira     of `sira caption` and `sira ask`, also as .parquet; failed records are left out
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sira_cli.data.captions.captioned import CaptionedPicture
from sira_cli.data.captions.files import ENDINGS, CaptionFile, CaptionRow, metadata_in
from sira_cli.data.captions.sidecars import Sidecars
from sira_cli.data.captions.texts import METADATA, is_prose, no_captions, texts_of_pictures
from sira_cli.data.parts import recorded
from sira_cli.data.wrapped import refused_picture
from sira_cli.errors import DataError, PictureError, SettingsError
from sira_cli.pictures import stores
from sira_cli.pictures.containers import ContainedPicture
from sira_cli.pictures.find import Shard, check_any_exists, find_pictures, is_container
from sira_cli.pictures.left_out import Pictures
from sira_cli.pictures.names import one_line
from sira_cli.pictures.opening import endings
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.single import STDIN
from sira_cli.pictures.tables import is_table_of_records


@dataclass
class Captions:
    """Captions with their pictures, in order.

    Attributes:
        pictures: each with a caption.
        without: number of pictures without a caption.
        failed: number of records of failed pictures, without a caption.
        files: the files of captions that were read.
        unread: numbers of pictures and clips in unsupported formats, by ending (`Pictures.left_out`).
        left_out: number of rows that `shard` and `limit` exclude, also from the output of `write`.
    """

    pictures: list[CaptionedPicture] = field(default_factory=list)
    without: int = 0
    failed: int = 0
    files: list[CaptionFile] = field(default_factory=list)
    unread: dict[str, int] = field(default_factory=dict)
    left_out: int = 0
    _rows: list[tuple[CaptionRow, CaptionedPicture | None]] = field(default_factory=list)
    _numbers: Counter[str] = field(default_factory=Counter)
    _extension: str = ".txt"

    def add(
        self, picture: Picture, text: str | None, values: Mapping[str, Any], source: str = ""
    ) -> CaptionedPicture | None:
        """Add a picture and its caption, with the values of its row; only count it if it has none."""
        if text is None:
            self.without += 1
            return None
        self._numbers[picture.identity] += 1
        number, prose = self._numbers[picture.identity], is_prose(text, values)
        self.pictures.append(CaptionedPicture.of(picture, text, number, is_prose=prose, source=source))
        return self.pictures[-1]

    @property
    def rows(self) -> int:
        """Number of rows that `write` makes from a file of captions."""
        return len(self._rows)

    def check_target(self, target: Path) -> None:
        """Check that changed captions can be written to a target, before a model is loaded.

        Args:
            target: of `write`.

        Raises:
            SettingsError: they cannot be written, or would replace the originals.
        """
        if self.pictures and not any(picture.is_prose for picture in self.pictures):
            raise SettingsError(
                f"`fixed=` {target}: the captions are JSON or tags, not sentences: caption the pictures again "
                "with a second look that rewrites, which drops entries"
            )
        if not self.files:
            if target.is_file():
                raise SettingsError(f"`fixed=` {target}: is a file; captions in text files need a folder")
            Sidecars(self.pictures, extension=self._extension, output_dir=target)
            for picture in self.pictures:
                if isinstance(picture.picture, ContainedPicture):
                    continue
                if _same(target / picture.mirrored(self._extension), picture.text_file(self._extension)):
                    raise SettingsError(f"`fixed=` {target}: original captions would be replaced: give another folder")
            return
        if len(self.files) > 1 or sum(picture is not None for _, picture in self._rows) < len(self.pictures):
            raise SettingsError("`fixed=` takes captions from one place: a file of captions, or pictures with texts")
        source = self.files[0].path
        if _same(target, source):
            raise SettingsError(f"`fixed=` {target}: is the file of captions itself: give another")
        suffix = self.files[0].suffix
        if target.suffix.lower() != suffix.lower() or target.is_dir():
            as_before = f", as {source} does" * (suffix == source.suffix)
            raise SettingsError(f"`fixed=` {target}: expected a file that ends in {suffix}{as_before}")
        if not target.parent.is_dir():
            raise SettingsError(f"`fixed=` {target}: the folder {target.parent} does not exist: make it first")

    def foreign(
        self, target: Path, wrote: Callable[[Path], bool], fixed: Callable[[Picture], str | None]
    ) -> Path | None:
        """Return an existing file that `write` would replace and no earlier run wrote in this form; None without one.

        Args:
            target: of `write`.
            wrote: whether an earlier run wrote a file.
            fixed: the caption of a picture that an earlier run wrote; None: none.
        """
        if self.files:
            return target if target.exists() and not wrote(target) else None
        places = Sidecars(self.pictures, extension=self._extension, output_dir=target)
        there = ((places.place(picture), picture) for picture in self.pictures if places.keeps(picture))
        return next((file for file, each in there if not _holds(file, fixed(each))), None)

    def write(self, target: Path, texts: Mapping[str, str]) -> None:
        """Write captions in their original form, with other texts; the originals stay as they are.

        Existing files are replaced: see `foreign`.

        Args:
            target: a file like that of the captions, or a folder for text files.
            texts: new texts by `identity` of the picture; others stay.

        Raises:
            SettingsError: they cannot be written there.
            SiraError: the system refuses the write.
        """
        self.check_target(target)
        if self.files:
            rows = [(row, None if picture is None else texts.get(picture.identity)) for row, picture in self._rows]
            self.files[0].write(target, rows)
            return
        places = Sidecars(self.pictures, extension=self._extension, output_dir=target, overwrite=True)
        for picture in self.pictures:
            places.write(picture, texts.get(picture.identity, picture.text))


def find_captions(
    paths: str | Path | Iterable[str | Path],
    *,
    recursive: bool = False,
    caption_extension: str = ".txt",
    image_column: str | None = None,
    text_column: str | None = None,
    images: Path | None = None,
    shard: Shard | None = None,
    limit: int | None = None,
    allow_private: bool = False,
) -> Captions:
    """Return the captions that some paths name.

    Args:
        paths: files of captions (.jsonl, .json, .csv, .tsv), pictures, folders and globs with a text file next to each
            picture, and data sets (.tar, .parquet, .arrow).
        recursive: include subfolders.
        caption_extension: of these text files, and of the members of a shard.
        image_column, text_column: of files of captions and data sets; None: the first usual name (`files`).
        images: the folder that names in these files start from; None: the file's own.
        shard: keep this part only.
        limit: keep this many at most.
        allow_private: whether URLs may lead to addresses that are not public.

    Raises:
        SettingsError: a path is of another kind, or no pictures were found.
        DataError: a file cannot be read, lacks a column, or no caption was found.
        PictureError: none of the paths exists.
    """
    places = [str(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    found = Captions(_extension=caption_extension if caption_extension.startswith(".") else f".{caption_extension}")
    tables, rest = _parted(places)
    if rest:
        pictures = find_pictures(
            rest, recursive=recursive, shard=shard, image_column=image_column, allow_private=allow_private
        )
        texts = texts_of_pictures(pictures, found._extension, text_column)
        if pictures and not texts:
            metadata = metadata_in(Path(rest[0])) if len(rest) == 1 else None
            if metadata is not None:
                tables, pictures = [metadata, *tables], Pictures()
            elif not (texts := texts_of_pictures(pictures, METADATA, text_column)):
                check_any_exists(pictures)
                raise DataError(no_captions(rest[0], pictures, found._extension, text_column))
        found.unread = pictures.left_out
        for picture in pictures:
            text, source, error = texts.get(picture.identity, (None, "", ""))
            found.add(refused_picture(picture, error) if error else picture, text, {}, source)
    for path in tables:
        file = CaptionFile.read(path, image_column, text_column)
        found.files.append(file)
        for row in file.rows:
            found.left_out += 1
            is_enough = limit is not None and len(found.pictures) >= limit
            if is_enough and shard is None and row.text is not None:
                continue
            picture = recorded(row.image, images or path.parent, allow_private=allow_private)
            if shard is not None and not shard.holds(picture.relative):
                continue
            if row.failed:
                found.failed += 1
            elif is_enough and row.text is not None:
                continue
            found._rows.append((row, None if row.failed else found.add(picture, row.text, row.values)))
    if not found.pictures and (shard is None or found.without or found.failed):
        raise DataError(f"{one_line(places[0])}: holds no captions")
    if limit is not None and len(found.pictures) > limit:
        found.pictures = found.pictures[:limit]
        kept = {picture.identity for picture in found.pictures}
        found._rows = [(row, picture) for row, picture in found._rows if picture is None or picture.identity in kept]
    found.left_out -= len(found._rows)
    return found


def check_pictures(captions: Captions) -> None:
    """Check that not all pictures are missing, before a model is loaded.

    Raises:
        PictureError: they are.
    """
    if captions.pictures and all(picture.is_missing() for picture in captions.pictures):
        many = len(captions.pictures)
        others = f", nor any of the other {many - 1}" * (many > 1)
        where = "; names in a file start from its folder, or from `images=`" * bool(captions.files)
        raise PictureError(f"{captions.pictures[0].shown}: no such file{others}{where}")


def _parted(places: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Return the files of captions among some paths, and the other paths."""
    tables, rest = [], []
    for place in places:
        suffix = Path(place).suffix.lower()
        if place == STDIN:
            raise SettingsError("'-' (stdin) has no caption: give a folder, or a file of captions")
        if not stores.is_uri(place) and is_table_of_records(Path(place)):
            tables.append(Path(place))
        elif stores.is_uri(place) or not Path(place).is_file() or suffix in endings() or is_container(place):
            if suffix in ENDINGS:
                raise DataError(f"{one_line(place)}: no such file of captions")
            rest.append(place)
        elif suffix in ENDINGS:
            tables.append(Path(place))
        else:
            raise SettingsError(
                f"{one_line(place)}: is neither a picture nor a file of captions ({', '.join(ENDINGS)}): "
                "text files with captions are found by their pictures"
            )
    return tables, rest


def _holds(file: Path, text: str | None) -> bool:
    """Return whether a text file can be read and holds a text."""
    try:
        return text is not None and file.read_bytes().strip() == text.strip().encode()
    except OSError:
        return False


def _same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
