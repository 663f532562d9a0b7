"""Existing captions, each with its picture: in text files, files of captions, data sets, and records of sira."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sira_cli.errors import DataError, PictureError, SettingsError
from sira_cli.files import text_in
from sira_cli.pictures.checks import check_any_exists
from sira_cli.pictures.datasets import is_data_file, recorded_sample
from sira_cli.pictures.find import Shard, find_pictures
from sira_cli.pictures.names import is_uri, joined, one_line
from sira_cli.pictures.neighbours import own_text
from sira_cli.pictures.opening import endings
from sira_cli.pictures.packed import endings_of, unread
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.records import is_failure, is_record, newest
from sira_cli.pictures.rows import (
    IMAGE_COLUMNS,
    TEXT_TABLES,
    TableRow,
    brief,
    name_of,
    read_table,
    some,
    text_of,
    usual_column,
)
from sira_cli.pictures.selection import SEVERAL, names_in
from sira_cli.pictures.sources import STDIN, located, recorded

# Usual names of the columns of captions; the first that a file has counts.
_TEXT_COLUMNS = ("text", "caption", "description", "answer")


@dataclass(frozen=True)
class _Caption:
    """What a row says about a picture."""

    picture: str  # its name
    text: str | None  # None: it has no caption
    failed: bool = False  # whether it is the record of a picture that failed
    record: str | None = None  # the name of the picture in a record of sira, which the row is
    fault: str = ""  # why the row cannot be read


@dataclass
class Captions:
    """Captions with their pictures, in order."""

    pictures: list[Picture] = field(default_factory=list)  # each with a caption
    without: int = 0  # pictures without a caption
    failed: int = 0  # records of failed pictures, without a caption
    files: list[Path] = field(default_factory=list)  # files of captions that were read
    unread: dict[str, int] = field(default_factory=dict)  # `Pictures.left_out`
    _numbers: Counter[str] = field(default_factory=Counter)

    def add(self, picture: Picture, text: str | None, fault: str = "") -> None:
        """Add a picture and its caption; only count it if it has none."""
        if text is None:
            self.without += 1
            return
        self._numbers[picture.identity] += 1
        self.pictures.append(picture.known(caption=text, number=self._numbers[picture.identity], fault=fault))


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
            picture, and data sets (.tar, .parquet, .arrow). A row that cannot be read is a picture with a fault.
        recursive, exclude, shard, limit: as for `find_pictures`.
        caption_extension: of these text files, and of the members of a shard.
        image_column, text_column: of files of captions and data sets; None: the first usual name.
        images: the folder that names in these files start from; None: the file's own.

    Raises:
        SettingsError: a path is of another kind, or no pictures were found.
        DataError: a file cannot be read, lacks a column, or no caption was found.
        PictureError: none of the paths exists.
    """
    places = [str(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    extension = caption_extension if caption_extension.startswith(".") else f".{caption_extension}"
    usual = (extension[1:], *_TEXT_COLUMNS) if text_column is None else (text_column,)
    found = Captions()
    files = [Path(place) for place in places if _is_caption_file(place)]
    if rest := [place for place in places if Path(place) not in files]:
        pictures = find_pictures(rest, recursive=recursive, exclude=exclude, shard=shard, image_column=image_column)
        for picture in pictures:
            try:
                found.add(picture, _caption_of(picture, extension, usual))
            except PictureError as error:  # its text file is no text
                found.add(picture, "", fault=str(error))
        found.unread = pictures.left_out
        if pictures and not found.pictures:
            metadata = (Path(rest[0], name) for name in ("metadata.jsonl", "metadata.csv"))  # of `ImageFolder`
            file = next((file for file in metadata if file.is_file()), None) if len(rest) == 1 else None
            if file is None:
                check_any_exists(pictures)
                raise DataError(_no_captions(rest[0], pictures, extension, usual))
            found, files = Captions(), [file, *files]
    for path in files:
        found.files.append(path)
        for caption in _rows(path, image_column, text_column):
            if caption.text is not None and limit is not None and len(found.pictures) >= limit:
                continue
            if shard is not None and not shard.holds(caption.picture):
                continue
            if caption.failed:
                found.failed += 1
            else:
                found.add(_picture_of(caption, images or path.parent), caption.text, caption.fault)
    if not found.pictures and (shard is None or found.without or found.failed):
        raise DataError(f"{one_line(places[0])}: holds no captions")
    found.pictures = found.pictures[:limit]
    hint = "; names in a file start from its folder, or from `images=`" if found.files else ""
    check_any_exists(found.pictures, hint)
    return found


def _is_caption_file(place: str) -> bool:
    """Return whether a path is a file of captions; refuse one that is neither that nor a picture."""
    if place == STDIN:
        raise SettingsError("'-' (stdin) has no caption: give a folder, or a file of captions")
    if endings_of(place)[0] in TEXT_TABLES:
        if not Path(place).is_file():
            raise DataError(f"{one_line(place)}: no such file of captions")
        return True
    if is_uri(place) or not Path(place).is_file() or is_data_file(place):
        return False
    if Path(place).suffix.lower() in endings():
        return False
    if why := unread(place):
        raise SettingsError(f"{one_line(place)}: {why}")
    neither = f"is neither a picture nor a file of captions ({', '.join(TEXT_TABLES)})"
    raise SettingsError(f"{one_line(place)}: {neither}: text files with captions are found by their pictures")


def _caption_of(picture: Picture, extension: str, usual: Sequence[str]) -> str | None:
    """Return the caption of a picture, in its data set or in the text file next to it; None without one."""
    if picture.has_columns:
        try:
            columns = picture.columns()
        except PictureError:
            return None
        name = usual_column(columns, usual)
        if name is None and (why := picture.sources[0].disorder()):
            raise PictureError(f"{picture.label}: no caption was found: {why}")
        return None if name is None or columns[name] is None else text_of(picture.label, dict(columns), name)
    try:
        picture.text_file(extension)  # refuses what is no file
        file = own_text(picture.location, extension)
        return text_in(file.read_bytes(), one_line(str(file))).strip()
    except (OSError, SettingsError):
        return None
    except DataError as error:
        raise PictureError(str(error)) from None


def _no_captions(place: str, pictures: Sequence[Picture], extension: str, usual: Sequence[str]) -> str:
    """Return the message for pictures without any caption."""
    sample = next((picture for picture in pictures if picture.has_columns), None)
    none = f"{one_line(place)}: none of {len(pictures)} pictures has a"
    if sample is None:
        return f"{none} {extension} file next to it: give `caption_extension=`, or a file of captions (.jsonl, .csv)"
    try:
        known = some(sample.columns()) or "none at all"
    except PictureError as error:
        return str(error)
    return f"{none} caption: looked for a column {', '.join(usual)} (`text_column=`), found {known}"


def _rows(path: Path, image_column: str | None, text_column: str | None) -> Iterator[_Caption]:
    """Yield the caption of each row; of sira's records, each picture's newest."""
    names: dict[str, None] = {}
    fault = ""
    for row in read_table(path):
        fault = fault or row.fault
        names |= dict.fromkeys(row.values)
    if not names:
        raise DataError(fault or f"{path}: holds no captions")
    image = _column(path, names, "image_column", image_column, IMAGE_COLUMNS)
    text = _column(path, names, "text_column", text_column, _TEXT_COLUMNS)
    captions = (_caption_in(row, image, text) for row in read_table(path))
    yield from newest(captions, lambda caption: caption.record)


def _caption_in(row: TableRow, image: str, text: str) -> _Caption:
    if row.fault:
        return _Caption(row.place, "", fault=row.fault)
    where, values, name = row.where, row.values, row.place
    try:
        listed = image == SEVERAL or isinstance(values.get(image), list)
        several = names_in(where, values, image) if listed else None
        name = joined(several) if several else name_of(where, values, image)
        if not name or "\0" in name:
            raise DataError(f"{where}: {image} is {brief(name)}: expected the name of a picture")
        record = str(values.get("id") or name) if is_record(values) else None
        failed = record is not None and is_failure(values)
        caption = None if failed or values.get(text) is None else text_of(where, values, text)
    except DataError as error:
        return _Caption(name or row.place, "", fault=str(error))
    return _Caption(name, caption, failed, record)


def _picture_of(caption: _Caption, folder: Path) -> Picture:
    """Return the picture of a caption whose name starts from a folder."""
    if caption.fault:
        return located(str(folder / caption.picture), caption.picture)
    return recorded_sample(str(folder / caption.picture)) or recorded(caption.picture, folder)


def _column(path: Path, names: Mapping[str, None], option: str, given: str | None, usual: Sequence[str]) -> str:
    if given is not None and given not in names:
        raise DataError(f"{path}: no column {given!r} (`{option}=`), but {some(names) or 'none at all'}")
    if name := given or usual_column(names, usual):
        return name
    expected = f"expected a column {', '.join(usual[:-1])} or {usual[-1]}, found {some(names) or 'none'}"
    raise DataError(f"{path}: {expected}: name yours with `{option}=`")
