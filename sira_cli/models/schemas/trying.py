"""Trials of schemas before their first use: a text is begun, as some fail only then."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

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
