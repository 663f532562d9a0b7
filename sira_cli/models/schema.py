"""A JSON schema that texts follow token by token, and the values of these texts."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sira_cli.errors import SettingsError, UnsupportedModelError, install
from sira_cli.models.texts import Answer
from sira_cli.parsing import from_json

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from sira_cli.models.reasoning import ReasoningParser
    from sira_cli.models.vocabulary import EndTokens, Vocabulary

LONGEST = 200_000  # characters of a schema
DEEPEST = 100  # values inside each other
TRIED = 100  # bytes of a text
# The engine limits its size and time, except for these: 10,000 remainders take it 0.1 s, 16 joined patterns 1.8 s.
MOST_REMAINDERS = 10_000
MOST_JOINED = 10
# JSON may have any white space between values, and a model may go on with it for ever: one space is enough.
_OPTIONS = {"whitespace_pattern": " ?", "lenient": False, "coerce_one_of": False}
_EXACT = '%llguidance {"no_forcing": true}\n'  # any tokens may spell what is certain to come


@dataclass(frozen=True)
class Schema:
    """A JSON schema; `Schema.of` makes it."""

    name: str  # of its file; empty without one
    content: str  # the schema as JSON, with the engine's options
    prompt: str = ""  # for such a text (`x-prompt` in the schema); empty without one
    as_tags: bool = False  # whether the text is the list's strings with commas between them, as trainers expect tags

    @classmethod
    def of(cls, source: SchemaSource, *, tags: bool = False) -> Schema:
        """Return a schema that texts can follow.

        Args:
            source: a dict, a file, or a built-in name such as `labels` or `tags:20`.
            tags: whether texts are the list's strings with commas between them.

        Raises:
            SettingsError: it is no schema, or cannot be followed; with `tags`, it is not a list of strings.
        """
        if isinstance(source, Schema):
            return source
        shown = "`tags=`" if tags else "`schema=`"
        most = None
        if not isinstance(source, Mapping):
            source = str(source)
            name, _, length = source.rpartition(":")
            if name in built_in() and length.isdecimal():
                source = name
                most = int(length)
            if source and (not tags or source != "tags"):
                shown += f" {source}"
        try:
            return cls._read(source, most, tags=tags)
        except SettingsError:
            raise
        except OSError as error:
            why = f"{error.strerror}: expected a file of a JSON schema, or {', '.join(built_in())}"
            raise SettingsError(f"{shown}: {why}") from error
        except RecursionError as error:
            raise SettingsError(f"{shown}: is nested too deeply to be followed") from error
        except (ValueError, TypeError) as error:
            raise SettingsError(f"{shown}: {error}") from error

    @classmethod
    def _read(cls, source: str | Mapping[str, Any], most: int | None, *, tags: bool) -> Schema:
        """Read and check a schema; `most`: the largest number of its tags."""
        value = _read(source)
        prompt = value.pop("x-prompt", "")
        if not isinstance(prompt, str):
            raise ValueError("`x-prompt` is not a text")
        if most is not None:
            _tags(value)["maxItems"] = most
        if tags and not (_tags(value) is value and dict(value.get("items") or {}).get("type") == "string"):
            raise ValueError("is not a list of strings, as tags are")
        name = Path(source).stem if isinstance(source, str) else ""
        schema = cls(name, json.dumps({**value, "x-guidance": _OPTIONS}), prompt, tags)
        reason = _reason_against(schema.content, schema.grammar, _bytes())
        if reason:
            raise ValueError(f"cannot be followed: {reason}")
        return schema

    @property
    def label(self) -> str:
        """Label in records: the schema's name, and the beginning of its hash."""
        label = hashlib.sha256(self.content.encode()).hexdigest()[:16]
        if self.name:
            label = f"{self.name}@{label}"
        return f"{label} as text" if self.as_tags else label

    @property
    def has_lists(self) -> bool:
        """Whether it is a built-in one with a list, other than tags."""
        return self.name in built_in().keys() - {"tags"} and '"array"' in self.content

    @property
    def grammar(self) -> str:
        """The schema for the engine."""
        return f"{_EXACT}start: %json {self.content}"

    def matcher(self, tokens: LLTokenizer) -> LLMatcher:
        """Return the state of an empty text."""
        matcher = _compiled(tokens, self.grammar)
        if matcher.is_error():
            raise ValueError(f"cannot be followed: {engine_reason(matcher.get_error())}")
        return matcher.deep_copy()

    def read(self, text: str) -> Any:
        """Return the value of a text."""
        data = from_json(text, DEEPEST)
        written = json.dumps(data, ensure_ascii=False, allow_nan=False).encode()
        # Again, as it was read: numbers are rounded, and of equal keys only the last one counts.
        matcher = self.matcher(_bytes())
        if matcher.try_consume_tokens(list(written)) < len(written) or not matcher.is_accepting():
            raise ValueError("its value does not fit the schema")
        return data

    def answer(self, answer: Answer) -> Answer:
        """Return the answer of a text that followed the schema: its value, as tags if `as_tags`, or why it has none."""
        answer = replace(answer, json_schema=self.label)
        if answer.error:
            return answer
        try:
            data = self.read(answer.text)
        except ValueError as error:
            why = f"the JSON cannot be used: {error}"
            if answer.finish_reason == "length":
                why = f"the JSON was cut off after {answer.output_tokens} tokens: raise max_new_tokens"
            return replace(answer, text="", error=why)
        if not self.as_tags:
            return replace(answer, data=data)
        plain = (" ".join(tag.lower().replace("_", " ").split()) for tag in data)
        tags = list(dict.fromkeys(filter(None, plain)))
        return replace(answer, data=tags, text=", ".join(tags))


SchemaSource = str | Path | Mapping[str, Any] | Schema  # see `Schema.of`


@functools.cache
def built_in() -> dict[str, Path]:
    """Return the files of the schemas that come with `sira`, by name."""
    return {path.stem: path for path in sorted((Path(__file__).parent / "schemas").glob("*.json"))}


def _read(source: str | Mapping[str, Any]) -> dict[str, Any]:
    """Read a schema from memory, by a built-in name, or from a file."""
    if isinstance(source, Mapping):
        text = json.dumps(source)
    else:
        path = built_in().get(source) or Path(source)
        text = path.read_text(encoding="utf-8-sig")
    if len(text) > LONGEST:
        raise ValueError(f"has {len(text):,} characters; at most {LONGEST:,} can be followed")
    try:
        value = from_json(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError('is not a JSON object, such as {"type": "object"}')
    return value


def _tags(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a schema that is its list of tags."""
    properties = schema.get("properties")
    for part in (schema, properties.get("tags") if isinstance(properties, dict) else None):
        if isinstance(part, dict) and part.get("type") == "array":
            return part
    raise ValueError("has no list of tags")


@functools.cache
def _bytes() -> LLTokenizer:
    try:
        from llguidance import LLTokenizer
    except ImportError as error:
        raise SettingsError(f"JSON schemas and tags need llguidance: {install('json')}") from error
    return LLTokenizer("byte")


@functools.lru_cache(maxsize=4)  # a schema has two: by the model's tokens, and by bytes; each may be large
def _compiled(tokens: LLTokenizer, grammar: str) -> LLMatcher:
    """Return the state of an empty text, to be copied, within the engine's limits; it may be an error."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(verbose_errors=False)
    return LLMatcher(tokens, LLMatcher.grammar_from_lark(grammar), log_level=0, limits=limits)


@functools.lru_cache(maxsize=256)
def _reason_against(content: str, grammar: str, tokens: LLTokenizer) -> str:
    """Return why a schema cannot be followed, by its size, as some take minutes or gigabytes, and by a text's begin."""
    multiples: list[int] = []
    patterns = 0
    joins = False  # whether a value follows several schemas
    for part in _parts(json.loads(content)):
        if isinstance(part.get("multipleOf"), int | float):
            multiples.append(_digits(part["multipleOf"]))
        patterns += "pattern" in part
        joins |= "allOf" in part or len(part.keys() & {"$ref", "anyOf", "oneOf", "pattern"}) > 1
    if max(sum(multiples), math.lcm(*multiples)) > MOST_REMAINDERS:  # a value may have to be a multiple of all of them
        return f"its values of multipleOf have a sum or a least common multiple above {MOST_REMAINDERS:,}"
    if joins and patterns > MOST_JOINED:
        return f"it joins schemas and has more than {MOST_JOINED} patterns"
    matcher = _compiled(tokens, grammar).deep_copy()
    for _ in range(TRIED):
        bits = matcher.compute_bitmask()
        if matcher.is_accepting():
            break
        allowed = [byte for byte in range(256) if bits[byte // 8] >> byte % 8 & 1]
        if not allowed:
            reason = engine_reason(matcher.get_error() or "no value fits it")
            return "no value fits a part of it" if "NoExt" in reason else reason
        matcher.consume_token(max((byte for byte in allowed if byte < 127), default=allowed[0]))
    return ""


def _digits(value: float) -> int:
    """Return a positive number's digits as a whole number: 25 for 0.25."""
    digits = Decimal(str(value)).normalize()
    exponent = int(digits.as_tuple().exponent)
    if exponent < 0:
        digits = digits.scaleb(-exponent)
    return max(0, int(digits))


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects in a schema, itself included."""
    values: Iterable[Any] = ()
    if isinstance(schema, dict):
        yield schema
        values = schema.values()
    elif isinstance(schema, list):
        values = schema
    for value in values:
        yield from _parts(value)


def engine_reason(message: str) -> str:
    """Return the engine's reason, without its trace."""
    reason = re.split(r"<non-verbose/>|\n +\d+ \|", message)[0].rpartition("failed to compile JSON schema: ")[2]
    reason = re.sub(r"\.? *(Enable|Use) '\w+' option[^.]*\.?", "", reason)  # which nobody can set here
    return re.sub(r"\s+", " ", reason).strip()


@dataclass(frozen=True)
class _Pieces:
    """A vocabulary as llguidance expects it."""

    tokens: Sequence[bytes]
    eos_token_id: int
    bos_token_id = None
    special_token_ids = ()

    def __call__(self, text: bytes) -> list[int]:
        return []  # the engine does not need them


@functools.lru_cache(maxsize=4)
def _engine(vocabulary: Vocabulary, markers: frozenset[int], ends: tuple[int, ...]) -> LLTokenizer:
    """Return a vocabulary in the engine's form; this takes a second for a large one."""
    from llguidance import LLTokenizer, TokenizerWrapper

    pieces = [b"" if token in markers else piece for token, piece in enumerate(vocabulary.pieces())]
    return LLTokenizer(TokenizerWrapper(_Pieces(pieces, ends[0])), eos_token=list(ends))


class FollowingText:
    """One text of a model that follows a schema, token by token; thoughts before it are free."""

    def __init__(self, parser: ReasoningParser, ends: EndTokens, schema: Schema) -> None:
        if not ends.ids:
            raise UnsupportedModelError("following a schema needs a token that ends a text, but the model has none")
        if parser.expects and (not parser.closing or parser.begins_in in parser.written):
            raise SettingsError(
                "a schema is for the answer after the model's thoughts, but their end is not a token of this model: "
                "switch thinking off, or use another model"
            )
        self._parser = parser
        self._thinks = parser.begins_in is not None
        self._may_think = parser.expects
        markers = frozenset({*parser.opening, *parser.closing, *parser.frames})
        self.engine = _engine(parser.vocabulary, markers, tuple(ends.ids))
        try:
            self._matcher = schema.matcher(self.engine)
        except ValueError as error:
            raise SettingsError(f"`schema=` {schema.name}: {error}") from error

    def add(self, token: int) -> None:
        """Take the next token."""
        if self._thinks:
            self._thinks = token not in self._parser.closing
        elif self._may_think and token in self._parser.opening:
            self._thinks = True
        else:
            self._matcher.consume_token(token)
        self._may_think = self._thinks

    def allowed(self) -> bytes | None:
        """Return a bit per token, whether it may be next; None: all may. End tokens may if the JSON is complete."""
        if self._thinks:
            return None
        bits: bytes = self._matcher.compute_bitmask()
        if not self._may_think:
            return bits
        more = bytearray(bits)
        for token in self._parser.opening:
            more[token // 8] |= 1 << token % 8
        return bytes(more)
