"""A picture as a data URL, for servers."""

from __future__ import annotations

import base64
import io

from PIL import Image

from sira_cli.pictures.opening import decode_picture

_EVERYWHERE = {"JPEG": "jpeg", "PNG": "png"}  # read by every server, as kinds of `image/`
_LOSSLESS = 2**22  # pixels; a larger picture that is encoded again becomes a JPEG
_ORIENTATION = 0x0112  # tag of EXIF; 1 is upright


def data_url(name: str, data: bytes) -> tuple[str, tuple[str, ...]]:
    """Return a picture as a data URL, and warnings about it.

    The file's own bytes are kept if every server decodes them as `decode_picture` does: an upright JPEG or PNG in RGB
    or grey.
    """
    image, warnings = decode_picture(name, data)
    with Image.open(io.BytesIO(data)) as file:
        plain = file.mode in ("RGB", "L") and "transparency" not in file.info and file.size == image.size
        if plain and file.format in _EVERYWHERE and file.getexif().get(_ORIENTATION, 1) == 1:
            return _encoded(_EVERYWHERE[file.format], data), warnings
    return encoded(image), warnings


def encoded(image: Image.Image) -> str:
    """Encode a picture as a data URL: PNG, or JPEG if it is large."""
    kind, file = "png" if image.width * image.height <= _LOSSLESS else "jpeg", io.BytesIO()
    image.save(file, kind, **({} if kind == "png" else {"quality": 95, "subsampling": 0}))
    return _encoded(kind, file.getvalue())


def _encoded(kind: str, data: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
