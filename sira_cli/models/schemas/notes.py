"""Schemas without annotations, which do not restrict values."""

from __future__ import annotations

from typing import Any

_NOTES = ("title", "description", "$comment")
# Keywords with schemas inside. All others stay as they are: in `enum`, a title is a part of a value.
_INSIDE = ("items", "additionalProperties")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")


def without_notes(schema: Any) -> Any:
    """Return a schema without titles, descriptions and comments, its own and those of the schemas inside."""
    if not isinstance(schema, dict):
        return schema
    return {name: _inside(name, value) for name, value in schema.items() if not _is_note(name, value)}


def _inside(name: str, value: Any) -> Any:
    if name in _INSIDE:
        return without_notes(value)
    if name in _LISTED and isinstance(value, list):
        return [without_notes(each) for each in value]
    if name in _NAMED and isinstance(value, dict):
        return {key: without_notes(each) for key, each in value.items()}
    return value


def _is_note(name: str, value: Any) -> bool:
    return name in _NOTES and isinstance(value, str)
