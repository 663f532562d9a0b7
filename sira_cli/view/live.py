"""Captions and edits as they are on disk now: a thread reads changes, so that no request waits for them."""

from __future__ import annotations

import sqlite3
import threading
import time

from sira_cli.errors import SiraError
from sira_cli.view.collection import Collection, GoneError
from sira_cli.view.compared import OtherCaptions
from sira_cli.view.edits import Edits
from sira_cli.view.history import State
from sira_cli.view.index import DECISIONS
from sira_cli.view.items import CaptionItem
from sira_cli.view.reading import said_of

PATIENCE = 2.0  # seconds that the page waits for all to be read before it shows a part
_QUICK = 0.05  # seconds that a look may take before each change
_MOMENT = 0.3  # seconds that a look may take before the page gets the earlier state
_PAUSE = 1.0  # seconds between two looks at the disk
_SHARE, _LONGEST = 20, 30.0  # a long look is followed by a pause: this multiple of its time, or seconds


class Live:
    """The shown captions, kept up to date. Thread-safe.

    Attributes:
        captions, edits, compared: as given.
        records: incremented when captions or pictures appear or disappear.
        changes: incremented by each edit.
        ready: whether all was read once.
        trouble: the error of the last reading; None without one.
    """

    def __init__(self, captions: Collection, edits: Edits, compared: OtherCaptions | None) -> None:
        """Args: what is shown."""
        self.captions, self.edits, self.compared = captions, edits, compared
        self.records, self.changes, self.ready = 0, 0, False
        self.trouble: SiraError | None = None
        self._history, self._noted, self._version = edits.history, 0, -1
        self._updating, self._wanted, self._done = threading.RLock(), threading.Event(), threading.Event()
        self._cost = 0.0  # seconds of the last reading
        self._begun: float | None = None  # when the reading that goes on began
        self._next, self._ended, self._thread = 0.0, False, threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        """Begin to read; a reading shorter than `PATIENCE` is complete when this returns."""
        if not self._thread.is_alive() and not self._ended:
            self._wanted.set()
            self._thread.start()
            self._done.wait(PATIENCE)

    def close(self) -> None:
        """End the thread."""
        self._ended = True
        self._wanted.set()

    def look(self) -> None:
        """Let the thread look at the disk, unless it just did, and wait a moment for it."""
        if self._thread.is_alive() and time.monotonic() >= self._next:
            self._done.clear()
            self._wanted.set()
            self._done.wait(_MOMENT)

    @property
    def done(self) -> float:
        """The share that was read, 0 to 1, during a long reading."""
        begun = self._begun
        return self.captions.done if begun is not None and time.monotonic() > begun + _MOMENT else float(self.ready)

    def update(self) -> None:
        """Read changes on disk now.

        Raises:
            SiraError: it cannot be read.
        """
        with self._updating:
            self._begun = begun = time.monotonic()
            try:
                self._update()
            finally:
                self._begun = None
                self._cost = took = time.monotonic() - begun
                self._next = time.monotonic() + max(_PAUSE, min(_SHARE * took, _LONGEST + took))

    def prepare_change(self) -> None:
        """Read changes on disk before an edit, unless they were just read and reading is slow.

        Raises:
            SiraError: it cannot be read.
        """
        if self._cost < _QUICK or time.monotonic() >= self._next:
            self.update()

    def note_change(self) -> None:
        """Note a change made here.

        Raises:
            SiraError: the log cannot be read.
        """
        with self._updating:
            if self.edits.writes_files:
                self.captions.overlook()
            self._lay_edits()

    def _update(self) -> None:
        others = self.compared is not None and self.compared.other.catch_up()
        if self.captions.catch_up() or others or not self.ready:
            self.captions.check_found()
            if self.compared is not None:
                self.compared.find_pairs()
            self.records += 1
        self._lay_edits()
        self.ready = True

    def _work(self) -> None:
        while True:
            self._wanted.wait()
            if self._ended:
                return
            self._wanted.clear()
            try:
                self.update()
                self.trouble = None
                if self.captions.look_for_pictures(lambda: not self._ended):
                    self.records += 1
            except SiraError as error:
                self.trouble = error
            except (OSError, sqlite3.Error) as error:  # the disk is full, say
                self.trouble = SiraError(f"{self.captions.source}: its index cannot be written: {error}")
            self._done.set()

    def state(self, item: CaptionItem) -> State:
        """Return a caption's state."""
        return self.edits.state(item)

    def lay(self, number: int) -> None:
        """Note in the index a caption's state by the edits.

        Raises:
            GoneError: it no longer exists.
        """
        item = self.captions.item(number)
        state, index = self.edits.state(item), self.captions.index
        index.change("decision", [(DECISIONS.index(state.decision), number)])
        said = said_of(state.text, item.name)
        index.change_text(
            number, said=said, length=len(state.text), text=hash(state.text), edited=state.text != item.text
        )

    def _lay_edits(self) -> None:
        """Apply new lines of the log; all lines after a reading, and for another log."""
        self.edits.refresh()
        history, before = self.edits.history, self._history
        if history is not before:
            names = {*before.states, *history.states}
        elif self.captions.version != self._version:
            names = {*history.states}
        else:
            names = {*history.noted(self._noted)}
        if history is not before or len(history) != self._noted:
            self.changes += 1
        for name in names:
            number = self.captions.find(name)
            if number is not None:
                try:
                    self.lay(number)
                except GoneError:
                    continue
        self._history, self._noted, self._version = history, len(history), self.captions.version
