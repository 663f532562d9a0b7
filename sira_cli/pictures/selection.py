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
from sira_cli.pictures.find import Pictures, Shard, check_any_exists, check_any_readable, find_pictures, read_list
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
        together, questions, listed = self.together, self.questions, self.files_from or ""
        groups = Path(listed) if listed.endswith(".jsonl") else None
        choosing = "shard" if self.shard is not None else "limit" if self.limit is not None else ""
        group, wrong = "says itself which pictures are shown together", ""
        if questions and together:
            wrong = f"`questions=` {group}: leave out `together=`"
        elif questions and (self.paths[1:] or listed):
            wrong = "`questions=` names the pictures: give only their folder, or nothing"
        elif groups and (self.paths or together):
            wrong = f"`files_from=` {listed} {group}: give nothing else"
        elif choosing and together:
            wrong = f"`{choosing}=` chooses among pictures, but `together=` shows all of them at once: leave it out"
        if wrong:
            raise SettingsError(wrong)
        part: dict[str, Any] = {"shard": self.shard, "limit": self.limit, "image_column": self.image_column}
        if questions is not None:
            pictures = Pictures(listed_pictures(questions, asking, folder="".join(self.paths), **part))
        elif groups is not None:
            pictures = Pictures(listed_pictures(groups, **part))
        else:
            part |= {"recursive": self.recursive, "exclude": self.exclude or ()}
            pictures = find_pictures(self.all_paths(), repeats=together, **part)
        check_any_exists(pictures)
        if self.files_from is None and len(pictures) <= FEW and not any(map(os.path.isdir, self.paths)):
            check_any_readable(pictures)
        if not together:
            return pictures
        if several := next((picture for picture in pictures if picture.sources[0].several), None):
            raise SettingsError(
                f"{several.label} is several pictures that are shown together already: leave out `together=`"
            )
        return Pictures([group_of(pictures)], pictures.left_out)

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
    """Return the pictures that the rows of a file name, below `folder` (default: the file's), each group once.

    Rows are questions (`question_id, image, text`), whose prompts `asking` returns, or groups: `images`, or `image`.
    One that cannot be read is a picture with a fault, if there are others.
    """
    found = dict[str, Picture]()
    where = ""
    folder = folder.rstrip("/") or str(file.parent)
    usual = IMAGE_COLUMNS if image_column is None else (image_column,)
    for row in read_table(file, {name.lower() for name in (*_IDS, SEVERAL, *usual, *_QUESTIONS)}):
        where = row.where
        try:
            picture = _listed(row, folder, usual, asking)
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
        raise DataError(f"{file}: {'names no pictures' if asking is None else 'holds no questions'}")
    if found and all(picture.fault for picture in found.values()):
        raise DataError(next(iter(found.values())).fault)
    return list(found.values())


def _listed(row: TableRow, folder: str, usual: Sequence[str], asking: Callable[[str], str] | None) -> Picture:
    """Return the picture that a row names, with its question, or its group."""
    if row.fault:
        raise DataError(row.fault)
    where, values = row.where, row.values
    given = {name: value for name, value in values.items() if str(value or "").strip()}
    several = names_in(where, values)
    if several is None:
        column = usual_column(given, usual)
        expected = usual[:2] if asking else (SEVERAL, *usual[:2])
        several = [name_of(where, given, *([column] if column else expected))]
        picture = _below(folder, several[0])
        if asking is None:
            picture = group_of([picture], values)
    else:
        picture = group_of([_below(folder, name) for name in several], values if asking is None else None)
    if asking is None:
        return picture
    column = usual_column(given, _QUESTIONS)
    question = text_of(where, given, *([column] if column else _QUESTIONS))
    return picture.known(prompt=asking(question), id=_id(where, values) or f"{joined(several)}: {question}")


def _unreadable(row: TableRow, file: Path, fault: str, *, is_question: bool) -> Picture:
    """Return the picture that stands for a row which cannot be read."""
    picture = located(str(file.parent / row.place), row.place).known(fault=fault)
    return picture.known(prompt="", id=row.place) if is_question else picture.known(together=True)


def names_in(where: str, row: Mapping[str, Any], field: str = SEVERAL) -> list[str] | None:
    """Return the names in a field of a row: a list, or in a table of text a list as JSON; None without such a field."""
    names = value = row.get(field)
    if value is None or value == "":
        return None
    if isinstance(value, str):
        try:
            names = from_json(value)
        except ValueError:
            names = None
    if isinstance(names, list) and names and all(isinstance(each, str) and each and is_utf8(each) for each in names):
        return names
    raise DataError(f'{where}: {field} is {brief(value)}: expected a list of names, such as ["a.jpg", "b.jpg"]')


def _below(folder: str, name: str) -> Picture:
    """Return the picture of a name that starts from a folder or a URI."""
    path = f"{folder}/{name}" if is_uri(folder) else str(Path(folder, name))
    return located(name if is_uri(name) else path, name)


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
    if not (names := set(_braces(prompt))):
        return False
    rows = list(islice((picture for picture in pictures if picture.has_columns), _LOOKED_AT))
    if not rows:
        return any(names.intersection(_columns_of(picture) or ()) for picture in pictures)
    columns = [_columns_of(picture) for picture in rows]
    known = list(dict.fromkeys(name for each in columns for name in each or ()))
    missing = sorted(names.difference(known))
    if missing and (known or None not in columns):
        has = f"{rows[0].label} has {'only the columns ' if known else 'no columns'}{', '.join(known)}"
        raise SettingsError(f"the prompt holds {{{missing[0]}}}, but {has}{_disorder(rows)}")
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
    found = next(filter(None, (picture.sources[0].disorder() for picture in pictures)), "")
    return f": {found}" if found else ""


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
