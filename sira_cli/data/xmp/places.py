"""The path of a picture's XMP sidecar: `photo.jpg.xmp` or `photo.xmp`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Literal

from sira_cli.data.wrapped import WrappedPicture
from sira_cli.data.xmp.packet import Packet
from sira_cli.errors import DataError
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.single import FilePicture

SHORT = "photo.xmp"
XmpName = Literal["photo.jpg.xmp", "photo.xmp"]


def xmp_file(picture: Picture, shorter: Path, name: XmpName | None = None) -> Path:
    """Return the sidecar of a picture: `photo.jpg.xmp` or `photo.xmp`.

    Args:
        picture: the picture; one inside another file has the shorter name.
        shorter: the place with the shorter name.
        name: the form of the name; None: that of the file that exists, else the longer one.
    """
    while isinstance(picture, WrappedPicture):
        picture = picture.picture
    if not isinstance(picture, FilePicture) or name == SHORT:
        return shorter
    longer = shorter.with_name(f"{Path(picture.location).name}.xmp")
    return shorter if name is None and shorter.exists() and not longer.exists() else longer


def read_packet(place: Path) -> Packet | None:
    """Return the content of a sidecar; None if it cannot be read, or does not exist."""
    with suppress(DataError):
        return None if (data := read_bytes(place)) is None else Packet(data)
    return None


def read_bytes(place: Path) -> bytes | None:
    """Return the bytes of a sidecar; None without one.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        return place.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}") from error
