"""Camera RAW files: of them the preview is read that the camera put there, by LibRaw (extra `raw`).

It is the picture as the camera shows it, and takes milliseconds. To develop the samples takes seconds and much memory.
"""

from __future__ import annotations

import functools
import importlib.util
import io
from pathlib import PurePath

from sira_cli.errors import PictureError
from sira_cli.pictures.names import one_line

# Told by their names: many are TIFF by their bytes, and Pillow shows a stamp that is in them.
_KINDS = "cr2 cr3 crw nef nrw arw srf sr2 dng orf rw2 raf pef srw x3f 3fr"
RAW = frozenset(f".{kind}" for kind in _KINDS.split())
REMEDY = "pip install 'sira-cli[raw]'"
SMALLEST = 512  # pixels of the longer side: smaller previews do not show what is in the picture
_CONVERT = "convert it to JPEG"


def is_raw(name: str) -> bool:
    """Return whether a file is a camera's RAW file by its name."""
    return PurePath(name).suffix.lower() in RAW


@functools.cache
def can_read_raw() -> bool:
    """Return whether the extra `raw` is installed."""
    return importlib.util.find_spec("rawpy") is not None


def preview(name: str, data: bytes) -> bytes:
    """Return the JPEG inside a RAW file, upright by its EXIF. Safe in threads.

    Args:
        name: of the picture, for messages.
        data: of its file.

    Raises:
        PictureError: the extra is missing, the file is damaged, or it has no JPEG inside.
    """
    shown = one_line(name)
    if not can_read_raw():
        raise PictureError(f"{shown}: is a camera's RAW file: {REMEDY}")
    import rawpy

    try:
        with rawpy.imread(io.BytesIO(data)) as raw:
            found = raw.extract_thumb()
    except rawpy.LibRawError as error:
        reason = error.args[0] if error.args else type(error).__name__
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise PictureError(f"{shown}: its preview cannot be read: {text}; {_CONVERT}") from None
    if found.format != rawpy.ThumbFormat.JPEG:
        raise PictureError(f"{shown}: its preview is no JPEG; {_CONVERT}")
    return bytes(found.data)


def check_size(name: str, width: int, height: int) -> None:
    """Check that a preview is large enough to see something.

    Raises:
        PictureError: it is too small.
    """
    if max(width, height) < SMALLEST:
        raise PictureError(f"{one_line(name)}: its preview has only {width} x {height} pixels; {_CONVERT}")
