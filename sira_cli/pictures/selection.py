"""Which pictures a run is about: of paths, lists, files of groups or questions; prompts filled from their columns."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from sira_cli.errors import DataError, PictureError, SettingsError
from sira_cli.parsing import from_json
from sira_cli.pictures.checks import check_any_exists, check_any_readable
from sira_cli.pictures.find import Pictures, Shard, find_pictures, read_list
from sira_cli.pictures.names import is_uri, is_utf8, joined
from sira_cli.pictures.picture import Picture, group_of
from sira_cli.pictures.rows import IMAGE_COLUMNS, TableRow, brief, name_of, read_table, text_of, usual_column
from sira_cli.pictures.sources import STDIN, located

FEW = 8  # named files that are looked at before a model is loaded
SEVERAL = "images"  # the field of a row with pictures that are shown together
_NAME = re.compile(r"\{([A-Za-z_][\w.-]*)(?:\|([^{}]*))?\}")  # {name} or {name|default}
_LOOKED_AT = 20  # pictures of a data set, whose columns may differ
_IDS = ("question_id", "id")
_QUESTIONS = ("text", "question")


@dataclass(frozen=True)
class Selection:
    """The pictures of a run, as its caller names them; what has no comment is as for `find_pictures`."""

    paths: Sequence[str]  # with `questions`, the folder of their pictures, or nothing
    questions: Path | None = None  # a file of questions, as for `listed_pictures`
    files_from: str | None = None  # a file of further paths, `-` for stdin; the rows of a .jsonl are groups
    together: bool = False  # whether all pictures are shown at once, in one prompt
    recursive: bool = False
    exclude: Sequence[str] | None = None
    shard: Shard | None = None
    limit: int | None = None
    image_column: str | None = None

    def pictures(self, asking: Callable[[str], str] = str) -> Pictures:
        """Return the pictures, with the prompts that `asking` makes of questions; missing ones are found now."""
        self._check()
        if self.questions is not None:
            pictures = self._listed(self.questions, asking, self.paths[0] if self.paths else "")
        elif self._groups is not None:
            pictures = self._listed(self._groups, None, "")
        else:
            pictures = find_pictures(
                self.all_paths(),
                recursive=self.recursive,
                exclude=self.exclude or (),
                shard=self.shard,
                limit=self.limit,
                image_column=self.image_column,
                repeats=self.together,
            )
        check_any_exists(pictures)
        if self.files_from is None and len(pictures) <= FEW and not any(map(os.path.isdir, self.paths)):
            check_any_readable(pictures)
        if not self.together:
            return pictures
        for picture in pictures:
            source = picture.sources[0]
            if source.several:
                several = "is several pictures that are shown together already"
                raise SettingsError(f"{picture.label} {several}: leave out `together=`")
        return Pictures([group_of(pictures)], pictures.left_out)

    @property
    def _groups(self) -> Path | None:
        """The file of `files_from` if its rows are groups."""
        listed = self.files_from or ""
        return Path(listed) if listed.endswith(".jsonl") else None

    def _listed(self, file: Path, asking: Callable[[str], str] | None, folder: str) -> Pictures:
        pictures = listed_pictures(
            file, asking, folder=folder, shard=self.shard, limit=self.limit, image_column=self.image_column
        )
        return Pictures(pictures)

    def _check(self) -> None:
        """Refuse what does not go together, and a limit that lets nothing through."""
        if self.limit is not None and self.limit < 1:
            raise SettingsError(f"`limit=` {self.limit}: expected a whole number from 1 on")
        says_groups = "says itself which pictures are shown together"
        if self.questions:
            if self.together:
                raise SettingsError(f"`questions=` {says_groups}: leave out `together=`")
            if len(self.paths) > 1 or self.files_from:
                raise SettingsError("`questions=` names the pictures: give only their folder, or nothing")
        elif self._groups and (self.paths or self.together):
            raise SettingsError(f"`files_from=` {self.files_from} {says_groups}: give nothing else")
        if self.together and (self.shard is not None or self.limit is not None):
            choosing = "limit" if self.shard is None else "shard"
            shows = "chooses among pictures, but `together=` shows all of them at once"
            raise SettingsError(f"`{choosing}=` {shows}: leave it out")

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


def listed_pictures(
    file: Path,
    asking: Callable[[str], str] | None = None,
    *,
    folder: str = "",
    shard: Shard | None = None,
    limit: int | None = None,
    image_column: str | None = None,
) -> list[Picture]:
    """Return the pictures that the rows of a file name, each group once.

    A row that cannot be read is a picture with a fault, if there are others.

    Args:
        file: rows that are questions (`question_id, image, text`), or groups: `images`, or `image`.
        asking: returns the prompt of a question; None: the rows are groups.
        folder: the names start from it; empty: from the file's.
        shard: keep this part only.
        limit: keep at most this many.
        image_column: the column that names the pictures; None: one with a usual name.

    Raises:
        DataError: there are no rows, none can be read, or a question stands twice.
    """
    found: dict[str, Picture] = {}
    where = ""
    folder = folder.rstrip("/") or str(file.parent)
    usual = IMAGE_COLUMNS if image_column is None else (image_column,)
    columns = {name.lower() for name in (*_IDS, SEVERAL, *usual, *_QUESTIONS)}
    for row in read_table(file, columns):
        where = row.where
        try:
            picture = _picture_of(row, folder, usual, asking)
        except DataError as error:
            picture = _unreadable(row, file, str(error), is_question=asking is not None)
        if shard is not None and not shard.holds(picture.relative):
            continue
        if asking is not None and picture.id in found:
            raise DataError(f"{where}: the question {picture.id!r} stands twice: give each a `question_id` of its own")
        found.setdefault(picture.identity, picture)
        if len(found) == limit:
            break
    if not where:
        lacks = "names no pictures" if asking is None else "holds no questions"
        raise DataError(f"{file}: {lacks}")
    pictures = list(found.values())
    if pictures and all(picture.fault for picture in pictures):
        raise DataError(pictures[0].fault)
    return pictures


def _picture_of(row: TableRow, folder: str, usual: Sequence[str], asking: Callable[[str], str] | None) -> Picture:
    """Return the picture that a row names, with its question, or its group."""
    if row.fault:
        raise DataError(row.fault)
    where = row.where
    given = {name: value for name, value in row.values.items() if str(value or "").strip()}
    names = names_in(where, row.values)
    is_group = names is not None
    if names is None:
        expected = usual[:2] if asking else (SEVERAL, *usual[:2])
        names = [name_of(where, given, *_columns(given, usual, expected))]
    pictures = [_below(folder, name) for name in names]
    if asking is None:
        return group_of(pictures, row.values)
    question = text_of(where, given, *_columns(given, _QUESTIONS, _QUESTIONS))
    picture = group_of(pictures) if is_group else pictures[0]
    return picture.known(prompt=asking(question), id=_id(where, row.values) or f"{joined(names)}: {question}")


def _columns(row: Mapping[str, Any], usual: Sequence[str], expected: Sequence[str]) -> Sequence[str]:
    """Return the usual column that a row has; without one, those that a message expects."""
    column = usual_column(row, usual)
    return expected if column is None else (column,)


def _unreadable(row: TableRow, file: Path, fault: str, *, is_question: bool) -> Picture:
    """Return the picture that stands for a row which cannot be read."""
    picture = located(str(file.parent / row.place), row.place).known(fault=fault)
    return picture.known(prompt="", id=row.place) if is_question else picture.known(together=True)


def names_in(where: str, row: Mapping[str, Any], field: str = SEVERAL) -> list[str] | None:
    """Return the names in a field of a row: a list, or in a table of text a list as JSON; None without such a field."""
    value = row.get(field)
    if value is None or value == "":
        return None
    names = value
    if isinstance(value, str):
        try:
            names = from_json(value)
        except ValueError:
            names = None
    if isinstance(names, list) and names and all(map(_is_name, names)):
        return names
    raise DataError(f'{where}: {field} is {brief(value)}: expected a list of names, such as ["a.jpg", "b.jpg"]')


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value != "" and is_utf8(value)


def _below(folder: str, name: str) -> Picture:
    """Return the picture of a name that starts from a folder or a URI."""
    if is_uri(name):
        return located(name, name)
    path = f"{folder}/{name}" if is_uri(folder) else str(Path(folder, name))
    return located(path, name)


def _id(where: str, row: dict[str, Any]) -> str:
    """Return a question's id; in a table with empty cells, numbers may have become 1.0, 2.0 and NaN."""
    for name in _IDS:
        value = row.get(name)
        if isinstance(value, float) and value.is_integer():
            return str(int(value))
        if value in (None, "") or value != value:
            continue
        if isinstance(value, int | str):
            return str(value)
        raise DataError(f"{where}: {name} is {brief(value)}: expected a text or a whole number")
    return ""


def needs_columns(prompt: str, pictures: Sequence[Picture]) -> bool:
    """Return whether a prompt must be filled: it has `{names}`, and pictures have columns or files next to them."""
    names = set(_braces(prompt))
    if not names:
        return False
    rows = list(islice((picture for picture in pictures if picture.has_columns), _LOOKED_AT))
    if not rows:
        return any(names.intersection(_columns_of(picture) or ()) for picture in pictures)
    columns: dict[str, None] = {}
    all_read = True
    for picture in rows:
        values = _columns_of(picture)
        columns |= dict.fromkeys(values or ())
        all_read &= values is not None
    missing = sorted(names.difference(columns))
    if missing and (columns or all_read):
        has = f"only the columns {', '.join(columns)}" if columns else "no columns"
        raise SettingsError(f"the prompt holds {{{missing[0]}}}, but {rows[0].label} has {has}{_disorder(rows)}")
    return True


def filled(prompt: str, picture: Picture) -> str:
    """Replace the `{names}` of a prompt by a picture's columns, or if empty by their defaults."""
    names = _braces(prompt)
    values = picture.columns() if names else {}
    for name in names:
        if name not in values:
            known = ", ".join(values) or "none"
            but = f"but its columns are {known}{_disorder([picture])}"
            raise PictureError(f"{picture.label}: the prompt holds {{{name}}}, {but}")
    try:
        text = _NAME.sub(lambda found: _as_words(values[found[1]]) or found[2] or "", prompt)
        text.encode()
    except UnicodeError:
        raise PictureError(f"{picture.label}: the text for the prompt is not UTF-8") from None
    return text


def _disorder(pictures: Sequence[Picture]) -> str:
    """Return the first reason why columns of some pictures may not have been found, as the end of a message."""
    for picture in pictures:
        disorder = picture.sources[0].disorder()
        if disorder:
            return f": {disorder}"
    return ""


def _braces(prompt: str) -> list[str]:
    return list(dict.fromkeys(found[1] for found in _NAME.finditer(prompt)))


def _columns_of(picture: Picture) -> Mapping[str, Any] | None:
    try:
        return picture.columns()
    except PictureError:  # it will be the picture's own error
        return None


def _as_words(value: Any) -> str:
    if isinstance(value, list) and not any(isinstance(each, dict | list) for each in value):
        return ", ".join(map(_as_words, value))
    if isinstance(value, dict | list | bool):
        return json.dumps(value, ensure_ascii=False, default=str)
    if isinstance(value, bytes):
        return value.decode()
    return "" if value is None or value != value else str(value)
