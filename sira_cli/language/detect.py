"""The language of a text in Latin letters, told by function words: its abbreviations do not end a sentence."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import yaml


def likeliest_latin(text: str) -> str:
    """Return the language in Latin letters that has most of a text's function words; English if none has any."""
    words = re.findall(r"[^\W\d_]+", text.lower())
    counts = {code: sum(word in known for word in words) for code, known in _function_words().items()}
    return max(counts, key=lambda code: counts[code])


@functools.cache
def _function_words() -> dict[str, frozenset[str]]:
    rows = yaml.safe_load(Path(__file__).with_name("texts.yaml").read_text(encoding="utf-8"))
    return {code: frozenset(words.split()) for code, words in rows.items()}
