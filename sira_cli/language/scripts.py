"""Words in a text, whatever the script: Chinese and Japanese put no spaces between them, Korean adds endings."""

from __future__ import annotations

import re
from collections.abc import Iterable

UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u31f0-\u9fff\uf900-\ufaff]")
_WITH_ENDINGS = re.compile(r"[\uac00-\ud7af]")


def bounded(words: Iterable[str]) -> re.Pattern[str]:
    """Return the pattern that finds any of some words as whole words, the longest first, in any case.

    A word ends where a space or a sign follows, in scripts that have spaces; a Korean word may also have an ending.
    """
    longest = sorted(set(words), key=lambda word: (-len(word), word))
    return re.compile("|".join(_whole(word) for word in longest) or r"(?!)", re.IGNORECASE)


def _whole(word: str) -> str:
    begins = "" if UNSPACED.match(word[0]) else r"(?<![\w-])"
    ends = "" if UNSPACED.match(word[-1]) or _WITH_ENDINGS.match(word[-1]) else r"(?![\w-])"
    inside = r"\s+".join(re.escape(part) for part in word.split())
    return f"{begins}{inside}{ends}"
