"""Captions shared by many pictures: a sign that a model cannot see them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

MANY = 10  # pictures
WARNING = f"has the text of {MANY} pictures or more"


class Said(NamedTuple):
    """The fields of a record that stay in memory: hashes of caption and picture, and whether it is marked.

    Attributes:
        text: of a caption; None for answers, which many pictures may share.
    """

    text: int | None
    image: int
    marked: bool

    @classmethod
    def of(cls, schema: str, status: str, text: bytes, image: bytes, warnings: bytes) -> Said:
        """Make it from the written fields of a record."""
        is_caption = status == "ok" and "sira.caption/" in schema
        return cls(hash(text) if is_caption else None, hash(image), WARNING.encode() in warnings)

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Said:
        """Make it from a record."""
        text, warnings = (json.dumps(record.get(name), ensure_ascii=False).encode() for name in ("text", "warnings"))
        image = f', "image_sha256": "{record.get("image_sha256")}"'.encode()
        return cls.of(record["schema"], record["status"], text, image, warnings)


def wrongly_marked(said: Callable[[], Iterable[tuple[str, Said]]]) -> set[str]:
    """Return the names of records whose warning has to be added or removed.

    Args:
        said: returns all records with their names; called several times, so that they need not stay in memory.
    """
    counts = Counter(each.text for _, each in said() if each.text is not None)
    many = {text for text, count in counts.items() if count >= MANY}
    del counts
    pictures: dict[int, set[int]] = {text: set() for text in many}  # copies of a picture count once
    for _, each in said():
        if each.text in many:
            pictures[each.text].add(each.image)
    many = {text for text, images in pictures.items() if len(images) >= MANY}
    return {name for name, each in said() if (each.text in many) != each.marked}


def marked(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with the warning if it had none, else without it."""
    before = record.pop("warnings", [])
    after = [warning for warning in before if warning != WARNING] if WARNING in before else [*before, WARNING]
    return record | ({"warnings": after} if after else {})
