"""Texts and facts in a picture's metadata: XMP in a sidecar, XMP and IPTC inside the file."""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from PIL import Image, IptcImagePlugin

from sira_cli.data.xmp.packet import TEXT, Packet
from sira_cli.data.xmp.places import read_bytes, xmp_file
from sira_cli.errors import DataError, PictureError, SettingsError
from sira_cli.pictures.opening import opened_header
from sira_cli.pictures.picture import Picture

_CAPTION = (2, 120)  # of IPTC's records: Caption-Abstract
_UTF8 = b"\x1b%G"  # says so in the record (1, 90)


@dataclass(frozen=True)
class Metadata:
    """The metadata of a picture, read on demand.

    Attributes:
        picture: the picture.
        data: the content of its file; None: read on demand.
    """

    picture: Picture
    data: bytes | None = None

    @cached_property
    def sidecar(self) -> Packet | None:
        """XMP next to the picture; None if it has none, or an unreadable one."""
        with suppress(DataError):
            return self._read_sidecar()
        return None

    @cached_property
    def sidecar_file(self) -> Path | None:
        """Path of the XMP next to the picture; None if it can have none."""
        with suppress(SettingsError):
            return xmp_file(self.picture, self.picture.text_file(".xmp"))
        return None

    @cached_property
    def image(self) -> Image.Image | None:
        """The picture's file with only its header read; None if unreadable."""
        with suppress(PictureError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's remarks on odd metadata
            # Without the name: of a RAW file its own metadata, not those of its preview.
            return opened_header("", self.data or self.picture.read())
        return None

    @cached_property
    def embedded(self) -> Packet | None:
        """XMP in the picture's file; None if it has none, or an unreadable one."""
        with suppress(DataError):
            return self._read_embedded()
        return None

    def _read_sidecar(self) -> Packet | None:
        data = None if self.sidecar_file is None else read_bytes(self.sidecar_file)
        return None if data is None else Packet(data)

    def _read_embedded(self) -> Packet | None:
        data = None if self.image is None else self.image.info.get("xmp") or self.image.info.get("XML:com.adobe.xmp")
        return Packet(data.encode() if isinstance(data, str) else bytes(data).rstrip(b"\0")) if data else None

    @cached_property
    def iptc(self) -> dict[tuple[int, int], list[str]]:
        """IPTC values by record and number."""
        found: dict[tuple[int, int], Any] = {}
        if self.image is not None:
            with suppress(Exception):  # Pillow's reader trusts the lengths that are written there
                found = IptcImagePlugin.getiptcinfo(self.image) or {}  # type: ignore[arg-type] # it is from a file
        encoding = "utf-8" if found.get((1, 90)) == _UTF8 else "latin-1"
        values = {name: value if isinstance(value, list) else [value] for name, value in found.items()}
        return {name: [_decoded(each, encoding) for each in value] for name, value in values.items()}

    def caption(self) -> tuple[str, str] | None:
        """Return the text about the picture and its place; None without one.

        Raises:
            DataError: the picture's XMP cannot be read.
        """
        name = "" if self.sidecar_file is None else self.sidecar_file.name
        for read, where in ((self._read_sidecar, name), (self._read_embedded, "XMP in the picture")):
            try:
                packet = read()
            except DataError as error:
                raise DataError(f"{where}: {error}") from error
            if packet is not None and (text := packet.text(TEXT)):
                return text, where
        text = next(iter(self.iptc.get(_CAPTION, ())), "").strip()
        return (text, "IPTC in the picture") if text else None


def _decoded(value: bytes, encoding: str) -> str:
    with suppress(UnicodeDecodeError):
        return value.decode("utf-8")  # many programs write it without saying so
    return value.decode(encoding, "replace")
