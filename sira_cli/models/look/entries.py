"""Objects in texts that follow a schema: what the strings of their values name.

["dog", "oak tree"]                                     each tag is looked at
[{"name": "dog", "attributes": ["red", "with a cat"]}]  the cat is in an attribute, the dog in an object
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sira_cli.language.things import Thing
from sira_cli.models.answering.answer import Answer
from sira_cli.models.answering.texts import TextSettings
from sira_cli.models.look.second_look import PictureLook
from sira_cli.models.schemas.schema import Schema

TAG = 3  # words of a string that is no sentence
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"( ?:)?')  # the second group: it is a key


def looked(
    look: PictureLook, answer: Answer, schema: Schema, settings: dict[str, Any], text_settings: TextSettings
) -> Answer:
    """Return the final answer of a text that has followed a schema, with the objects that it names."""
    finished = text_settings.finished(answer)
    places = _tags(answer.data or [], len(text_settings.prefix)) if schema.as_tags else _values(finished.text)
    found: dict[str, Thing] = {}
    for place, string in places:
        for thing in _things(string, look, place):
            before = found.get(thing.name, replace(thing, spans=()))
            found[thing.name] = replace(before, spans=before.spans + thing.spans)
    return look.check(finished.text, list(found.values())).added_to(finished, settings)


def _things(string: str, look: PictureLook, place: int) -> list[Thing]:
    """Return the objects of a string at a place of a text; a short one is a noun, as if it had an article."""
    short = len(string.split()) <= TAG
    if look.finder.asks and not short:
        return []
    article = "a " if short and not look.finder.asks else ""
    moved = place - len(article)
    return [
        replace(thing, spans=tuple((start + moved, end + moved) for start, end in thing.spans))
        for thing in look.finder.alone(article + string)
    ]


def _tags(tags: list[str], place: int) -> Iterator[tuple[int, str]]:
    """Yield tags with commas between them, each with its place in the text."""
    for tag in tags:
        yield place, tag
        place += len(tag) + len(", ")


def _values(text: str) -> Iterator[tuple[int, str]]:
    """Yield the string values of a JSON text, each with its place; no keys."""
    for match in _STRING.finditer(text):
        if not match[2]:
            yield match.start(1), re.sub(r"\\.", "  ", match[1])
