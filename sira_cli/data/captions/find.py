"""Existing captions, each with its picture, from all supported places.

photos/             a text file next to each picture; without any, metadata.jsonl or metadata.csv
shard-000.tar       also .parquet and .arrow: a member or a column with the text
captions.jsonl      also .json, .csv and .tsv: a column that names the picture, and one with the text
records of sira     of `sira caption` and `sira ask`; failed records are left out
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sira_cli.data.captions.files import ENDINGS, CaptionFile, metadata_in
from sira_cli.data.captions.texts import no_captions, texts_of_pictures
from sira_cli.errors import DataError, PictureError, SettingsError
from sira_cli.pictures import stores
from sira_cli.pictures.datasets import is_data_file
from sira_cli.pictures.find import Shard, check_any_exists, find_pictures
from sira_cli.pictures.left_out import Pictures
from sira_cli.pictures.names import one_line
from sira_cli.pictures.opening import endings
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.sources import STDIN, recorded


@dataclass
class Captions:
    """Captions with their pictures, in order.

    Attributes:
        pictures: each with a caption.
        without: number of pictures without a caption.
        failed: number of records of failed pictures, without a caption.
        files: paths of the files of captions that were read.
        unread: numbers of pictures in unsupported formats, by ending (`Pictures.left_out`).
    """

    pictures: list[Picture] = field(default_factory=list)
    without: int = 0
    failed: int = 0
    files: list[Path] = field(default_factory=list)
    unread: dict[str, int] = field(default_factory=dict)
    _numbers: Counter[str] = field(default_factory=Counter)

    def add(self, picture: Picture, text: str | None) -> None:
        """Add a picture and its caption; only count it if it has none."""
        if text is None:
            self.without += 1
            return
        self._numbers[picture.identity] += 1
        self.pictures.append(replace(picture, caption=text, number=self._numbers[picture.identity]))


def find_captions(
    paths: str | Path | Iterable[str | Path],
    *,
    recursive: bool = False,
    exclude: Sequence[str] = (),
    caption_extension: str = ".txt",
    image_column: str | None = None,
    text_column: str | None = None,
    images: Path | None = None,
    shard: Shard | None = None,
    limit: int | None = None,
) -> Captions:
    """Return the captions that some paths name.

    Args:
        paths: files of captions (.jsonl, .json, .csv, .tsv), pictures, folders and globs with a text file next to each
            picture, and data sets (.tar, .parquet, .arrow).
        recursive: include subfolders.
        exclude: as for `find_pictures`.
        caption_extension: of these text files, and of the members of a shard.
        image_column, text_column: of files of captions and data sets; None: the first usual name (`files`).
        images: the folder that names in these files start from; None: the file's own.
        shard: keep this part only.
        limit: keep this many at most.

    Raises:
        SettingsError: a path is of another kind, or no pictures were found.
        DataError: a file cannot be read, lacks a column, or no caption was found.
        PictureError: none of the paths exists.
    """
    places = [str(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    extension = caption_extension if caption_extension.startswith(".") else f".{caption_extension}"
    found = Captions()
    tables, rest = _parted(places)
    if rest:
        pictures = find_pictures(rest, recursive=recursive, exclude=exclude, shard=shard, image_column=image_column)
        texts = texts_of_pictures(pictures, extension, text_column)
        if pictures and not texts:
            metadata = metadata_in(Path(rest[0])) if len(rest) == 1 else None
            if metadata is None:
                check_any_exists(pictures)
                raise DataError(no_captions(rest[0], pictures, extension, text_column))
            tables, pictures = [metadata, *tables], Pictures()
        found.unread = pictures.left_out
        for picture in pictures:
            found.add(picture, texts.get(picture.identity))
    for path in tables:
        file = CaptionFile.read(path, image_column, text_column)
        found.files.append(path)
        for row in file.rows:
            is_enough = limit is not None and len(found.pictures) >= limit
            if is_enough and shard is None and row.text is not None:
                continue
            picture = recorded(row.image, images or path.parent)
            if shard is not None and not shard.holds(picture.relative):
                continue
            if row.failed:
                found.failed += 1
            elif not is_enough or row.text is None:
                found.add(picture, row.text)
    if not found.pictures and (shard is None or found.without or found.failed):
        raise DataError(f"{one_line(places[0])}: holds no captions")
    if limit is not None:
        found.pictures = found.pictures[:limit]
    return found


def check_pictures(captions: Captions) -> None:
    """Check that not all pictures are missing, before a model is loaded."""
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
        if suffix in ENDINGS:
            if not Path(place).is_file():
                raise DataError(f"{one_line(place)}: no such file of captions")
            tables.append(Path(place))
        elif stores.is_uri(place) or not Path(place).is_file() or suffix in endings() or is_data_file(place):
            rest.append(place)
        else:
            raise SettingsError(
                f"{one_line(place)}: is neither a picture nor a file of captions ({', '.join(ENDINGS)}): "
                "text files with captions are found by their pictures"
            )
    return tables, rest
