"""Texts without unsupported claims: a colour is replaced by that of the picture, other sentences are left out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sira_cli.language.colors import recolored
from sira_cli.language.things import with_article
from sira_cli.language.wordings import ENGLISH, shipped, wording_of
from sira_cli.models.look.sentences import without_sentences

_ARTICLE = re.compile(r"\b(an?) $", re.IGNORECASE)


def without_unsupported(
    text: str, claims: Sequence[Mapping[str, Any]], how: Mapping[str, Any]
) -> tuple[str, list[str]]:
    """Return a text without unsupported claims, and the sentences that were left out.

    A wrong colour is replaced if the model's answer to "What color is the car?" is known, and the form that fits;
    otherwise its sentence goes, as that of an object.

    Args:
        text: the checked text.
        claims: its unsupported ones, from its record.
        how: `verify` of its record.
    """
    code = how.get("language", ENGLISH)
    wording = wording_of(code) if code in shipped() else None
    unwanted: list[tuple[int, int]] = []
    repairs: list[tuple[int, int, str]] = []
    for claim in claims:
        for start, end in claim["spans"]:
            new = None
            if claim.get("answer") and wording is not None:
                new = recolored(text[start:end], claim["value"], claim["answer"], wording)
            if new is None:
                unwanted.append((start, end))
            else:
                repairs.append(_with_article(text, start, end, new) if code == ENGLISH else (start, end, new))
    for start, end, new in sorted(repairs, reverse=True):
        text = text[:start] + new + text[end:]
        longer = len(new) - (end - start)
        unwanted = [(first + longer, last + longer) if first >= end else (first, last) for first, last in unwanted]
    return without_sentences(text, unwanted, code)


def _with_article(text: str, start: int, end: int, new: str) -> tuple[int, int, str]:
    """Return a repair with the English article before it: "an orange" becomes "a red"."""
    article = _ARTICLE.search(text, 0, start)
    if article is None:
        return start, end, new
    fitting = with_article(new.lower()).split()[0]
    fitting = fitting.capitalize() if article[1][0].isupper() else fitting
    return article.start(), end, f"{fitting} {new}"
