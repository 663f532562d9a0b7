"""The log of edits: one line of JSON per change, appended, never rewritten. The captions' own file stays as it is.

    {"schema": "sira.edit/1", "id": "sub/a.jpg", "version": 2, "action": "change", "text": "A cat.",
     "decision": "accepted", "time": "2026-05-04T12:00:00+00:00", "before": {"text": "A dog.", "decision": ""}}

The last line about a picture is its state. `before` is what it was, so that nothing is lost; `action` is
`change`, `undo`, `redo`, or `found`: a text file that another program had changed meanwhile.

Every change names the version that it saw. Under the file's lock the log is first read to its end, so that of two
windows, or two processes, the second gets an error, and nothing is overwritten.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from filelock import lock_descriptor

from sira_cli.data.captions.sidecars import Sidecars
from sira_cli.data.records.continued_file import append_whole
from sira_cli.data.records.lines import as_line
from sira_cli.errors import DataError, SettingsError, SiraError
from sira_cli.files import replacing, writing
from sira_cli.pictures.names import is_utf8
from sira_cli.view.accepted import AcceptedXmp
from sira_cli.view.history import History, State, Version
from sira_cli.view.items import CaptionItem

SCHEMA = "sira.edit/1"
DECISIONS = ("", "accepted", "rejected")
MOST = 100_000  # characters of a text
_BEGINNING = b'{"schema": "sira.edit/'
Action = Literal["change", "undo", "redo", "found"]


class StaleEditError(SiraError):
    """A change did not see the newest version.

    Attributes:
        state: the picture's present state.
    """

    def __init__(self, item: CaptionItem, state: State) -> None:
        super().__init__(f"{item.id}: was changed elsewhere meanwhile: reload it, and change the newest version")
        self.state = state


class Edits:
    """A log of edits. Safe with threads and other processes that use the same file.

    Attributes:
        path: the file; created by the first change.
        history: of all its lines; replaced when another file takes the log's place.
    """

    def __init__(self, path: str | Path, *, sidecars: str | None = None, xmp: AcceptedXmp | None = None) -> None:
        """Read a log.

        Args:
            path: the file.
            sidecars: extension of text files next to the pictures that also get each new text; None: no text files.
            xmp: the XMP sidecars that also get each accepted text; None: none.

        Raises:
            DataError: it is not a log of edits.
        """
        self.path, self._sidecars, self._xmp = Path(path), sidecars, xmp
        self._lock, self.history = threading.Lock(), History()
        self._forget()
        self.refresh()

    @property
    def writes_files(self) -> bool:
        """Whether files next to the pictures also get new texts."""
        return self._sidecars is not None or self._xmp is not None

    def state(self, item: CaptionItem) -> State:
        """Return a picture's state, as of the last `refresh` or change."""
        return self.history.states.get(item.id) or State(0, item.text)

    def refresh(self) -> None:
        """Read lines that others have added since.

        Raises:
            DataError: it is not a log of edits.
        """
        with self._lock, suppress(FileNotFoundError), self._reading(), self.path.open("rb") as file:
            self._catch_up(file)

    def change(self, item: CaptionItem, *, seen: int, text: str | None = None, decision: str | None = None) -> State:
        """Change a text, decide about it, or both.

        Args:
            item: the picture.
            seen: the version that the change applies to.
            text: the new text; None: unchanged.
            decision: one of `DECISIONS`; None: unchanged.

        Raises:
            StaleEditError: it has a newer version; nothing was changed.
            SettingsError: the decision is unknown, or the text is not valid.
            SiraError: it cannot be written; nothing was changed.
        """
        if decision is not None and decision not in DECISIONS:
            raise SettingsError(f"`decision=` {decision!r}: expected accepted, rejected or nothing")
        if text is not None and (len(text) > MOST or not is_utf8(text)):
            raise SettingsError(f"`text=`: expected at most {MOST:,} characters of valid Unicode")
        with self._changing(item, seen) as (file, now):
            new = Version(now.text if text is None else text.strip(), now.decision if decision is None else decision)
            if new != Version(now.text, now.decision) or self._lacks_sidecar(item, new):
                self._write(file, item, "change", now, new)
            return self.state(item)

    def undo(self, item: CaptionItem, *, seen: int) -> State:
        """Undo a picture's last change. The log keeps both.

        Raises:
            StaleEditError: it has a newer version; nothing was changed.
            SettingsError: there is nothing to undo.
            SiraError: it cannot be written; nothing was changed.
        """
        return self._go(item, seen, "undo", self.history.before, "undo")

    def redo(self, item: CaptionItem, *, seen: int) -> State:
        """Redo the change that was undone last, if nothing was changed since.

        Raises:
            StaleEditError: it has a newer version; nothing was changed.
            SettingsError: there is nothing to redo.
            SiraError: it cannot be written; nothing was changed.
        """
        return self._go(item, seen, "redo", self.history.after, "redo")

    def _go(
        self, item: CaptionItem, seen: int, action: Action, steps: Callable[[str], Sequence[Version]], what: str
    ) -> State:
        """Apply the last of some steps of a picture's history."""
        with self._changing(item, seen) as (file, now):
            found = steps(item.id)
            if not found:
                raise SettingsError(f"{item.id}: no change to {what}")
            self._write(file, item, action, now, found[-1])
            return self.state(item)

    def settle(self, items: Iterable[CaptionItem]) -> None:
        """Synchronise files and log: log changes of other programs to text files, write texts that are only in the log.

        Raises:
            DataError: it is not a log.
            SettingsError: a picture can have no text file, or two share one.
            SiraError: something cannot be written.
        """
        self.refresh()
        if self._sidecars is None and self._xmp is None:
            return
        items = list(items)
        if self._sidecars is not None:
            Sidecars([item.picture for item in items], extension=self._sidecars)
        touched = [item for item in items if item.id in self.history.states]
        if self._xmp is not None:
            self._xmp.settle(touched, self.state)
        if self._sidecars is None or not touched:
            return
        with self._lock, self._opened() as file:
            self._catch_up(file)
            for item in touched:
                self._find_sidecar(file, item)
                now = self.state(item)
                if self._lacks_sidecar(item, Version(now.text, now.decision)):
                    self._write_sidecar(item, now.text)

    @contextmanager
    def _changing(self, item: CaptionItem, seen: int) -> Iterator[tuple[Any, State]]:
        """Yield the locked log, and the picture's state by it."""
        with self._lock, self._opened() as file:
            self._catch_up(file)
            if self._sidecars is not None:
                self._find_sidecar(file, item)
            now = self.state(item)
            if now.version != seen:
                raise StaleEditError(item, now)
            yield file, now

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        with writing(self.path):
            file = self.path.open("a+b", buffering=0)
        with file:
            with suppress(OSError):  # this file system has no locks
                lock_descriptor(file.fileno(), poll_interval=0.01)
            self._end_last_line(file)
            yield file

    def _end_last_line(self, file: Any) -> None:
        """Complete a last line that lacks only its newline, as some editors leave it."""
        file.seek(self._end)
        tail = file.read().rpartition(b"\n")[2]
        with suppress(ValueError):
            if json.loads(tail):
                file.write(b"\n")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            self._forget()
            raise
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read: {error.strerror}: give another `edits=`") from error

    def _forget(self) -> None:
        self._end, self._file_id = 0, (0, 0)
        if len(self.history):
            self.history = History()

    def _catch_up(self, file: Any) -> None:
        """Read the lines after the known ones; a torn last line is left out."""
        status = os.fstat(file.fileno())
        if (status.st_dev, status.st_ino) != self._file_id or status.st_size < self._end:
            self._forget()  # another file has taken its place
            self._file_id = (status.st_dev, status.st_ino)
        if status.st_size == self._end:
            return
        file.seek(self._end)
        data = file.read(status.st_size - self._end)
        for line in data[: data.rfind(b"\n") + 1].splitlines(keepends=True):
            try:
                self.history.note(json.loads(line))
            except (ValueError, KeyError, TypeError):
                raise self._foreign() from None
            self._end += len(line)
        if self._end == 0 and not data.startswith(_BEGINNING) and not _BEGINNING.startswith(data):
            raise self._foreign()

    def _foreign(self) -> DataError:
        return DataError(f"{self.path}: holds something other than edits of captions: give another `edits=`")

    def _write(self, file: Any, item: CaptionItem, action: Action, now: State, new: Version) -> None:
        """Append a line, then write the text file, if there is one."""
        record = {
            "schema": SCHEMA,
            "id": item.id,
            "version": now.version + 1,
            "action": action,
            "text": new.text,
            "decision": new.decision,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "before": {"text": now.text, "decision": now.decision},
        }
        if self._sidecars is not None and action != "found":
            item.picture.text_file(self._sidecars)  # the place must be valid before anything is written
        was = Version(now.text, now.decision)
        if self._xmp is not None:
            self._xmp.check(item, was, new)
        line = as_line(record)
        file.truncate(self._end)  # left half written by a killed process
        append_whole(self.path, file, self._end, line)
        with writing(self.path):
            os.fsync(file.fileno())
        self._end += len(line)
        self.history.note(record)
        if action != "found" and self._lacks_sidecar(item, new):
            self._write_sidecar(item, new.text)
        if self._xmp is not None:
            self._xmp.write(item, was, new)

    def _write_sidecar(self, item: CaptionItem, text: str) -> None:
        with replacing(item.picture.text_file(self._sidecars or "")) as file:
            file.write(f"{text}\n".encode())

    def _lacks_sidecar(self, item: CaptionItem, new: Version) -> bool:
        """Return whether a text file must be written: not for rejected captions."""
        return self._sidecars is not None and new.decision != "rejected" and self._in_sidecar(item) != new.text

    def _in_sidecar(self, item: CaptionItem) -> str | None:
        try:
            data = item.picture.text_file(self._sidecars or "").read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SiraError(f"{item.id}: its text file cannot be read: {error.strerror}") from error
        return data.decode("utf-8-sig", "backslashreplace").strip()

    def _find_sidecar(self, file: Any, item: CaptionItem) -> None:
        """Log the text of a file that another program changed, as the newest version."""
        there, now = self._in_sidecar(item), self.state(item)
        known = {
            now.text,
            *(was.text for was in self.history.before(item.id)),
        }  # that of an edit that was not written yet
        if there is not None and there not in known:
            self._write(file, item, "found", now, Version(there, now.decision))
