"""Descriptions in XMP, for photo programs, merged into existing sidecars.

    dc:description                       the text
    Iptc4xmpCore:AltTextAccessibility    the text up to 250 characters, or a schema's alternative text
    Iptc4xmpCore:ExtDescrAccessibility   the text, if it is longer
    dc:subject, digiKam:TagsList         tags and labels, added to existing ones
    sira:...                             model, method and key of the record, support, what is unsure, "reviewed"

All other properties of a sidecar stay as they are, and so do texts that sira did not write.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sira_cli.data.xmp.packet import TEXT, Packet
from sira_cli.models.look import claims

ALT = 250  # characters: IPTC's advice for alternative texts
SUBJECT = "dc:subject"
_ALT_TEXT, _LONG_TEXT = "Iptc4xmpCore:AltTextAccessibility", "Iptc4xmpCore:ExtDescrAccessibility"
_KEYWORDS = ((SUBJECT, "Bag"), ("digiKam:TagsList", "Seq"))
_HASHES, _OWN_KEYWORDS = "sira:described", "sira:keywords"


@dataclass(frozen=True)
class Described:
    """The content of a sidecar that comes from a record.

    Attributes:
        text: the description; empty: none.
        alt: the alternative text; empty: the description, if it is short.
        keywords: tags or labels.
        facts: properties of the namespace `sira`: a text, or several.
        language: code of the text's language; empty: unknown.
    """

    text: str
    alt: str = ""
    keywords: tuple[str, ...] = ()
    facts: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    language: str = ""

    @classmethod
    def of(cls, record: Mapping[str, Any], *, reviewed: bool = False) -> Described:
        """Return the description in a record: of values that follow a schema, a caption, tags, labels or objects."""
        data, text, alt = record.get("data"), str(record["text"]), ""
        keywords: list[Any] = []
        if isinstance(data, Mapping):
            alt = str(data.get("alt") or "")
            text = next((str(data[name]) for name in ("caption", "description", "scene") if data.get(name)), "")
            named = [*data.get("labels", ()), *data.get("objects", ())]
            keywords = [*data.get("tags", ()), *(each["name"] for each in named if isinstance(each, Mapping))]
        elif isinstance(data, list):
            text, keywords = "", data
        words = tuple(dict.fromkeys(word for word in keywords if isinstance(word, str) and word))
        language = str((record.get("verify") or {}).get("language", ""))
        return cls(text, alt, words, {**_facts(record), "reviewed": "yes" if reviewed else "no"}, language)

    @property
    def texts(self) -> dict[str, str]:
        """The texts by property."""
        alt = self.alt or (self.text if len(self.text) <= ALT else "")
        longer = self.text if self.text != alt else ""
        return {TEXT: self.text, _ALT_TEXT: alt, _LONG_TEXT: longer}


def _facts(record: Mapping[str, Any]) -> dict[str, str | Sequence[str]]:
    facts: dict[str, str | Sequence[str]] = {
        name: str(record[name]) for name in ("model", "revision", "method", "key") if record.get(name)
    }
    if record.get("sira_version"):
        facts["version"] = str(record["sira_version"])
    found = record.get("objects") or ()
    if found:
        facts["support"] = [f"{claim['support']:.2f} {claim['thing']}" for claim in found]
    if record.get("verify"):
        facts["unsure"] = claims.unsure(record)
    return facts


def merged(
    packet: Packet, described: Described, *, overwrite: bool = False, replaces: Collection[str] = ()
) -> Packet | None:
    """Put a description into a packet, which keeps everything else.

    Texts that sira wrote are replaced, and with them their translations that sira wrote. Keywords are added to those
    that others have set.

    Args:
        packet: of the existing sidecar, or an empty one; it is changed.
        described: what to put in.
        overwrite: replace texts that are not sira's.
        replaces: texts of others that may be replaced: somebody has seen them.

    Returns:
        None, and the packet as it was, if it has a description of somebody else that is to stay, unless this is the
        very text that is described.
    """
    there, hashes = packet.text(TEXT), set(packet.values(_HASHES))

    def ours(name: str, text: str) -> bool:
        return _hash(name, text) in hashes

    def stays(name: str) -> bool:
        text = packet.text(name)
        return bool(text) and not overwrite and not ours(name, text) and text not in replaces

    if stays(TEXT) and there != described.text.strip():
        return None
    own_keywords = set(packet.values(_OWN_KEYWORDS))
    if "key" in described.facts:  # another record: none of the facts of the last one is about it
        packet.remove("sira:*")
    elif there != described.text.strip():
        for fact in ("support", "unsure"):
            packet.remove(f"sira:{fact}")
    if described.text or described.alt:
        written = []
        for name, text in described.texts.items():
            if stays(name):
                continue
            if text:
                packet.put_text(name, text, described.language, drop=functools.partial(ours, name))
                written.append(_hash(name, text))
            else:
                packet.remove(name)
        packet.put(_HASHES, written)
    if described.keywords or (own_keywords and "key" in described.facts):
        for name, kind in _KEYWORDS:
            kept = [word for word in packet.values(name) if word not in own_keywords]
            packet.put(name, [*kept, *(word for word in described.keywords if word not in kept)], kind)
        packet.put(_OWN_KEYWORDS, described.keywords)
    for fact, value in described.facts.items():
        packet.put(f"sira:{fact}", value)
    return packet


def is_described(packet: Packet) -> bool:
    """Return whether a packet has a description, or keywords of ours."""
    return bool(packet.text(TEXT) or packet.text("sira:key"))


def _hash(name: str, text: str) -> str:
    return hashlib.sha256(f"{name} {text.strip()}".encode()).hexdigest()
