"""Accepted texts in XMP sidecars: marked as reviewed, as long as they are accepted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from sira_cli.data.captions.files import is_record, with_text
from sira_cli.data.xmp.packet import Packet
from sira_cli.data.xmp.places import XmpName, read_bytes, read_packet, xmp_file
from sira_cli.errors import DataError, SettingsError
from sira_cli.runs.xmp import Described, merged
from sira_cli.runs.xmp_sidecars import describe
from sira_cli.view.history import State, Version
from sira_cli.view.items import CaptionItem

ACCEPTED = "accepted"


class AcceptedXmp:
    """The XMP sidecars of reviewed pictures."""

    def __init__(self, name: XmpName | None = None) -> None:
        """Check the requirements.

        Args:
            name: as for `xmp_file`.

        Raises:
            SettingsError: the extra `xmp` is missing.
        """
        Packet()
        self._name = name

    def check(self, item: CaptionItem, now: Version, new: Version) -> None:
        """Check that a decision can be written, before it is made.

        Raises:
            SettingsError: the sidecar has a text of somebody else, cannot be read, or the picture has no place for one.
        """
        if new.decision != ACCEPTED:
            return
        place = self._place(item)
        try:
            there = Packet(read_bytes(place))
        except DataError as error:
            raise SettingsError(f"{place}: {error}: mend this sidecar, or move it away; nothing was changed") from error
        if merged(there, _described(item, new), replaces=(item.text, now.text)) is None:
            raise SettingsError(
                f"{place}: has another description, which sira did not write: remove it there, or look through the "
                "captions without `xmp=`; nothing was changed"
            )

    def write(self, item: CaptionItem, now: Version, new: Version) -> None:
        """Write that a text is accepted, or no longer accepted.

        Raises:
            DataError: the sidecar cannot be read.
            SiraError: the sidecar cannot be written.
        """
        if ACCEPTED not in (now.decision, new.decision):
            return
        place = self._place(item)
        if new.decision != ACCEPTED and read_packet(place) is None:
            return
        describe(place, _described(item, new), replaces=(item.text, now.text))

    def _place(self, item: CaptionItem) -> Path:
        return xmp_file(item.picture, item.picture.text_file(".xmp"), self._name)

    def settle(self, items: Iterable[CaptionItem], state: Callable[[CaptionItem], State]) -> None:
        """Write accepted texts that are only in the log; errors as `write`."""
        for item in items:
            now = state(item)
            self.write(item, Version(item.text, ""), Version(now.text, now.decision))


def _described(item: CaptionItem, new: Version) -> Described:
    """Return the XMP description of a reviewed text, with its record if it has one."""
    reviewed = new.decision == ACCEPTED
    if not is_record(item.values):
        return Described(new.text, facts={"reviewed": "yes" if reviewed else "no"})
    values = item.values if new.text == item.text else with_text(item.values, item.text_column, new.text)
    return Described.of({"text": new.text, **values}, reviewed=reviewed)
