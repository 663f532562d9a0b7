"""The picture of a trace: found, compared with the traced one, and reduced for embedding."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image

from sira_cli.analysis.trace.read import Trace
from sira_cli.errors import PictureError
from sira_cli.pictures.names import one_line
from sira_cli.pictures.picture import OpenedPicture
from sira_cli.pictures.sources import recorded

LONGEST_SIDE = 640  # pixels
_UPWARDS = re.compile(r"^(\.\.?/)+(?=.)")  # the way from the trace to the picture is not its name


@dataclass(frozen=True)
class Shown:
    """The picture on the page.

    Attributes:
        name: of the picture, in one line.
        uri: a `data:` URI; empty without a picture.
        width, height: of the embedded picture; of the traced one without it.
        note: a warning; empty if it is the traced one.
        more: of a group, the other pictures.
    """

    name: str
    uri: str
    width: int
    height: int
    note: str
    more: tuple[Shown, ...] = ()

    @property
    def group(self) -> tuple[Shown, ...]:
        """All of its pictures."""
        return (self, *self.more)


def find_picture(trace: Trace) -> Shown:
    """Look for the picture next to the trace, in the current folder, where it was; prefer the traced one."""
    if trace.run is None:
        return Shown("", "", 0, 0, "the run failed before it opened a picture")
    image, file_name = trace.run.image, trace.run.file_name
    name = _UPWARDS.sub("", one_line(file_name or image.path or "stdin"))
    problem, replaced = "", None
    near_trace = [] if trace.path is None else [(file_name, trace.path.parent)]
    for place, folder in dict.fromkeys((*near_trace, (file_name, Path()), (image.path, Path()))):
        if not place or not (found := recorded(place, folder)).is_here():  # nothing is fetched for a page
            continue
        try:
            picture = found.open()
        except PictureError as error:
            problem = problem or str(error)
            continue
        if picture.sha256 == image.sha256:
            return _embedded(name, picture, "")
        replaced = replaced or picture
    if replaced is not None:
        note = "This is not the picture that was traced: the file was replaced or changed since (its sha256 differs)."
        return _embedded(name, replaced, note)
    return Shown(
        name, "", image.width, image.height, problem or "not found; put it next to the trace and make the page again"
    )


def _embedded(name: str, picture: OpenedPicture, note: str) -> Shown:
    first, *more = [small(name, image) for image in picture.images]
    return replace(first, note=note, more=tuple(more))


def small(name: str, image: Image.Image, side: int = LONGEST_SIDE) -> Shown:
    """Return a picture for embedding, with its longest side reduced to `side` pixels."""
    image = image.copy()
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    data = io.BytesIO()
    image.save(data, "WEBP", quality=80, method=2)  # of JPEG's size 60 %; a better method takes twice as long for 4 %
    uri = "data:image/webp;base64," + base64.b64encode(data.getvalue()).decode()
    return Shown(name, uri, image.width, image.height, "")
