"""Tests a schema in a separate process (`confined.py`), as some take minutes and gigabytes: `trial.py < grammar`.

It imports nothing of the package, whose imports take seconds. Writes JSON: the engine's error (`reason`; empty: the
grammar can be followed) and the processor time it took (`seconds`).
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

TRIED = 100  # bytes of a text


def matcher_of(tokens: LLTokenizer, grammar: str) -> LLMatcher:
    """Return the state of an empty text; it may be an error."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(verbose_errors=False)
    return LLMatcher(tokens, LLMatcher.grammar_from_lark(grammar), log_level=0, limits=limits)


def reason_against(grammar: str) -> str:
    """Follow a short text, as some grammars fail only then; return the engine's error, or nothing."""
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


if __name__ == "__main__":
    json.dump({"reason": reason_against(sys.stdin.read()), "seconds": time.process_time()}, sys.stdout)
