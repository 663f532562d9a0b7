"""Facts from a picture's metadata for prompts: `{exif.DateTimeOriginal}`, `{iptc.City}`, `{xmp.subject}`, `{gps}`.

Their authors are unknown, so control characters are removed, and the length is limited.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from PIL import ExifTags

from sira_cli.data.xmp.metadata import Metadata

LONGEST = 500  # characters of a fact
_JOINERS = "\u200c\u200d"  # inside words of Persian and Hindi, and inside emoji
_IPTC = {
    "Title": (2, 5),
    "Keywords": (2, 25),
    "DateCreated": (2, 55),
    "Byline": (2, 80),
    "City": (2, 90),
    "Sublocation": (2, 92),
    "State": (2, 95),
    "Country": (2, 101),
    "Headline": (2, 105),
    "Credit": (2, 110),
    "Source": (2, 115),
    "Caption": (2, 120),
}
_XMP = {
    **{name: f"dc:{name}" for name in ("subject", "description", "title", "creator", "rights")},
    **{name: f"photoshop:{name}" for name in ("City", "State", "Country", "Headline", "DateCreated", "Credit")},
    **{name: f"xmp:{name}" for name in ("Rating", "Label", "CreateDate")},
    **{name: f"Iptc4xmpCore:{name}" for name in ("Location", "CountryCode")},
}


def known_facts() -> list[str]:
    """Return the names of all facts."""
    exif = [f"exif.{name}" for name in ExifTags.Base.__members__]
    return ["folder", "stem", "gps", *(f"iptc.{name}" for name in _IPTC), *(f"xmp.{name}" for name in _XMP), *exif]


def fact(metadata: Metadata, name: str) -> str:
    """Return a fact about a picture; empty if it has none.

    Args:
        metadata: metadata of the picture; one object serves all facts, so that its file is read once.
        name: one of `known_facts`.
    """
    kind, _, key = name.partition(".")
    found: Any = ""
    with suppress(ValueError, TypeError, KeyError, OSError, SyntaxError):  # damaged metadata are no facts
        found = _KINDS[kind](metadata, key)
    text = ", ".join(map(str, found)) if isinstance(found, list | tuple) else str(found)
    shown = "".join(letter if letter.isprintable() or letter in _JOINERS else " " for letter in text.strip("\0"))
    return " ".join(shown.split())[:LONGEST]


def _exif(metadata: Metadata, key: str) -> Any:
    if metadata.image is None:
        return ""
    exif, number = metadata.image.getexif(), ExifTags.Base[key].value
    value = exif.get(number, exif.get_ifd(ExifTags.IFD.Exif).get(number, ""))
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _gps(metadata: Metadata, key: str) -> str:
    """Return latitude and longitude in degrees, such as `48.8584 N, 2.2945 E`."""
    places: Mapping[int, Any] = {} if metadata.image is None else metadata.image.getexif().get_ifd(ExifTags.IFD.GPSInfo)
    parts = []
    for reference, value in ((1, 2), (3, 4)):
        degrees, minutes, seconds = map(float, places[value])
        parts.append(f"{degrees + minutes / 60 + seconds / 3600:.4f} {places[reference]}")
    return ", ".join(parts)


def _xmp(metadata: Metadata, key: str) -> list[str]:
    packets = filter(None, (metadata.sidecar, metadata.embedded))
    values = next(filter(None, (packet.values(_XMP[key]) for packet in packets)), [])
    return values if key in ("subject", "creator") else values[:1]


_KINDS: dict[str, Callable[[Metadata, str], Any]] = {
    "exif": _exif,
    "gps": _gps,
    "iptc": lambda metadata, key: metadata.iptc.get(_IPTC[key], ""),
    "xmp": _xmp,
    "folder": lambda metadata, key: Path(metadata.picture.location).absolute().parent.name,
    "stem": lambda metadata, key: Path(metadata.picture.location).stem,
}
