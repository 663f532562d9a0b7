"""Work on many pictures, several at a time; some may fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from sira_cli.errors import PictureError, SiraError
from sira_cli.pictures.names import one_line
from sira_cli.pictures.picture import OpenedPicture, Picture

T = TypeVar("T")


def each_picture(
    pictures: Iterable[Picture], work: Callable[[Sequence[OpenedPicture]], Sequence[T]], batch_size: int = 1
) -> Iterator[tuple[Picture, T | PictureError]]:
    """Yield every picture with the result of `work`, or with its error; the others go on.

    Args:
        pictures: in any number.
        work: does something with several opened pictures, and returns one result for each.
        batch_size: pictures that `work` gets at once. A batch that fails is tried again picture by picture.

    Raises:
        SiraError: about the model or the settings.
    """
    remaining = iter(pictures)
    while batch := list(islice(remaining, batch_size)):
        opened: list[OpenedPicture] = []
        failed: dict[int, PictureError] = {}
        for number, picture in enumerate(batch):
            try:
                opened.append(picture.open())
            except PictureError as error:
                failed[number] = error
        results = iter(_worked(opened, work))
        for number, picture in enumerate(batch):
            yield picture, failed[number] if number in failed else next(results)


def _worked(
    opened: list[OpenedPicture], work: Callable[[Sequence[OpenedPicture]], Sequence[T]]
) -> list[T | PictureError]:
    """Return the result of each of a batch's pictures."""
    if not opened:
        return []
    try:
        return list(work(opened))
    except PictureError as error:
        failure: PictureError = error
    except SiraError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        failure = PictureError(f"{one_line(opened[0].name)}: {type(error).__name__}: {reason}")
    if len(opened) == 1:
        return [failure]
    return [result for each in opened for result in _worked([each], work)]
