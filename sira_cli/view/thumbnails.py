"""Pictures for the page: small JPEG files, made on request, the last ones cached in memory."""

from __future__ import annotations

import io
import math
import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Sequence

from PIL import Image

from sira_cli.errors import PictureError
from sira_cli.pictures.clip import Sampling, Timeline, at_times, evenly
from sira_cli.pictures.opening import small_pictures
from sira_cli.view.collection import Collection
from sira_cli.view.items import CaptionItem

SMALL, LARGE = 480, 1600  # pixels of the longer side
_GAP = 4  # pixels between the pictures of a group, and the frames of a clip
_FEW, _MANY = 4, 16  # frames of a clip that are shown, small and large
_KEPT = 2**26  # bytes of all that is kept
_AT_ONCE = max(1, min(4, os.cpu_count() or 1))  # a large picture takes hundreds of megabytes while it is decoded


class Thumbnails:
    """The pictures of a collection, made small. Thread-safe."""

    def __init__(self, captions: Collection, kept: int = _KEPT) -> None:
        """Args: the collection, and the maximum number of cached bytes."""
        self._captions, self._most = captions, kept
        self._made: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._size = 0
        self._lock, self._places = threading.Lock(), threading.BoundedSemaphore(_AT_ONCE)

    def jpeg(self, number: int, side: int) -> bytes:
        """Return a picture as JPEG.

        Args:
            number: of the item.
            side: longest side, in pixels.

        Raises:
            PictureError: the picture cannot be opened.
            GoneError: the item no longer exists.
        """
        key = (number, side)
        with self._lock:
            if key in self._made:
                self._made.move_to_end(key)
                return self._made[key]
        with self._places:
            data = self._make(self._captions.item(number), side)
        with self._lock:
            if key not in self._made:
                self._made[key] = data
                self._size += len(data)
            while self._size > self._most:
                _, dropped = self._made.popitem(last=False)
                self._size -= len(dropped)
        return data

    def _make(self, item: CaptionItem, side: int) -> bytes:
        picture = item.picture
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's remarks on odd metadata
            try:
                frames = _frames(item.times, _FEW if side == SMALL else _MANY)
                files = picture.files(picture.file_content())
                image = _side_by_side([one for each in files for one in small_pictures(*each, side, frames)], side)
                file = io.BytesIO()
                image.save(file, "JPEG", quality=88)
            except (OSError, MemoryError) as error:
                raise PictureError(f"{picture.shown}: cannot be shown: {error}") from error
        return file.getvalue()


def _frames(times: Sequence[float], most: int) -> Sampling:
    """Return the choice of a clip's frames that stand for it: those that the model was shown, some of them if many."""
    if not times:
        return Sampling(frames=most)
    few = Timeline(len(times), 1.0, 1, 1)
    return Sampling(rule=at_times([times[number] for number in evenly(few, most, None)]))


def _side_by_side(images: Sequence[Image.Image], side: int) -> Image.Image:
    """Return pictures of a group, or frames of a clip, as one that fits into a square: in rows, on white."""
    if len(images) == 1:
        return images[0]
    columns = math.ceil(math.sqrt(len(images)))
    each = side // columns
    sheet = Image.new("RGB", (columns * each, math.ceil(len(images) / columns) * each), "white")
    for number, image in enumerate(images):
        image.thumbnail((each - _GAP, each - _GAP), Image.Resampling.BICUBIC)
        row, column = divmod(number, columns)
        sheet.paste(image, (column * each, row * each))
    return sheet
