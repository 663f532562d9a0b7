"""A picture with its text, for the page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from sira_cli.models.look.claims import shown, threshold_of
from sira_cli.pictures.picture import Picture

THRESHOLD = 0.5  # an object below it counts as not supported, if the record has no threshold
# A record's facts about how its text was made, in the page's order.
_SETTINGS = ("method", "k", "alpha", "model", "prompt", "finish_reason", "source")


@dataclass(frozen=True)
class NamedObject:
    """An object that a text names, or another claim about one.

    Attributes:
        thing: in the singular; `car: red` for a colour.
        spans: start and end of every mention, in characters of the text.
        support: how well the picture supports it, 0 to 1.
        low: whether that is below the record's threshold.
    """

    thing: str
    spans: tuple[tuple[int, int], ...]
    support: float
    low: bool


@dataclass(frozen=True)
class CaptionItem:
    """A picture with its text.

    Attributes:
        id: its identity, also in the log of edits.
        name: the picture's name in the file of captions; in a folder, its path in it.
        picture: the picture, not opened.
        text: the original text; empty without one.
        values: its row or record; empty for a text file.
        raw: the row's line, if it is a line of JSON.
        text_column, image_column: the keys of `values` that hold text and picture.
    """

    id: str
    name: str
    picture: Picture
    text: str
    values: Mapping[str, Any] = field(default_factory=dict)
    raw: bytes | None = None
    text_column: str = "text"
    image_column: str = "file_name"

    @property
    def error(self) -> str:
        """Why the picture has no text, if it failed."""
        return error_of(self.values)

    @property
    def method(self) -> str:
        """The method that wrote the text; empty if unknown."""
        return str(self.values.get("method", ""))

    @property
    def warnings(self) -> list[str]:
        """Reasons to check the caption."""
        return warnings_of(self.values)

    @property
    def times(self) -> list[float]:
        """The times of a clip's frames that the model was shown, in seconds; empty for a picture."""
        found = self.values.get("frames")
        times = found if self.values.get("media") == "video" and isinstance(found, list) else []
        return [float(time) for time in times if isinstance(time, int | float) and 0 <= time < math.inf]

    @property
    def reasoning(self) -> str:
        """The model's reasoning before the text; empty without any."""
        return str(self.values.get("reasoning") or "")

    @property
    def settings(self) -> dict[str, str]:
        """The record's facts about how the text was made."""
        return {name: str(self.values[name]) for name in _SETTINGS if self.values.get(name) not in (None, "")}

    @cached_property
    def things(self) -> list[NamedObject]:
        """The objects that the text names, the least supported first; entries in another format are left out."""
        return things_of(self.values, self.text)

    @property
    def candidates(self) -> list[NamedObject]:
        """The objects that were asked about before the text was written; `low` are those that it may not name."""
        keys = ("candidates", "added", "forbidden")
        lists = [each for key in keys if isinstance(each := self.values.get(key), list)]
        if len(lists) < len(keys):
            return []
        found, added, forbidden = lists
        things = [_thing(entry | {"spans": ()}, {}, 0) for entry in found if isinstance(entry, dict)]
        return [
            replace(one, thing=f"{one.thing} (added)" if one.thing in added else one.thing, low=one.thing in forbidden)
            for one in things
            if one is not None
        ]

    @property
    def support(self) -> float | None:
        """The support of the least supported object; None without a second look."""
        return self.things[0].support if self.things else None


def error_of(values: Mapping[str, Any]) -> str:
    """Return `CaptionItem.error` of a row or record."""
    failed = values.get("status", "ok") != "ok"
    return str(values.get("error") or "failed") if failed else ""


def warnings_of(values: Mapping[str, Any]) -> list[str]:
    """Return `CaptionItem.warnings` of a row or record."""
    found = values.get("warnings")
    return [str(warning) for warning in found] if isinstance(found, list) else []


def things_of(values: Mapping[str, Any], text: str) -> list[NamedObject]:
    """Return `CaptionItem.things` of a row or record with a text."""
    entries = [entry for name in ("objects", "claims") if isinstance(part := values.get(name), list) for entry in part]
    verify = values.get("verify")
    found = [_thing(entry, verify if isinstance(verify, dict) else {}, len(text)) for entry in entries]
    return sorted((thing for thing in found if thing is not None), key=lambda thing: thing.support)


def _threshold(entry: Mapping[str, Any], verify: Mapping[str, Any]) -> float:
    """Return the threshold of a claim; `THRESHOLD` if the record has none, or an unreadable one."""
    try:
        return threshold_of(entry, verify)
    except (TypeError, ValueError, KeyError, AttributeError):
        return THRESHOLD


def _thing(entry: Any, verify: Mapping[str, Any], length: int) -> NamedObject | None:
    try:
        support = float(entry["support"])
        spans = tuple(sorted((int(start), int(end)) for start, end in entry["spans"]))
        name, threshold = shown(entry), _threshold(entry, verify)
    except (TypeError, ValueError, KeyError):
        return None
    if not math.isfinite(support) or any(not 0 <= start <= end <= length for start, end in spans):
        return None
    return NamedObject(name, spans, support, support < threshold)
