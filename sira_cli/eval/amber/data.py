"""AMBER's own files, read and checked: annotations, words, queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sira_cli.errors import DataError, SettingsError
from sira_cli.eval.amber.words import Lexicon
from sira_cli.pictures.rows import brief, entries, id_of, read_json, read_rows, read_text, some, text_of

PartName = Literal["generative", "discriminative"]
FILES = ("annotations.json", "relation.json", "safe_words.txt", "query")
URL = "https://github.com/junyangwang0410/AMBER"


@dataclass(frozen=True)
class Annotated:
    """The ground truth of one query.

    Attributes:
        kind: its `type` in annotations.json, such as `generative` or `discriminative-attribute-state`.
        truth: words for objects in the picture; for a question only `yes` or `no`.
        hallu: words that models tend to hallucinate about the picture; empty for a question.
    """

    kind: str
    truth: tuple[str, ...]
    hallu: tuple[str, ...]

    @property
    def part(self) -> PartName:
        """Part of the query; every query but a caption is a question, as in the script."""
        return "generative" if self.kind == "generative" else "discriminative"


@dataclass(frozen=True)
class Query:
    """A row of a file of queries."""

    id: int
    image: str
    text: str


def find_data(folder: Path) -> Path:
    """Return AMBER's folder `data`, from it or from AMBER's repository."""
    if not folder.is_dir():
        raise SettingsError(f"{folder}: is not a folder: expected AMBER's, with {', '.join(FILES)}")
    data = folder / "data" if not (folder / FILES[0]).exists() and (folder / "data").is_dir() else folder
    for name in FILES:
        if not (data / name).exists():
            raise SettingsError(f"{data}: has no {name}: get AMBER's files from {URL}")
    return data


def read_lexicon(data: Path) -> Lexicon:
    """Read the words of relation.json and safe_words.txt."""
    path = data / "relation.json"
    relation = read_json(path)
    if not isinstance(relation, dict):
        raise DataError(f"{path}: expected a JSON object of words, each with a list of related words")
    for word, related in relation.items():
        if not _is_words(related):
            raise DataError(f"{path}: {some([word])}: expected a list of related words, got {brief(related)}")
    safe = frozenset(read_text(data / "safe_words.txt").split("\n"))
    return Lexicon({word: tuple(related) for word, related in relation.items()}, safe)


def read_annotations(data: Path, lexicon: Lexicon) -> dict[int, Annotated]:
    """Read annotations.json, by id."""
    path = data / "annotations.json"
    found = {}
    for number, (where, row) in enumerate(read_rows(path), start=1):
        # the script takes the annotation of id N from place N
        if id_of(where, row, "id") != number:
            raise DataError(f"{where}: expected id {number}, got {brief(row['id'])}: ids must be 1, 2, 3, ... in order")
        found[number] = _annotated(where, row, lexicon)
    return found


def read_numbers(path: Path) -> list[int]:
    """Read a list of ids of queries: one per line, or a JSON array."""
    found = [id_of(where, {"id": entry}, "id") for where, entry in entries(path)]
    if not found:
        raise DataError(f"{path}: holds no ids")
    return found


def read_queries(data: Path, part: PartName, annotations: Mapping[int, Annotated]) -> list[Query]:
    """Read the queries of a part from its own file, or from query_all.json if it has none.

    In AMBER's data the two differ: they ask different questions under id 13193.
    """
    own, everything = (data / "query" / f"query_{name}.json" for name in (part, "all"))
    path = own if own.exists() or not everything.exists() else everything
    queries, seen = [], set()
    for where, row in read_rows(path):
        query = Query(id_of(where, row, "id"), text_of(where, row, "image"), text_of(where, row, "query"))
        if query.id not in annotations:
            raise DataError(f"{where}: id {query.id} is not in {data / 'annotations.json'}")
        if query.id in seen:
            raise DataError(f"{where}: id {query.id} is there already: each query needs an id of its own")
        seen.add(query.id)
        if annotations[query.id].part == part:
            queries.append(query)
        elif path == own:
            raise DataError(f"{where}: id {query.id} is annotated as {annotations[query.id].kind}, expected {part}")
    if not queries:
        raise DataError(f"{path}: holds no queries of {part}")
    return queries


def _annotated(where: str, row: dict[str, Any], lexicon: Lexicon) -> Annotated:
    kind = text_of(where, row, "type")
    if kind != "generative":
        truth = text_of(where, row, "truth")
        if truth not in ("yes", "no"):
            raise DataError(f"{where}: truth must be yes or no, got {brief(truth)}")
        return Annotated(kind, (truth,), ())
    words = {}
    for name in ("truth", "hallu"):
        if not _is_words(row.get(name)):
            raise DataError(f"{where}: {name}: expected a list of words, got {brief(row.get(name))}")
        unknown = [word for word in row[name] if word not in lexicon.relation]
        if unknown:
            raise DataError(f"{where}: {name}: {brief(unknown[0])} is not in relation.json: the two files do not match")
        words[name] = tuple(row[name])
    return Annotated(kind, words["truth"], words["hallu"])


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)
