"""Words: English singulars, and the bundled lists of what texts name."""

from __future__ import annotations

import functools
from pathlib import Path

CHAIR_WORDS = Path(__file__).with_name("chair.txt")  # a category of COCO a line, with its synonyms
AMBER_WORDS = Path(__file__).with_name("amber.txt")  # a word a line


@functools.cache
def function_words() -> frozenset[str]:
    """Return English function words."""
    return frozenset(Path(__file__).with_name("function_words.txt").read_text(encoding="utf-8").split())
