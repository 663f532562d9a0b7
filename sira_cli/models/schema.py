"""A JSON schema that texts follow, and the values of these texts."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sira_cli.errors import SettingsError, install
from sira_cli.models.texts import Answer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

LONGEST = 200_000  # characters of a schema
DEEPEST = 100  # values inside each other
# JSON may have any white space between values, and a model may go on with it for ever: one space is enough.
_OPTIONS = {"whitespace_pattern": " ?", "lenient": False, "coerce_one_of": False}

_EXACT = '%llguidance {"no_forcing": true}\n'  # any tokens may spell what is certain to come


@dataclass(frozen=True)
class Schema:
    """A JSON schema; `Schema.of` makes it.

    Attributes:
        name: name of its file; empty without one.
        content: the schema as JSON, with the engine's options.
        prompt: prompt for such a text (`x-prompt` in the schema); empty without one.
        as_tags: whether the text is the list's strings with commas between them, as trainers expect tags.
    """

    name: str
    content: str
    prompt: str = ""
    as_tags: bool = False

    @classmethod
    def of(
        cls,
        given: SchemaSource,
        *,
        tags: bool = False,
    ) -> Schema:
        """Return a schema that texts can follow."""
        if isinstance(given, Schema):
            return given
        given, most = (given, None) if isinstance(given, Mapping) else _with_length(str(given))
        name = "" if isinstance(given, Mapping) else Path(given).stem
        shown = ("`tags=`" if tags else "`schema=`") + (f" {given}" if name and not (tags and given == "tags") else "")
        try:
            value = _read(given)
            prompt = value.pop("x-prompt", "")
            if not isinstance(prompt, str):
                raise ValueError("`x-prompt` is not a text")
            if most is not None:
                _tags(value)["maxItems"] = most
            if tags and not (_tags(value) is value and dict(value.get("items") or {}).get("type") == "string"):
                raise ValueError("is not a list of strings, as tags are")
            schema = cls(name, json.dumps({**value, "x-guidance": _OPTIONS}), prompt, tags)
            _bytes()
            if reason := reason_against(schema.grammar, json.dumps(schema._constraints)):
                raise ValueError(f"cannot be followed{reason}")
        except OSError as error:
            known = ", ".join(built_in())
            raise SettingsError(f"{shown}: {error.strerror}: expected a file of a JSON schema, or {known}") from error
        except SettingsError:
            raise
        except RecursionError:
            raise SettingsError(f"{shown}: is nested too deeply to be followed") from None
        except (ValueError, TypeError) as error:
            raise SettingsError(f"{shown}: {error}") from error
        return schema

    @property
    def label(self) -> str:
        """Label in records: the schema's name, and the beginning of its hash."""
        digest = hashlib.sha256(self.content.encode()).hexdigest()[:16]
        return (f"{self.name}@{digest}" if self.name else digest) + " as text" * self.as_tags

    @property
    def has_lists(self) -> bool:
        """Whether it makes tags, or is a built-in one with a list."""
        return self.as_tags or (self.name in built_in() and '"array"' in self.content)

    def matcher(self, tokens: LLTokenizer) -> LLMatcher:
        """Return the state of an empty text."""
        matcher = _compiled(tokens, self.grammar)
        if matcher.is_error():
            raise ValueError(f"cannot be followed: {engine_reason(matcher.get_error())}")
        return matcher.deep_copy()

    @functools.cached_property
    def _constraints(self) -> dict[str, Any]:
        constraints: dict[str, Any] = without_notes(json.loads(self.content))
        return constraints

    @functools.cached_property
    def grammar(self) -> str:
        """The schema for the engine."""
        return f"{_EXACT}start: %json {json.dumps(self._constraints)}"

    def read(self, text: str) -> Any:
        """Return the value of a text."""
        try:
            data = json.loads(text)
            if _depth(data) > DEEPEST:
                raise ValueError(f"it has more than {DEEPEST} values inside each other")
            written = json.dumps(data, ensure_ascii=False, allow_nan=False).encode()
        except RecursionError:
            raise ValueError(f"it has more than {DEEPEST} values inside each other") from None
        # Again, as it was read: numbers are rounded, and of equal keys only the last one counts.
        if not self.accepts(written):
            raise ValueError("its value does not fit the schema")
        return data

    def accepts(self, written: bytes) -> bool:
        """Return whether these bytes are a complete text of the schema."""
        matcher = self.matcher(_bytes())
        return matcher.try_consume_tokens(list(written)) == len(written) and matcher.is_accepting()

    def answer(self, answer: Answer) -> Answer:
        """Return the answer of a text that followed the schema: its value, as tags if `as_tags`, or why it has none."""
        answer = replace(answer, json_schema=self.label)
        if answer.error:
            return answer
        try:
            data = self.read(answer.text)
        except ValueError as error:
            return replace(answer, text="", error=self._unfinished(answer, error))
        if not self.as_tags:
            return replace(answer, data=data)
        plain = (" ".join(tag.lower().replace("_", " ").split()) for tag in data)
        tags = list(dict.fromkeys(filter(None, plain)))
        return replace(answer, data=tags, text=", ".join(tags))

    def _unfinished(self, answer: Answer, error: ValueError) -> str:
        """Return the message for a text without a value."""
        if answer.finish_reason == "length":
            return f"the JSON was cut off after {answer.output_tokens} tokens: raise max_new_tokens"
        if not self.accepts(answer.text.encode()):  # the engine ends a text early only if it cannot follow it further
            return (
                f"the JSON broke off after {answer.output_tokens} tokens, as there the schema became too large to "
                "follow: make its patterns, numbers and nesting simpler"
            )
        return f"the JSON cannot be used: {error}"


@functools.cache
def built_in() -> dict[str, Path]:
    """Return the files of the schemas that come with `sira`, by name."""
    return {path.stem: path for path in sorted((Path(__file__).parent / "schemas").glob("*.json"))}


def _read(given: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """Read a schema from memory, by a built-in name, or from a file."""
    if isinstance(given, Mapping):
        text = json.dumps(given)
    else:
        text = (built_in().get(str(given)) or Path(given)).read_text(encoding="utf-8-sig")
    if len(text) > LONGEST:
        raise ValueError(f"has {len(text):,} characters; at most {LONGEST:,} can be followed")
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError('is not a JSON object, such as {"type": "object"}')
    return value


def _with_length(given: str) -> tuple[str, int | None]:
    """Split a name with a length, such as `tags:20`."""
    name, _, length = given.rpartition(":")
    return (name, int(length)) if name in built_in() and length.isdecimal() else (given, None)


def _tags(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a schema that is its list of tags."""
    properties = schema.get("properties")
    for part in (schema, properties.get("tags") if isinstance(properties, dict) else None):
        if isinstance(part, dict) and part.get("type") == "array":
            return part
    raise ValueError("has no list of tags")


def _depth(value: Any) -> int:
    """Return the depth of nested lists and objects."""
    if not isinstance(value, list | dict):
        return 0
    return 1 + max(map(_depth, value.values() if isinstance(value, dict) else value), default=0)


@functools.lru_cache(maxsize=4)  # a schema has two: by the model's tokens, and by bytes; each may be large
def _compiled(tokens: LLTokenizer, grammar: str) -> LLMatcher:
    """Return the state of an empty text, to be copied; it may be an error."""
    return matcher_of(tokens, grammar)


@functools.cache
def _bytes() -> LLTokenizer:
    """Return the tokens of a text that is read byte by byte."""
    try:
        from llguidance import LLTokenizer
    except ImportError as error:
        raise SettingsError(f"JSON schemas and tags need llguidance: {install('json')}") from error
    found = importlib.metadata.version("llguidance")
    if found.startswith(("0.", *(f"1.{minor}." for minor in range(9)))):
        raise SettingsError(
            f"JSON schemas and tags need llguidance from 1.9 on (earlier ones let blanks follow without an end), and "
            f"{found} is installed: pip install 'llguidance>=1.9'"
        )
    return LLTokenizer("byte")


SchemaSource = str | Path | Mapping[str, Any] | Schema  # see `Schema.of`


TRIED = 100  # bytes of a text
# The engine limits its size and time, except for these: 10,000 remainders take it 0.1 s, 16 joined patterns 1.8 s.
MOST_REMAINDERS = 10_000
MOST_JOINED = 10


def matcher_of(tokens: LLTokenizer, grammar: str) -> LLMatcher:
    """Return the state of an empty text, within the engine's limits of size and time; it may be an error."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(verbose_errors=False)
    return LLMatcher(tokens, LLMatcher.grammar_from_lark(grammar), log_level=0, limits=limits)


@functools.lru_cache(maxsize=256)
def reason_against(grammar: str, constraints: str) -> str:
    """Return the end of the message for a schema that cannot be followed; empty: it can."""
    if too_dear := _too_dear(list(_parts(json.loads(constraints)))):
        return too_dear
    reason = _engine_s(grammar)
    if "NoExt" in reason:
        return ": no value fits a part of it"
    return f": {engine_reason(reason)}" if reason else ""


def _engine_s(grammar: str) -> str:
    """Begin a text; return the engine's error, or nothing."""
    from llguidance import LLTokenizer

    matcher = matcher_of(LLTokenizer("byte"), grammar)
    for _ in range(TRIED):
        bits = matcher.compute_bitmask()
        if matcher.is_accepting():
            break
        allowed = [byte for byte in range(256) if bits[byte // 8] >> byte % 8 & 1]
        if not allowed:
            return matcher.get_error() or "no value fits it"
        matcher.consume_token(max((byte for byte in allowed if byte < 127), default=allowed[0]))
    return ""


def _too_dear(parts: Sequence[dict[str, Any]]) -> str:
    """Return the reason against a schema that would take the engine minutes or gigabytes; empty without one."""
    multiples = [_digits(part["multipleOf"]) for part in parts if isinstance(part.get("multipleOf"), int | float)]
    if max(sum(multiples), math.lcm(*multiples)) > MOST_REMAINDERS:  # a value may have to be a multiple of all of them
        return f": its values of multipleOf have a sum or a least common multiple above {MOST_REMAINDERS:,}"
    joins = any("allOf" in part or len(part.keys() & {"$ref", "anyOf", "oneOf", "pattern"}) > 1 for part in parts)
    if joins and sum("pattern" in part for part in parts) > MOST_JOINED:
        return f": it joins schemas and has more than {MOST_JOINED} patterns"
    return ""


def _digits(value: float) -> int:
    """Return a positive number's digits as a whole number: 25 for 0.25."""
    written = Decimal(str(value)).normalize()
    return max(0, int(written.scaleb(max(0, -int(written.as_tuple().exponent)))))


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects in a schema."""
    if isinstance(schema, dict):
        yield schema
    for each in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _parts(each)


def engine_reason(message: str) -> str:
    """Return the engine's reason, without its trace."""
    reason = re.split(r"<non-verbose/>|\n +\d+ \|", message)[0].rpartition("failed to compile JSON schema: ")[2]
    reason = re.sub(r"\.? *(Enable|Use) '\w+' option[^.]*\.?", "", reason)  # which nobody can set here
    return re.sub(r"\s+", " ", reason).strip()


_NOTES = ("title", "description", "$comment")
# Keywords with schemas inside. All others stay as they are: in `enum`, a title is a part of a value.
_INSIDE = ("items", "additionalProperties")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")


def without_notes(schema: Any) -> Any:
    """Return a schema without titles, descriptions and comments, its own and those of the schemas inside."""
    if not isinstance(schema, dict):
        return schema
    plain = {}
    for name, value in schema.items():
        if name in _NOTES and isinstance(value, str):
            continue
        if name in _INSIDE:
            value = without_notes(value)
        elif name in _LISTED and isinstance(value, list):
            value = [without_notes(each) for each in value]
        elif name in _NAMED and isinstance(value, dict):
            value = {key: without_notes(each) for key, each in value.items()}
        plain[name] = value
    return plain
