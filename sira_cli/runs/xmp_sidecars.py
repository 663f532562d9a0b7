"""Where each picture's XMP is, and what is written there."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sira_cli.data.captions.sidecars import Sidecars
from sira_cli.data.xmp.packet import TEXT, Packet
from sira_cli.data.xmp.places import XmpName, read_bytes, read_packet, xmp_file
from sira_cli.errors import DataError, SiraError
from sira_cli.files import make_folder, replacing
from sira_cli.pictures.picture import Picture
from sira_cli.runs.xmp import Described, is_described, merged

_TRIES = 20  # to put a description into a file that others change at the same time


class XmpSidecars(Sidecars):
    """The XMP sidecars of a run."""

    def __init__(
        self,
        pictures: Iterable[Picture],
        *,
        output_dir: Path | None = None,
        overwrite: bool = False,
        name: XmpName | None = None,
        checks: bool = False,
    ) -> None:
        """Find every picture's place.

        Args:
            pictures, output_dir, overwrite: as for `Sidecars`.
            name: as for `xmp_file`.
            checks: the run looks at descriptions that exist, so that none of them ends the work on a picture.

        Raises:
            SettingsError: as `Sidecars`, or the extra `xmp` is missing.
        """
        Packet()
        self._name, self._checks = name, checks
        super().__init__(pictures, extension=".xmp", output_dir=output_dir, overwrite=overwrite)

    def place(self, picture: Picture) -> Path:
        """Return the sidecar of a picture."""
        return xmp_file(picture, super().place(picture), self._name)

    def text(self, picture: Picture) -> str:
        """Return the description in a picture's sidecar; empty if it has none."""
        packet = read_packet(self.place(picture))
        return "" if packet is None else packet.text(TEXT)

    def is_there(self, picture: Picture) -> bool:
        """Return whether a picture's sidecar has what the run makes."""
        packet = None if self._checks else read_packet(self.place(picture))
        return packet is not None and is_described(packet)

    def refusal(self, picture: Picture) -> str:
        """Return why nothing can be put into a picture's sidecar; empty if it can."""
        place = self.place(picture)
        try:
            Packet(read_bytes(place))
        except DataError as error:
            return f"{place}: {error}: mend this sidecar, or move it away"
        return ""

    def describe(self, picture: Picture, record: Mapping[str, Any]) -> None:
        """Put the description in a record into the sidecar. One that cannot be read stays as it is, with a warning.

        Raises:
            SiraError: the file cannot be written.
        """
        place = self.place(picture)
        try:
            describe(place, Described.of(record), overwrite=self._overwrite)
        except DataError as error:
            logging.getLogger(__name__).warning("%s: is left as it is: %s", place, error)


def describe(place: Path, described: Described, *, overwrite: bool = False, replaces: Collection[str] = ()) -> bool:
    """Put a description into a sidecar, as `merged` does; return whether it is there.

    Raises:
        DataError: the sidecar cannot be read, or is not XMP.
        SiraError: it cannot be written.
    """
    for _ in range(_TRIES):
        there = read_bytes(place)
        packet = merged(Packet(there), described, overwrite=overwrite, replaces=replaces)
        if packet is None or (content := packet.to_bytes()) == there:
            return packet is not None
        make_folder(place.parent)
        with suppress(_ChangedError):
            with replacing(place) as file:
                file.write(content)
                if read_bytes(place) != there:
                    raise _ChangedError
            return True
    raise SiraError(f"{place}: is changed all the time by another program: run the command again later")


class _ChangedError(Exception):
    """Another program has changed the file meanwhile."""
