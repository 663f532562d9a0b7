"""A clip: the choice of the frames that the model is shown, and the frames themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from sira_cli.errors import PictureError

FRAMES = 8  # that are shown to a model without a rule of its own
MOST_SHOWN = 1024  # frames: more than any model's rule takes


@dataclass(frozen=True)
class Timeline:
    """A clip, or the part of it that is looked at, as if its frames came at a constant rate.

    Attributes:
        count: number of frames.
        fps: frames per second.
        width, height: of a frame as it is displayed, in pixels.
        animation: whether it is an animated picture: GIF, WebP or PNG.
        part: start and end in the clip, in seconds; None: it is the whole clip.
    """

    count: int
    fps: float
    width: int
    height: int
    animation: bool = False
    part: tuple[float, float] | None = None

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return self.count / self.fps


# Returns the numbers of the frames that a model is shown, from the number or the rate that the user wants, if any.
Rule = Callable[[Timeline, int | None, float | None], Sequence[int]]


def evenly(timeline: Timeline, frames: int | None, fps: float | None) -> Sequence[int]:
    """Return the numbers of frames at equal distances, from the first to the last."""
    if fps is not None:
        number = math.ceil(timeline.seconds * fps)
        return [min(timeline.count - 1, round(each * timeline.fps / fps)) for each in range(number)]
    number = min(frames or FRAMES, timeline.count)
    return [round(each * (timeline.count - 1) / max(1, number - 1)) for each in range(number)]


def at_times(times: Sequence[float]) -> Rule:
    """Return the rule that takes the frames at given times, in seconds from the first frame."""
    return lambda timeline, frames, fps: [round(time * timeline.fps) for time in times]


@dataclass(frozen=True)
class Sampling:
    """Which part of a clip is looked at, and which frames of it.

    Attributes:
        frames: number of frames; None: given by `fps`, or by the rule.
        fps: frames per second of the clip.
        start, end: of the part, in seconds; None: the start or end of the clip.
        rule: the model's own rule.
    """

    frames: int | None = None
    fps: float | None = None
    start: float = 0.0
    end: float | None = None
    rule: Rule = evenly

    def numbers(self, timeline: Timeline) -> tuple[int, ...]:
        """Return the numbers of the frames that are shown, in order; the same one may be shown twice.

        Raises:
            PictureError: too many frames; the message does not name the clip.
        """
        most = timeline.seconds * (self.fps or 0)
        numbers = () if most > MOST_SHOWN else tuple(int(each) for each in self.rule(timeline, self.frames, self.fps))
        if not 0 < len(numbers) <= MOST_SHOWN:
            raise PictureError(
                f"{math.ceil(most) or len(numbers):,} frames would be shown, expected at most {MOST_SHOWN:,}: give "
                "fewer by `frames=`, or a part by `start=` and `end=`"
            )
        return tuple(min(max(0, number), timeline.count - 1) for number in numbers)


@dataclass(frozen=True)
class Clip:
    """The frames of a clip that a model is shown.

    Attributes:
        frames: upright RGB, all of one size.
        numbers: of the frames in the timeline.
        times: of the frames in the file, in seconds from its first frame.
        timeline: the part of the clip that was looked at.
    """

    frames: tuple[Image.Image, ...]
    numbers: tuple[int, ...]
    times: tuple[float, ...]
    timeline: Timeline

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of a frame, in pixels."""
        return self.frames[0].size

    @property
    def width(self) -> int:
        """Width of a frame."""
        return self.size[0]

    @property
    def height(self) -> int:
        """Height of a frame."""
        return self.size[1]

    def tobytes(self) -> bytes:
        """Return the samples of all frames."""
        return b"".join(frame.tobytes() for frame in self.frames)

    def changed(self, change: Callable[[Image.Image], Image.Image]) -> Clip:
        """Return the clip with each frame replaced by `change` of it."""
        return Clip(tuple(map(change, self.frames)), self.numbers, self.times, self.timeline)

    def facts(self) -> dict[str, Any]:
        """Return the clip's fields of a record."""
        part = zip(("clip_start", "clip_end"), self.timeline.part or (), strict=False)
        return {
            "media": "video",
            **{name: round(time, 3) for name, time in part},
            "seconds": round(self.timeline.seconds, 3),
            "fps": round(self.timeline.fps, 3),
            "frames": [round(time, 3) for time in self.times],
        }


Still = Image.Image | Clip  # one thing to look at


def stills(shown: Still) -> tuple[Image.Image, ...]:
    """Return the still pictures of a picture or clip."""
    return shown.frames if isinstance(shown, Clip) else (shown,)
