"""The server's answers to the page, ready for JSON."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from sira_cli.view.collection import GoneError
from sira_cli.view.items import CaptionItem
from sira_cli.view.live import Live


class PageAnswers:
    """A collection, its edits, and perhaps another collection to compare with, as JSON."""

    def __init__(self, live: Live) -> None:
        """Args: what is shown."""
        self._live, self._captions, self._compared = live, live.captions, live.compared
        self._stamp = secrets.token_hex(8)  # browsers keep pictures by their address
        self._counted: tuple[tuple[int, int, int], tuple[int, int, int]] = ((-1, -1, -1), (0, 0, 0))
        self._next_count = 0.0

    def now(self) -> dict[str, Any]:
        """Return counts of captions; `records` and `changes` change whenever something new exists."""
        live, captions, compared = self._live, self._captions, self._compared
        total, decided, missing = self._figures()
        return {
            "title": captions.source.resolve().name,
            "stamp": self._stamp,
            "other": None if compared is None else compared.other.source.resolve().name,
            "edits": str(live.edits.path),
            "records": live.records + captions.version,
            "changes": live.changes,
            "total": total,
            "decided": decided,
            "missing": missing,
            "broken": captions.broken,
            "methods": captions.methods,
            "done": live.done,
            "trouble": "" if live.trouble is None else str(live.trouble),
        }

    def _figures(self) -> tuple[int, int, int]:
        """Return the number of captions, of decided ones, and of missing pictures; cached for a while."""
        live, begun = self._live, time.monotonic()
        now = (live.records, live.changes, self._captions.version)
        if self._counted[0] != now and (live.done == 1 or begun > self._next_count):
            query = "SELECT count(*), total(decision > 0), total(missing) FROM items WHERE NOT gone"
            total, decided, missing = self._captions.index.ask(query)[0]
            self._counted = now, (total, int(decided), int(missing))
            self._next_count = begun + 20 * (time.monotonic() - begun)
        return self._counted[1]

    def briefs(self, numbers: Iterable[int]) -> list[dict[str, Any] | None]:
        """Return some items for the gallery; None for one that is gone."""
        found: dict[int, dict[str, Any] | None] = {}
        for number in numbers:
            try:
                found[number] = self._brief(number, self._captions.item(number))
            except GoneError:
                found[number] = None
        missing = [("missing" in brief, number) for number, brief in found.items() if brief is not None]
        self._captions.index.change("missing", missing)  # it was checked just now
        return [*found.values()]

    def _brief(self, number: int, item: CaptionItem) -> dict[str, Any]:
        state = self._live.state(item)
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
            "missing": item.picture.is_missing(),
            "differs": partner is not None and partner.text != state.text,
            "alone": self._compared is not None and partner is None,
        }
        brief = {name: value for name, value in found.items() if value or name == "text"}
        return brief if item.support is None else brief | {"support": round(item.support, 4)}

    def whole(self, number: int) -> dict[str, Any]:
        """Return one item with all its facts.

        Raises:
            GoneError: it no longer exists.
        """
        item = self._captions.item(number)
        state = self._live.state(item)
        found: dict[str, Any] = {
            "brief": self._brief(number, item),
            "state": asdict(state),
            "original": item.text,
            "error": item.error,
            "warnings": item.warnings,
            "reasoning": item.reasoning,
            "things": [asdict(thing) for thing in item.things],
            "candidates": [asdict(thing) for thing in item.candidates],
            "settings": item.settings,
        }
        partner = None if self._compared is None else self._compared.partner(number)
        if partner is not None:
            found["other"] = {"text": partner.text, "error": partner.error, "method": partner.method}
            found["differences"] = self.differences([number])[0]
        return found

    def differences(self, numbers: Iterable[int]) -> list[list[list[str]]]:
        """Return the stretches of some items' texts: `[common]`, or `[other's, this one's]`.

        Raises:
            GoneError: one no longer exists.
        """
        if self._compared is None:
            return []
        return [
            [
                [stretch.b] if stretch.equal else [stretch.a, stretch.b]
                for stretch in self._compared.stretches(number, self._live.state(self._captions.item(number)).text)
            ]
            for number in numbers
        ]
