"""Tokens as visible text: line breaks, control characters and parts of characters get a sign."""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Iterable

from markupsafe import Markup

from sira_cli.analysis.trace.read import Candidate, Token

# Line breaks, non-characters, and marks that would turn the direction of the following tokens.
_CONTROL = re.compile("([\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069])")
_SIGNS = {"\n": "↵", "\r": "␍", "\t": "⇥", "\x7f": "␡", "\u2028": "↵", "\u2029": "¶"}


def pieces(tokens: Iterable[Token]) -> list[Markup]:
    """Return each token's part of the text, as HTML. Together they read as the text.

    A character made of several tokens is shown with the last of them; the others show their bytes.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    found = []
    for token in tokens:
        if token.special:
            decoder.reset()
            found.append(Markup("{}").format(label(token)))
            continue
        text = decoder.decode(bytes(token.bytes))
        if text or not token.bytes:
            found.append(_with_signs(text or token.token))
        else:
            found.append(Markup('<span class="sign">{}</span>').format(_hex(token.bytes)))
    return found


def label(candidate: Candidate) -> str:
    """Return an unmistakable label of a token: invisible characters are written out."""
    data = bytes(candidate.bytes)
    try:
        text = data.decode() if data else candidate.token
    except UnicodeDecodeError:
        return _hex(candidate.bytes)
    return "".join(map(_visible, text)) or f"⟨{candidate.token_id}⟩"


def _hex(data: Iterable[int]) -> str:
    return "⟨" + " ".join(f"{byte:02X}" for byte in data) + "⟩"


def _visible(character: str) -> str:
    if _CONTROL.match(character):
        return _sign(character)
    if unicodedata.category(character) == "Cf":  # it has no width
        return f"⟨U+{ord(character):04X}⟩"
    return character


def _sign(control: str) -> str:
    if control in _SIGNS:
        return _SIGNS[control]
    return chr(0x2400 + ord(control)) if ord(control) < 0x20 else f"⟨U+{ord(control):04X}⟩"


def _with_signs(text: str) -> Markup:
    html = Markup()
    for part in _CONTROL.split(text):
        if not _CONTROL.match(part):
            html += part
        else:  # the sign is drawn by the style sheet, so that copied text is the model's
            html += Markup('<span class="sign" data-sign="{}"></span>').format(_sign(part))
            html += part if part in "\n\t" else ""
    return html
