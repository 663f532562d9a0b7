"""From the bytes of a clip's file to its frames, which a process of its own decodes (`clip_worker.py`)."""

from __future__ import annotations

import bisect
import importlib.util
import itertools
import json
import math
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from PIL import Image

from sira_cli.confined import ProcessLimits, run_confined
from sira_cli.errors import PictureError
from sira_cli.pictures import clip_worker
from sira_cli.pictures.clip import Clip, Sampling, Timeline
from sira_cli.pictures.clip_worker import ANIMATION
from sira_cli.pictures.content import Content, LargeFile, head_of
from sira_cli.pictures.names import one_line
from sira_cli.pictures.room import ROOM

VIDEO = "pip install 'sira-cli[video]'"  # reads clips
ENDINGS = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi")
BOUND = 2**25  # pixels of all frames that are shown; more are shrunk
_BYTES = 3  # of a pixel
_LIMITS = ProcessLimits(memory=3 * 2**29, seconds=120, longest=300, written=_BYTES * BOUND + 2**24)
_STILL_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1", b"avif", b"avis", b"crx ")
_ATOMS = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot")  # that a mov or mp4 file may begin with


def can_read_clips() -> bool:
    """Return whether PyAV is installed (extra `video`); animations need nothing."""
    return importlib.util.find_spec("av") is not None


def container_of(content: Content) -> str | None:
    """Return FFmpeg's name for a clip's container format; None: the file is not a clip."""
    data = head_of(content)
    if data[4:8] in _ATOMS and not (data[4:8] == b"ftyp" and data[8:12] in _STILL_BRANDS):
        return "mov"
    if data[:4] == b"\x1a\x45\xdf\xa3":
        return "matroska"
    return "avi" if data[:4] == b"RIFF" and data[8:12] == b"AVI " else None


@dataclass(frozen=True)
class ClipFile:
    """The facts about a clip's file, from its packets.

    Attributes:
        kind: container format.
        times: of the frames in seconds from the first one, in order.
        stamps: the same in the file's own unit.
        keys: time stamps of the key frames, in order.
        shortest: seconds that the shortest frame lasts.
        fps: frames per second: the announced number if the frames keep to it, else their mean.
        seconds: duration.
        width, height: of a displayed frame, before rotation.
        turns: quarter turns to the left that set it upright.
        announced: number of frames by the header; 0: it does not say.
    """

    kind: str
    times: Sequence[float]
    stamps: Sequence[int]
    keys: Sequence[int]
    shortest: float
    fps: float
    seconds: float
    width: int
    height: int
    turns: int
    announced: int

    @classmethod
    def of(cls, kind: str, facts: dict[str, Any]) -> ClipFile:
        """Read the facts that the worker wrote."""
        stamps, (numerator, denominator) = facts["stamps"], facts["base"]
        times = [(stamp - stamps[0]) * numerator / denominator for stamp in stamps]
        span, rate = times[-1], facts["rate"]
        if not rate or abs(span * rate - len(times) + 1) > 0.5:
            rate = (len(times) - 1) / span if span else 1.0
        seconds = facts["end"] / 1000 if "end" in facts else span + 1 / rate
        aspect = facts["aspect"] if 0.1 < facts["aspect"] < 10 else 1.0
        return cls(
            kind,
            times,
            stamps,
            facts["keys"],
            min((later - time for time, later in itertools.pairwise(times)), default=0.0),
            rate,
            seconds,
            round(facts["width"] * max(1.0, aspect)),
            round(facts["height"] / min(1.0, aspect)),
            round(facts["rotation"] / 90) % 4,
            facts["announced"],
        )

    def part(self, start: float, end: float | None) -> Timeline:
        """Return the timeline of a part.

        Raises:
            PictureError: the part is empty; the message does not name the clip.
        """
        if start >= self.seconds:
            raise PictureError(f"lasts {self.seconds:.1f} s, so nothing is left from `start=` {start:g}")
        end = min(self.seconds, math.inf if end is None else end)
        size = (self.height, self.width) if self.turns % 2 else (self.width, self.height)
        part = (start, end) if (start, end) != (0, self.seconds) else None
        return Timeline(max(1, round((end - start) * self.fps)), self.fps, *size, self.kind == ANIMATION, part)

    def at(self, time: float) -> int:
        """Return the number of the frame that is shown at a time, give or take half of the shortest frame."""
        return max(0, bisect.bisect_right(self.times, time + self.shortest / 2) - 1)

    def wanted(self, numbers: Sequence[int]) -> list[str]:
        """Return the worker's arguments for frames, each with the key frame to begin at, where that saves work."""
        if self.kind == ANIMATION:
            return [str(number) for number in numbers]
        found, latest = [], self.stamps[0]
        for stamp in (self.stamps[number] for number in numbers):
            before = bisect.bisect_right(self.keys, stamp)
            key = self.keys[before - 1] if before else latest
            found.append(f"{stamp}@{key}" if key > latest else f"{stamp}")
            latest = stamp
        return found


def read_timeline(name: str, data: Content, kind: str, sampling: Sampling) -> Timeline:
    """Return the part of a clip that is looked at, without decoding it; otherwise as `read_clip`."""
    with _reading(name, data, kind) as file:
        return _measured(file, kind, sampling)[1]


def read_clip(name: str, data: Content, kind: str, sampling: Sampling) -> tuple[Clip, tuple[str, ...]]:
    """Return the frames of a clip that are shown, and warnings about it. Safe in threads.

    Args:
        name: of the clip, for messages.
        data: of its file.
        kind: from `container_of`, or `ANIMATION`.
        sampling: decides which frames.

    Raises:
        PictureError: it cannot be read, or nothing of it is left; one line that names it.
    """
    with ROOM.taken(2 * _BYTES * BOUND), _reading(name, data, kind) as file:
        return _read(file, kind, sampling)


@contextmanager
def _reading(name: str, data: Content, kind: str) -> Iterator[IO[bytes]]:
    """Open a clip, and name it in errors inside this context."""
    shown = one_line(name)
    if kind != ANIMATION and not can_read_clips():
        raise PictureError(f"{shown}: is a clip, which needs PyAV: {VIDEO}")
    try:
        with _opened(data) as file:
            yield file
    except PictureError as error:
        raise PictureError(f"{shown}: {error}") from None
    except OSError as error:
        raise PictureError(f"{shown}: cannot be decoded: {error.strerror}") from error


@contextmanager
def _opened(data: Content) -> Iterator[IO[bytes]]:
    """Open a file that the worker can seek in."""
    if isinstance(data, LargeFile):
        with data.opened() as file:
            yield file
        return
    with tempfile.TemporaryFile() as copy:
        copy.write(data)
        copy.flush()
        yield copy


def _read(file: IO[bytes], kind: str, sampling: Sampling) -> tuple[Clip, tuple[str, ...]]:
    clip, timeline = _measured(file, kind, sampling)
    numbers = sampling.numbers(timeline)
    places = [clip.at(sampling.start + number / clip.fps) for number in numbers]
    scale = min(1.0, math.sqrt(BOUND / (len(places) * clip.width * clip.height)))
    width, height = max(1, int(clip.width * scale)), max(1, int(clip.height * scale))
    frames = []
    with tempfile.TemporaryFile() as found:
        _worked(file, found, kind, f"{width}", f"{height}", *clip.wanted(places))
        found.seek(0)
        for _ in places:
            samples = found.read(_BYTES * width * height)
            if len(samples) < _BYTES * width * height:
                raise PictureError("is damaged: some frames are missing")
            frame = Image.frombuffer("RGB", (width, height), samples, "raw", "RGB", 0, 1)
            frames.append(frame.transpose(_TURNS[clip.turns - 1]) if clip.turns else frame)
    times = tuple(clip.times[place] for place in places)
    return Clip(tuple(frames), numbers, times, timeline), tuple(_suspicious(clip, len(places)))


def _measured(file: IO[bytes], kind: str, sampling: Sampling) -> tuple[ClipFile, Timeline]:
    clip = ClipFile.of(kind, json.loads(_worked(file, None, kind)))
    return clip, clip.part(sampling.start, sampling.end)


_TURNS = (Image.Transpose.ROTATE_90, Image.Transpose.ROTATE_180, Image.Transpose.ROTATE_270)


def _suspicious(clip: ClipFile, shown: int) -> list[str]:
    """Return reasons to doubt a text about the clip: usually none."""
    found = []
    if clip.announced > len(clip.times) + 1:
        found.append(f"ends early: {len(clip.times):,} of {clip.announced:,} frames are there")
    if shown == 1 and len(clip.times) > 1:
        found.append("has several frames or pages: the first one was taken")
    return found


def _worked(file: IO[bytes], output: IO[bytes] | None, *arguments: str) -> bytes:
    """Run the worker on a file, and return its output.

    Raises:
        PictureError: the worker failed; the message does not name the clip.
    """
    file.seek(0)
    try:
        ended = run_confined(clip_worker.__file__, *arguments, limits=_LIMITS, stdin=file, stdout=output)
    except subprocess.TimeoutExpired:
        raise PictureError("takes too long to decode: give a part by `start=` and `end=`, or convert it") from None
    said = ended.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    if said.startswith("{"):
        raise PictureError(json.loads(said)["error"])
    if ended.returncode:
        raise PictureError(f"the decoder could not read it: {said or f'it ended with {ended.returncode}'}: convert it")
    return ended.stdout or b""
