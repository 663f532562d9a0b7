"""What the server tells the page, ready for JSON."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from sira_cli.view.collection import Collection
from sira_cli.view.compared import Compared
from sira_cli.view.edits import Edits
from sira_cli.view.history import State
from sira_cli.view.items import Item


class Answers:
    """A collection, its edits, and perhaps another collection to compare with, as JSON."""

    def __init__(self, captions: Collection, edits: Edits, compared: Compared | None) -> None:
        """Args: what is shown."""
        self._captions, self._edits, self._compared = captions, edits, compared
        self._stamp = secrets.token_hex(8)  # browsers keep pictures by their address

    def index(self) -> dict[str, Any]:
        """Return all of it, in brief: what is the usual case is left out."""
        self._edits.refresh()
        captions, compared = self._captions, self._compared
        return {
            "title": captions.source.resolve().name,
            "stamp": self._stamp,
            "other": None if compared is None else compared.other.source.resolve().name,
            "edits": str(self._edits.path),
            "broken": captions.broken,
            "missing": len(captions.missing),
            "methods": len({item.method for item in captions.items}),
            "items": [self.brief(number) for number in range(len(captions))],
        }

    def brief(self, number: int) -> dict[str, Any]:
        """Return one item as the gallery needs it."""
        item = self._captions.items[number]
        state = self._edits.state(item)
        low = [list(span) for thing in item.things if thing.low for span in thing.spans]
        partner = None if self._compared is None else self._compared.partner(number)
        found: dict[str, Any] = {
            "name": item.name,
            "id": "" if item.id == item.name else item.id,
            "text": state.text,
            "version": state.version,
            "edited": state.text != item.text,
            "decision": state.decision,
            "low": low if state.text == item.text else [],
            "error": item.error if state.text == item.text else "",
            "warnings": len(item.warnings),
            "method": item.method,
            "missing": number in self._captions.missing,
            "differs": partner is not None and partner.text != state.text,
            "alone": self._compared is not None and partner is None,
        }
        brief = {name: value for name, value in found.items() if value or name == "text"}
        return brief if item.support is None else brief | {"support": round(item.support, 4)}

    def whole(self, number: int) -> dict[str, Any]:
        """Return one item with all that is known about it."""
        item = self._captions.items[number]
        state = self._edits.state(item)
        found: dict[str, Any] = {
            "brief": self.brief(number),
            "state": asdict(state),
            "original": item.text,
            "error": item.error,
            "warnings": item.warnings,
            "things": [asdict(thing) for thing in item.things],
            "settings": item.settings,
        }
        partner = None if self._compared is None else self._compared.partner(number)
        if partner is not None:
            found["other"] = {"text": partner.text, "error": partner.error, "method": partner.method}
            found["differences"] = self.differences([number])[0]
        return found

    def differences(self, numbers: Iterable[int]) -> list[list[list[str]]]:
        """Return stretches of some items' texts: `[both]`, or `[of the other, of this one]`."""
        if self._compared is None:
            return []
        return [
            [
                [stretch.b] if stretch.equal else [stretch.a, stretch.b]
                for stretch in self._compared.stretches(number, self._text(self._captions.items[number]))
            ]
            for number in numbers
        ]

    def _text(self, item: Item) -> str:
        state: State = self._edits.state(item)
        return state.text
