"""Which rows of one forward belong to the contrast stream: known on the host, without a look at the device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[Any]
NONE = np.zeros(0, dtype=bool)


class Requests:
    """What the contrast stream must know of each running request, by the request's slot.

    Attributes:
        images: which tokens of the prompt are image tokens, up to the end of the last picture.
        ends: the length of each of these.
        tokens: the number of image tokens in each.
        alpha: the strength of the contrast.
        shared: how many of its first tokens lie in blocks of others, if a picture is among them; else 0.
        first: of these, how many come before the picture.
    """

    def __init__(self, slots: int) -> None:
        self.images: list[Numbers] = [NONE] * slots
        self.ends = np.zeros(slots, dtype=np.int64)
        self.tokens = np.zeros(slots, dtype=np.int64)
        self.alpha = np.zeros(slots, dtype=np.float32)
        self.shared = np.zeros(slots, dtype=np.int64)
        self.first = np.zeros(slots, dtype=np.int64)

    def put(self, slot: int, image: Numbers, alpha: float, computed: int = 0) -> None:
        """Take a request into a slot, in place of the one that was there.

        Args:
            slot: vLLM's number of its place.
            image: which tokens of its prompt are image tokens, up to the end of the last picture.
            alpha: the strength of its contrast.
            computed: how many of its tokens are in blocks that others have filled.
        """
        shown = image[:computed].any()
        self.shared[slot] = computed if shown else 0
        self.first[slot] = image.argmax() if shown else 0
        self.images[slot] = image
        self.ends[slot] = len(image)
        self.tokens[slot] = np.count_nonzero(image)
        self.alpha[slot] = alpha


def image_tokens(positions: Iterable[Any]) -> Numbers:
    """Return which tokens of a prompt are image tokens, up to the end of the last `PlaceholderRange` of vLLM's."""
    positions = list(positions)
    end = max((each.offset + each.length for each in positions), default=0)
    image = np.zeros(end, dtype=bool)
    for each in positions:
        place = slice(each.offset, each.offset + each.length)
        image[place] = True if each.is_embed is None else each.is_embed.numpy()
    return image


@dataclass(frozen=True)
class Step:
    """The contrast stream's part of one forward of N rows, with M text rows of r requests.

    Attributes:
        rows: the numbers of all rows, the text rows first `[N]`.
        live: M.
        request: the number of each text row's request in the batch `[M]`.
        place: how many text rows of its request come before each text row; -1: nothing of it is kept `[M]`.
        having: the requests with text rows, by their numbers; None: all that are in the batch `[r]`.
        starts: the number of each one's first text row, and M `[r + 1]`.
        lengths: how many text rows each one has in the cache after the forward `[r]`.
        prefilling: whether each one's prompt is not through before the forward `[r]`.
    """

    rows: Numbers
    live: int
    request: Numbers
    place: Numbers
    having: Numbers | None
    starts: Numbers
    lengths: Numbers
    prefilling: Numbers


def plan(
    starts: Numbers,
    computed: Numbers,
    slots: Numbers | None,
    requests: Requests,
    prefilling: Numbers,
    width: int,
) -> Step:
    """Find the text rows of a forward.

    Args:
        starts: the number of each request's first row, and of all rows `[R + 1]`.
        computed: how many tokens of each are in the cache `[R]`.
        slots: of each request `[R]`; None: vLLM only warms up, and nothing of it is kept.
        requests: what is known of them.
        prefilling: as in `Step` `[R]`.
        width: rows with the padding after them, N.
    """
    text, before = _text_rows(starts, computed, slots, requests, width)
    sums = np.concatenate([[0], text.cumsum()])[starts]  # [R + 1]
    counts = np.diff(sums)  # [R]
    row = np.flatnonzero(text)  # [M]
    request = np.repeat(np.arange(len(counts)), counts)
    place = before[request] + np.arange(len(row)) - sums[request]
    if slots is None:
        place[:] = -1
    having = np.flatnonzero(counts)
    return Step(
        rows=np.concatenate([row, np.flatnonzero(~text)]),
        live=len(row),
        request=request,
        place=place,
        having=None if len(having) == len(counts) else having,
        starts=np.append(sums[having], len(row)),
        lengths=(before + counts)[having],
        prefilling=prefilling[having],
    )


def plan_graph(computed: Numbers, slots: Numbers | None, requests: Requests, width: int) -> Step:
    """Do the same for a forward that is a CUDA graph: one row of each request, and padding up to `width` rows.

    Each stream has `width` rows. The contrast stream also has a row for an image row, of which nothing is kept. A
    prompt's last row may be among them: all run as rows of decoding steps.
    """
    count = len(computed)  # R
    text, before = _text_rows(np.arange(count + 1), computed, slots, requests, count)
    place = np.full(width, -1)
    if slots is not None:
        place[:count] = np.where(text, before, -1)
    lengths = np.zeros(width, dtype=np.int64)
    lengths[:count] = before + text
    return Step(
        rows=np.arange(width),
        live=width,
        request=np.arange(width),
        place=place,
        having=None,
        starts=np.minimum(np.arange(width + 1), count),
        lengths=lengths,
        prefilling=np.zeros(width, dtype=bool),
    )


def _text_rows(
    starts: Numbers, computed: Numbers, slots: Numbers | None, requests: Requests, width: int
) -> tuple[Numbers, Numbers]:
    """Return which rows are text `[N]`, and how many text rows of each request are in the cache `[R]`."""
    text = np.arange(width) < starts[-1]
    if slots is None:
        return text, computed
    before = computed - requests.tokens[slots]
    for index in np.flatnonzero(computed < requests.ends[slots]):
        image = requests.images[slots[index]]
        done = computed[index]
        first = starts[index]
        rows = image[done : done + starts[index + 1] - first]
        text[first : first + len(rows)] = ~rows
        before[index] = done - np.count_nonzero(image[:done])
    return text, before
