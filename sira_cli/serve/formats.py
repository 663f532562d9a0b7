"""The requested format of a text: words, any JSON object, or JSON that follows a schema."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator
from typing import Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from sira_cli.errors import SettingsError
from sira_cli.models.schema import Schema

LONGEST = 2**16  # characters of a schema
_JOINED = {"anyOf", "oneOf", "$ref", "if", "patternProperties", "unevaluatedProperties"}


class NamedSchema(BaseModel):
    """A schema; its name and `strict` are ignored: every text follows it to the letter."""

    given: dict[str, Any] = Field(alias="schema")


class ResponseFormat(BaseModel):
    """OpenAI's `response_format`; for other servers the schema stands next to the type."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_schema_inside(cls, given: Any) -> Any:
        flat = isinstance(given, dict) and given.get("schema") is not None
        return {**given, "json_schema": {"schema": given["schema"]}} if flat else given

    @model_validator(mode="after")
    def _with_schema(self) -> Self:
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("json_schema: expected an object with the schema")
        return self

    def schema_of_text(self) -> Schema | None:
        """Return the schema that the text must follow; None for plain text."""
        if self.type == "text":
            return None
        given = {"type": "object"} if self.json_schema is None else closed(self.json_schema.given)
        if (length := len(json.dumps(given))) > LONGEST:
            raise SettingsError(f"`schema=`: has {length:,} characters; this server takes {LONGEST:,}")
        return Schema.of(given)


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose objects have only their listed keys, unless it combines schemas.

    Clients send schemas made from classes, which do not mention other keys; open objects might never end.
    """
    schema = copy.deepcopy(schema)
    objects = [part for part in _parts(schema) if "properties" in part]
    if any("allOf" in part for part in _parts(schema)) or not all(map(_JOINED.isdisjoint, objects)):
        return schema
    for part in objects:
        part.setdefault("additionalProperties", False)
    return schema


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and those inside it."""
    if not isinstance(schema, dict):
        return
    yield schema
    named = [schema.get(name) for name in ("properties", "$defs", "definitions")]
    listed = [schema.get(name) for name in ("anyOf", "oneOf", "prefixItems")]
    inside = [list(each.values()) for each in named if isinstance(each, dict)]
    inside += [each for each in listed if isinstance(each, list)]
    for each in itertools.chain([schema.get("items")], *inside):
        yield from _parts(each)
