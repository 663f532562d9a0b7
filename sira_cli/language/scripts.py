"""Words in a text, whatever the script: Chinese and Japanese put no spaces between them, Korean adds endings."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u31f0-\u9fff\uf900-\ufaff]")
_WITH_ENDINGS = re.compile(r"[\uac00-\ud7af]")
# What may follow a Korean noun: the plural's ending, then a particle or the copula.
_PARTICLES = (
    "은 는 이 가 을 를 의 에 에서 에게 에는 에도 에서는 와 과 와의 과의 도 만 로 으로 로는 으로는 부터 까지 처럼 "
    "보다 하고 이랑 랑 마다 나 이나 라는 이라는 입니다 이다 다 예요 이에요 였다 이었다 인 이고 이며 고 며 뿐"
)
_ENDING_AHEAD = rf"(?=들?(?:{'|'.join(sorted(_PARTICLES.split(), key=len, reverse=True))})?(?![\w-]))"

# A letter with what belongs to it: accents, or the parts of a Korean syllable.
_WITH_MARKS = re.compile(
    r"[\u1100-\u115f][\u1160-\u11a7]?[\u11a8-\u11ff]?|.[\u0300-\u036f\u0653-\u0655\u093c\u3099\u309a]*", re.DOTALL
)


def bounded(words: Iterable[str]) -> re.Pattern[str]:
    """Return the pattern that finds any of some words as whole words, the longest first, in any case.

    A word ends where a space or a sign follows, in scripts that have spaces; a Korean word may also have an ending.
    """
    longest = sorted(set(words), key=lambda word: (-len(word), word))
    return re.compile("|".join(_whole(word) for word in longest) or r"(?!)", re.IGNORECASE)


def folded(word: str) -> str:
    """Return the common spelling of all forms that `bounded` treats as one word."""
    small = unicodedata.normalize("NFC", word.casefold()).replace("i\N{COMBINING DOT ABOVE}", "i")
    return " ".join(small.replace("\N{LATIN SMALL LETTER DOTLESS I}", "i").split())


def composed(text: str) -> tuple[str, list[int]]:
    """Return a text with composed letters, and the place in the given text of each of its characters and of its end.

    "e" and an accent are one letter in lists of words; some systems write them as two.
    """
    letters, places = [], []
    for part in _WITH_MARKS.finditer(text):
        letter = unicodedata.normalize("NFC", part[0])
        letters.append(letter)
        places += [part.start()] * len(letter)
    return "".join(letters), [*places, len(text)]


def _whole(word: str) -> str:
    begins = "" if UNSPACED.match(word[0]) else r"(?<![\w-])"
    ends = "" if UNSPACED.match(word[-1]) else _ENDING_AHEAD if _WITH_ENDINGS.match(word[-1]) else r"(?![\w-])"
    inside = r"\s+".join(re.escape(part) for part in word.split())
    return f"{begins}{inside}{ends}"
