"""Check whether any finite value fits a schema: a schema may contain itself endlessly.

The engine would follow such a schema for as long as a text may be, and its JSON would never be complete.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import unquote

MOST_STEPS = 50_000  # after which a schema is left to its trial
_TYPES = frozenset({"null", "boolean", "number", "string", "array", "object"})
_Node = dict[str, Any] | bool
# Identities of schemas that a value fits already known to hold, and of those that are to be looked at.
_State = tuple[frozenset[int], frozenset[int]]


class _UndecidedError(Exception):
    """The search would take too long."""


def has_value(schema: dict[str, Any]) -> bool:
    """Return whether a finite value may fit a schema.

    This is the least fixed point of "a value fits": a schema that needs itself has none. Keywords other than types,
    joins, references, items and keys are taken to allow some value, as are the alternatives of several `anyOf`.

    Args:
        schema: as JSON is read.
    """
    try:
        return _Search(schema).run()
    except (_UndecidedError, RecursionError):
        return True


class _Search:
    """One search: the schemas that are known to have a value, and those under examination."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root, self._nodes = root, {id(root): root}
        self._full: set[_State] = set()  # they have a value
        self._seen: set[_State] = set()  # in this round; taken to have none until it is found
        self._steps = 0

    def run(self) -> bool:
        """Search until no further schema is found to have a value."""
        first, known = self._state((), [self._root]), -1
        while first not in self._full and len(self._full) > known:
            known = len(self._full)
            self._seen.clear()
            self._has(first)
        return first in self._full

    def _state(self, known: Iterable[int], nodes: Iterable[Any]) -> _State:
        new = []
        for node in nodes:
            self._nodes[id(node)] = node
            new.append(id(node))
        return frozenset(known), frozenset(new)

    def _has(self, state: _State) -> bool:
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise _UndecidedError
        if state not in self._full and state not in self._seen:
            self._seen.add(state)
            if self._found(state):
                self._full.add(state)
        return state in self._full

    def _found(self, state: _State) -> bool:
        known, new = state
        parts: dict[int, dict[str, Any]] = {}
        if not all(self._joined(self._nodes[each], parts, ()) for each in new):
            return False
        both = known | parts.keys()
        groups = [part[name] for part in parts.values() for name in ("anyOf", "oneOf") if _is_list(part.get(name))]
        if groups:
            return all(any(self._has(self._state(both, [each])) for each in group) for group in groups)
        return self._fits([self._nodes[each] for each in both])

    def _joined(self, node: Any, parts: dict[int, dict[str, Any]], path: tuple[int, ...]) -> bool:
        """Add a schema and all schemas joined with it to the parts; return whether this ends."""
        if not isinstance(node, dict):
            return node is not False
        if id(node) in path:
            return False
        self._nodes[id(node)] = node
        if id(node) in parts:
            return True
        self._steps += 1
        path = (*path, id(node))
        others = list(node["allOf"]) if _is_list(node.get("allOf")) else []
        if isinstance(node.get("$ref"), str):
            others.append(self._target(node["$ref"]))
        if not all(self._joined(each, parts, path) for each in others):
            return False
        parts[id(node)] = node
        return True

    def _target(self, reference: str) -> Any:
        """Return the schema of a reference; True if it is in another file, or missing."""
        if not reference.startswith("#"):
            return True
        found: Any = self._root
        for name in unquote(reference[1:]).split("/")[1:]:
            key = name.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and key in found:
                found = found[key]
            elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
                found = found[int(key)]
            else:
                return True
        return found if reference == "#" or reference.startswith("#/") else True

    def _fits(self, parts: Sequence[dict[str, Any]]) -> bool:
        """Return whether a value fits schemas without joins."""
        if any("enum" in part or "const" in part for part in parts):
            return True
        types = functools.reduce(frozenset.intersection, map(_types, parts), _TYPES)
        return bool(
            types - {"array", "object"}
            or ("array" in types and self._fits_list(parts))
            or ("object" in types and self._fits_object(parts))
        )

    def _fits_list(self, parts: Sequence[dict[str, Any]]) -> bool:
        least = _largest(parts, "minItems")
        listed: list[list[Any]] = [part["prefixItems"] if _is_list(part.get("prefixItems")) else [] for part in parts]
        places = min(least, max(map(len, listed), default=0) + 1)  # all after the listed ones are the same
        for place in range(places):
            nodes = [
                first[place] if place < len(first) else part.get("items", True)
                for part, first in zip(parts, listed, strict=True)
            ]
            if not self._has(self._state((), nodes)):
                return False
        return True

    def _fits_object(self, parts: Sequence[dict[str, Any]]) -> bool:
        needed = {key for part in parts if _is_list(part.get("required")) for key in part["required"]}
        if not all(self._has(self._state((), _at(parts, key))) for key in needed):
            return False
        if _largest(parts, "minProperties") <= len(needed):
            return True
        named = {key for part in parts for key in _properties(part)} - needed
        return any(self._has(self._state((), _at(parts, key))) for key in (None, *named))


def _types(part: dict[str, Any]) -> frozenset[str]:
    given = part.get("type", list(_TYPES))
    return frozenset("number" if each == "integer" else each for each in ([given] if isinstance(given, str) else given))


def _properties(part: dict[str, Any]) -> dict[str, Any]:
    given = part.get("properties")
    return given if isinstance(given, dict) else {}


def _at(parts: Sequence[dict[str, Any]], key: str | None) -> list[_Node]:
    """Return the schemas for the value of a key; None if no schema names the key."""
    found = []
    for part in parts:
        if key is not None and key in _properties(part):
            found.append(_properties(part)[key])
        elif "patternProperties" not in part:
            found.append(part.get("additionalProperties", True))
    return found


def _largest(parts: Sequence[dict[str, Any]], name: str) -> int:
    return max((part[name] for part in parts if isinstance(part.get(name), int)), default=0)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)
