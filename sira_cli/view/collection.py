"""Where the pictures and their texts come from.

captions.jsonl      records of sira, or any lines of JSON with a picture and a text; also .json, .csv, .tsv
photos/             pictures with text files beside them; without any, metadata.jsonl, metadata.csv, or files of records
shard.tar, .parquet a data set with texts inside; a .parquet file of records
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from sira_cli.analysis.check.captions import METADATA
from sira_cli.analysis.check.files import ENDINGS, TEXT_COLUMNS
from sira_cli.errors import DataError, PictureError, SettingsError
from sira_cli.pictures.find import find_pictures, is_container
from sira_cli.pictures.names import as_text, one_line
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.sources import recorded
from sira_cli.view.items import Item
from sira_cli.view.rows import Line, is_table_of_records, read_lines

EDITS = ".edits.jsonl"
_NO_RECORDS = (EDITS, ".errors.jsonl")  # files in a folder that are no captions of their own


@dataclass(frozen=True)
class Collection:
    """Pictures with their texts.

    Attributes:
        source: the file or folder.
        items: in order.
        broken: how many lines could not be read.
    """

    source: Path
    items: list[Item] = field(default_factory=list)
    broken: int = 0

    @classmethod
    def read(
        cls,
        source: str | Path,
        *,
        recursive: bool = False,
        caption_extension: str = ".txt",
        image_column: str | None = None,
        text_column: str | None = None,
        images: Path | None = None,
    ) -> Collection:
        """Read captions; pictures are not opened.

        Args:
            source: a file of captions, a folder, or a data set (.tar, .parquet, .arrow).
            recursive: include subfolders.
            caption_extension: of text files beside pictures.
            image_column, text_column: of files of captions; None: the first usual name (`check.files`).
            images: the folder that names in these files start from; None: the file's own.

        Raises:
            DataError: nothing in it can be read.
            SettingsError: it is no such thing, or holds no pictures.
        """
        place = Path(source)
        extension = caption_extension if caption_extension.startswith(".") else f".{caption_extension}"
        if place.is_dir():
            found = _of_folder(place, recursive, extension)
            if found is not None:
                return found
            files = _files_in(place)
        elif is_table_of_records(place):
            files = [place]
        elif is_container(str(place)) and place.exists():
            return cls(place, [_of_data_set(picture) for picture in find_pictures([str(place)])])
        elif place.is_file() and place.suffix.lower() in ENDINGS:
            files = [place]
        else:
            raise SettingsError(
                f"{one_line(str(source))}: expected a folder of pictures, or a file of captions that is there "
                f"({', '.join(ENDINGS)}, .tar, .parquet)"
            )
        lines: list[Line] = []
        broken = 0
        for file in files:
            read, unreadable = read_lines(file, image_column, text_column)
            lines += read
            broken += unreadable
        if not lines:
            raise DataError(f"{place}: holds no captions that can be read ({broken:,} broken lines)")
        start = images or _folder_of(place)
        return cls(place, _inside_data_sets(_items(lines, start), start), broken)

    def __len__(self) -> int:
        return len(self.items)

    @property
    def folder(self) -> Path:
        """The folder that names start from."""
        return _folder_of(self.source)

    @property
    def edits_file(self) -> Path:
        """Where edits go, if nothing else is said: beside the file, or in the folder."""
        return self.folder / f"{'captions' if self.source.is_dir() else self.source.stem}{EDITS}"

    @cached_property
    def missing(self) -> frozenset[int]:
        """The numbers of the pictures that are not there."""
        return frozenset(number for number, item in enumerate(self.items) if item.picture.is_missing())


def _folder_of(place: Path) -> Path:
    return place if place.is_dir() else place.parent


def _of_folder(folder: Path, recursive: bool, extension: str) -> Collection | None:
    """Return the pictures of a folder with the texts beside them; None if no picture has one, but there are files."""
    try:
        pictures = find_pictures([str(folder)], recursive=recursive)
    except SettingsError:
        if _files_in(folder):
            return None
        raise
    if any(picture.has_columns for picture in pictures):
        return Collection(folder, [_of_data_set(picture) for picture in pictures])
    texts = [_text_beside(picture, extension) for picture in pictures]
    if all(text is None for text in texts) and _files_in(folder):
        return None
    return Collection(
        folder,
        [
            Item(as_text(picture.relative), as_text(picture.relative), picture, text or "")
            for picture, text in zip(pictures, texts, strict=True)
        ],
    )


def _files_in(folder: Path) -> list[Path]:
    """Return the metadata of a folder; without any, its files of records."""
    for name in METADATA:
        if (folder / name).is_file():
            return [folder / name]
    return sorted(file for file in folder.glob("*.jsonl") if not file.name.endswith(_NO_RECORDS))


def _text_beside(picture: Picture, extension: str) -> str | None:
    try:
        return picture.text_file(extension).read_bytes().decode("utf-8-sig", "backslashreplace").strip()
    except (OSError, SettingsError):
        return None


def _of_data_set(picture: Picture) -> Item:
    """Return a picture of a data set with the text that stands beside it there."""
    values: Mapping[str, Any] = {}
    try:
        names = [name for name in picture.column_names() if _names_text(name)]
        values = picture.columns(names) if names else {}
    except PictureError:
        pass  # it says so itself when it is opened
    text = next((values[name] for name in sorted(values, key=_text_order) if isinstance(values.get(name), str)), "")
    name = as_text(picture.relative)
    return Item(name, name, picture, text.strip())


def _names_text(name: str) -> bool:
    return name.lower() in TEXT_COLUMNS or name.lower().rpartition(".")[2] == "txt"


def _text_order(name: str) -> int:
    return TEXT_COLUMNS.index(name.lower()) if name.lower() in TEXT_COLUMNS else len(TEXT_COLUMNS)


def _items(lines: Iterable[Line], folder: Path) -> list[Item]:
    """Return the items of lines: of records about the same picture by the same method, the newest."""
    newest: dict[tuple[str, str, int], Line] = {}
    counted: Counter[str] = Counter()
    for line in lines:
        counted[line.name] += not line.own
        newest[line.name, line.method, 0 if line.own else counted[line.name]] = line
    methods: dict[str, set[str]] = defaultdict(set)
    for name, method, _ in newest:
        methods[name].add(method)
    items = []
    for (name, method, number), line in newest.items():
        mark = f"#{method}" if len(methods[name]) > 1 else f"#{number}" if number > 1 else ""
        picture = recorded(line.image, folder)
        columns = (line.text_column, line.image_column)
        items.append(Item(f"{name}{mark}", line.image, picture, line.text, line.values, line.raw, *columns))
    return items


def _inside_data_sets(items: list[Item], start: Path) -> list[Item]:
    """Return the items, those whose pictures are inside of shards and tables with them; names begin at a folder."""
    known: dict[Path, dict[str, Picture]] = {}
    found = []
    for item in items:
        container = _container_above(Path(item.picture.location)) if item.picture.is_missing() else None
        if container is not None:
            if container not in known:
                known[container] = {each.name_in(start.resolve()): each for each in find_pictures([str(container)])}
            item = replace(item, picture=known[container].get(item.name, item.picture))
        found.append(item)
    return found


def _container_above(path: Path) -> Path | None:
    return next((above for above in path.parents if is_container(above.name) and above.is_file()), None)
