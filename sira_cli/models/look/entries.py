"""Values of texts that follow a schema: what their strings name, and lists without unsupported entries.

    ["dog", "oak tree"]                                     each tag is looked at
    [{"name": "dog", "attributes": ["red", "with a cat"]}]  the cat is in an attribute, the dog in an object

The innermost entry of a list that names something is dropped, and nothing is decoded again. Sorted by support, a list
begins with the best supported entries; those that name no known thing follow, then the unsupported ones. Looked at
first (`guided`), lists also have the supported entries of other answers about the picture.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from sira_cli.data.records.record import Answer
from sira_cli.language.things import Thing
from sira_cli.models.answering.texts import TextSettings
from sira_cli.models.look.claims import Check, Claim, removed_of, threshold_of
from sira_cli.models.look.second_look import PictureLook
from sira_cli.models.schemas.schema import Schema

TAG = 3  # words of a string that is no sentence
NOTHING_LEFT = "every entry names something that is not supported: nothing is left of it"
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"( ?:)?')  # the second group: it is a key


def looked(
    look: PictureLook, answer: Answer, schema: Schema, settings: dict[str, Any], text_settings: TextSettings
) -> Answer:
    """Return the final answer of a text that has followed a schema, with its claims.

    Args:
        look: the second look at the answer's picture.
        answer: the answer before text settings change it.
        schema: the schema that the text follows.
        settings: from `Verify.settings`; if it rewrites, entries of lists with unsupported claims are dropped; if it
            sorts, lists are sorted by support.
        text_settings: the preset's.
    """
    first, found = _checked(look, answer, schema, text_settings)
    doubted = _doubted(found, settings)
    if "sort" in settings and answer.data is not None:
        ranks = {claim.key: (2 if claim.key in doubted else 0, -claim.support) for claim in found.all}
        answer = _valued(answer, schema, _ranked(answer.data, look, ranks))
        first, found = _checked(look, answer, schema, text_settings)
    if settings["mode"] == "rewrite" and (data := _without(answer.data, look, doubted)) != answer.data:
        draft, (first, found) = first.text, _checked(look, _valued(answer, schema, data), schema, text_settings)
        left = {claim.key for claim in found.all}
        removed = [claim.removed() for key, claim in doubted.items() if key not in left]
        first = _warned(replace(first, draft=draft, removed=removed), data, schema, text_settings)
    return found.added_to(first, settings)


def guided(
    look: PictureLook,
    answers: Sequence[Answer],
    schema: Schema,
    settings: dict[str, Any],
    text_settings: TextSettings,
) -> Answer:
    """Return the final answer of several that have followed a schema: its lists have what is supported in any of them.

    Args:
        look, schema, settings, text_settings: as for `looked`.
        answers: about the same picture; the first one is the method's own.
    """
    named: dict[str, Thing] = {}
    for answer in answers:
        if answer.data is not None:
            named |= _found(look, answer, text_settings.finished(answer).text, schema, text_settings)
    found = look.check("", list(named.values()))  # asks about all in one pass
    draft, own = _checked(look, answers[0], schema, text_settings)
    if answers[0].data is None:
        return own.added_to(draft, settings)
    constraints, doubted = json.loads(schema.content), _doubted(found, settings)
    ranks = {claim.key: (0, -claim.support) for claim in found.all}
    # An entry with an unsupported claim goes first: it would stand for the others with its supported ones.
    values = [_without(answer.data, look, doubted) for answer in answers if answer.data is not None]
    merged = functools.reduce(lambda value, other: _merged(value, other, look, constraints), values)
    data = _cut(_ranked(merged, look, ranks), constraints)
    first, last = _checked(look, _valued(answers[0], schema, data), schema, text_settings)
    if data != answers[0].data:
        first = _warned(first, data, schema, text_settings)
    drafted, left = {claim.key for claim in own.all}, {claim.key: claim for claim in last.all}
    first = replace(
        last.added_to(first, settings),
        candidates=removed_of(found.all),
        added=sorted({claim.thing for key, claim in left.items() if key not in drafted}),
        forbidden=sorted({claim.thing for claim in doubted.values()}),
    )
    if first.text == draft.text:
        return first
    removed = [claim.removed() for key, claim in doubted.items() if key in drafted and key not in left]
    return replace(first, draft=draft.text, removed=removed)


def _merged(value: Any, other: Any, look: PictureLook, schema: Any) -> Any:
    """Return a value whose lists also have the entries of another one that claim what no entry before them does.

    Args:
        value, other: of the same schema.
        look: finds claims.
        schema: of the value; lists that it does not describe by itself stay as they are.
    """
    if isinstance(value, dict) and isinstance(other, dict):
        return {name: _merged(each, other.get(name), look, _part(schema, name)) for name, each in value.items()}
    if not isinstance(value, list) or not isinstance(other, list) or not _part(schema, None):
        return value
    entries = [*value]
    claimed = {key for entry in value for key in _keys(entry, look)}
    for entry in other:
        keys = _keys(entry, look)
        if keys - claimed:
            entries.append(entry)
            claimed |= keys
    return entries


def _keys(entry: Any, look: PictureLook) -> set[str]:
    """Return the keys of the claims of an entry, without those in lists inside it."""
    return {thing.key for string in _strings(entry) for thing in _things(string, look)}


def _cut(value: Any, schema: Any) -> Any:
    """Return a value without the last entries of lists that have more than their schema allows."""
    if isinstance(value, dict):
        return {name: _cut(each, _part(schema, name)) for name, each in value.items()}
    if not isinstance(value, list) or not (part := _part(schema, None)):
        return value
    return [_cut(each, part) for each in value[: schema.get("maxItems")]]


def _part(schema: Any, name: str | None) -> Any:
    """Return the schema of an object's value, or of a list's entries (None); None if it is not written there."""
    if not isinstance(schema, dict) or "prefixItems" in schema:
        return None
    return schema.get("items") if name is None else (schema.get("properties") or {}).get(name)


def _valued(answer: Answer, schema: Schema, data: Any) -> Answer:
    """Return an answer with another value, and its text."""
    return schema.written(replace(answer, text=json.dumps(data, ensure_ascii=False)), data)


def _checked(look: PictureLook, answer: Answer, schema: Schema, text_settings: TextSettings) -> tuple[Answer, Check]:
    """Return an answer in its final form, and the claims of its values."""
    finished = text_settings.finished(answer)
    named = _found(look, answer, finished.text, schema, text_settings)
    return finished, look.check(finished.text, list(named.values()))


def _found(
    look: PictureLook, answer: Answer, text: str, schema: Schema, text_settings: TextSettings
) -> dict[str, Thing]:
    """Return the claims of the values of an answer, by key, with their places in `text`, its final form."""
    strings = _tags(answer.data or [], len(text_settings.prefix)) if schema.as_tags else _values(text)
    found: dict[str, Thing] = {}
    for place, string in strings:
        for thing in _things(string, look, place):
            before = found.get(thing.key, replace(thing, spans=()))
            found[thing.key] = replace(before, spans=before.spans + thing.spans)
    return found


def _doubted(check: Check, settings: dict[str, Any]) -> dict[str, Claim]:
    """Return the claims that are not supported, by key."""
    return {claim.key: claim for claim in check.all if claim.support < threshold_of(claim.to_json(), settings)}


def _warned(answer: Answer, data: Any, schema: Schema, text_settings: TextSettings) -> Answer:
    """Return an answer, with a warning if nothing is left of its value."""
    if _holds_anything(data):
        return answer
    text = text_settings.around_nothing() if schema.as_tags else answer.text
    return replace(answer, text=text, warnings=(*answer.warnings, NOTHING_LEFT))


def _things(string: str, look: PictureLook, place: int = 0) -> list[Thing]:
    """Return the claims of a string at a place of a text; a short one is a noun, as if it had an article."""
    short = len(string.split()) <= TAG
    if look.words.asks and not short:
        return []
    article = "a " if short and not look.words.asks else ""
    moved = place - len(article)
    return [
        replace(thing, spans=tuple((start + moved, end + moved) for start, end in thing.spans))
        for thing in look.words.alone(article + string)
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


def _without(value: Any, look: PictureLook, doubted: Collection[str]) -> Any:
    """Return a value without the entries of its lists that make doubted claims."""
    if isinstance(value, dict):
        return {name: _without(each, look, doubted) for name, each in value.items()}
    if not isinstance(value, list):
        return value
    return [_without(entry, look, doubted) for entry in value if not any(key in doubted for key in _keys(entry, look))]


def _ranked(value: Any, look: PictureLook, ranks: dict[str, tuple[int, float]]) -> Any:
    """Return a value with each list of strings or objects in the order of its entries' ranks, the worst of an entry."""
    if isinstance(value, dict):
        return {name: _ranked(each, look, ranks) for name, each in value.items()}
    if not isinstance(value, list):
        return value

    def rank(entry: Any) -> tuple[int, float]:
        return max((ranks[key] for key in _keys(entry, look) if key in ranks), default=(1, 0.0))

    return sorted((_ranked(entry, look, ranks) for entry in value), key=rank)


def _holds_anything(value: Any) -> bool:
    """Return whether a value has more than empty lists, objects and strings."""
    if isinstance(value, dict | list):
        return any(map(_holds_anything, value.values() if isinstance(value, dict) else value))
    return value not in (None, "")


def _strings(value: Any) -> Iterator[str]:
    """Yield the strings of an entry, without those in lists inside it."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _strings(each)
