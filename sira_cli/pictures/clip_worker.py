"""Reads a clip in a process of its own (`confined.py`), as strangers feed FFmpeg and Pillow's decoders of animations.

`clip_worker.py FORMAT` writes the facts about the file on stdin as a line of JSON; `clip_worker.py FORMAT WIDTH HEIGHT
STAMP...` writes that size's RGB samples of the frames with these time stamps, which are in order. A stamp `90000@0` is
reached from the key frame at 0. Errors are a line of JSON with `error`. Nothing of the package is imported.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

ANIMATION = "animation"  # FORMAT of what Pillow reads; other formats are FFmpeg's
MOST_FRAMES = 500_000  # of a file: more than four hours at 30 a second
MOST_PIXELS = 2**26  # of a frame
_SHORTEST = 0.02  # seconds: browsers show frames of animations that ask for less for a tenth of a second


class UnreadableError(Exception):
    """The file cannot be read; the message is the end of a sentence about it."""


def seal() -> None:
    """Forbid this process to open any more files or sockets."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))


def opened(kind: str) -> Any:
    """Open the container on stdin, and find its first video stream.

    Raises:
        UnreadableError: it has no video.
    """
    import av

    def refuse(*_: object) -> NoReturn:
        raise PermissionError("a clip may not refer to other files")

    sys.stdin.buffer.seek(0)
    container = av.open(sys.stdin.buffer, format=kind, io_open=refuse)
    for stream in container.streams.video:
        if not stream.disposition & av.stream.Disposition.attached_pic:  # a cover
            stream.codec_context.thread_count = 2
            return container, stream
    raise UnreadableError("holds no video")


def decoded(packets: Any) -> Iterator[Any]:
    """Yield the frames that can be decoded."""
    import av

    try:
        for packet in packets:
            with contextlib.suppress(av.error.FFmpegError):
                yield from packet.decode()
    except av.error.FFmpegError:  # the file ends too early
        return


def facts(kind: str) -> dict[str, Any]:
    """Return size, rotation, time base, time stamps and key frames: from the packets, as headers may be wrong.

    Raises:
        UnreadableError: it is damaged, or holds no video.
    """
    import av

    container, stream = opened(kind)
    stamps: list[int] = []
    keys: list[int] = []
    times_missing = 0
    try:
        for packet in container.demux(stream):
            stamp = packet.dts if packet.pts is None else packet.pts
            if not packet.size or packet.is_discard or packet.is_corrupt:
                continue
            times_missing += stamp is None
            stamps.append(len(stamps) if stamp is None else stamp)
            if packet.is_keyframe:
                keys.append(stamps[-1])
            if len(stamps) > MOST_FRAMES:
                raise UnreadableError(f"has more than {MOST_FRAMES:,} frames: cut it")
    except av.error.FFmpegError:
        if not stamps:
            raise
    if not stamps:
        raise UnreadableError("holds no frames")
    if times_missing:
        raise UnreadableError("holds frames without time stamps: convert it to mp4")
    announced, rate = stream.frames, stream.average_rate
    container, stream = opened(kind)
    first = next(decoded(container.demux(stream)), None)
    if first is None:
        raise UnreadableError("is damaged: no frame can be decoded")
    if first.width * first.height > MOST_PIXELS:
        raise UnreadableError(f"has frames of {first.width} x {first.height} pixels: scale it down")
    aspect = stream.sample_aspect_ratio or stream.codec_context.sample_aspect_ratio
    return {
        "width": first.width,
        "height": first.height,
        "aspect": float(aspect or 1),
        "rotation": first.rotation,
        "stamps": sorted(set(stamps)),
        "keys": sorted(set(keys)),
        "base": [stream.time_base.numerator, stream.time_base.denominator],
        "rate": float(rate or 0),
        "announced": announced,
    }


def frames(kind: str, width: int, height: int, wanted: list[str]) -> Iterator[bytes]:
    """Yield the samples of some frames.

    Raises:
        UnreadableError: one of them is damaged.
    """
    container, stream = opened(kind)
    found, frame = decoded(container.demux(stream)), None
    for each in wanted:
        stamp, _, key = each.partition("@")
        if key:
            container.seek(int(key), stream=stream, backward=True)
            found, frame = decoded(container.demux(stream)), None
        reached = frame = _reached(found, int(stamp), frame)
        if key and (reached is None or reached.pts > int(stamp)):  # the file's index is wrong
            container, stream = opened(kind)
            found = decoded(container.demux(stream))
            frame = _reached(found, int(stamp), None)
        if frame is None or frame.is_corrupt:
            raise UnreadableError(f"is damaged: the frame at {float(int(stamp) * stream.time_base):.1f} s is missing")
        same = (frame.width, frame.height) == (width, height)
        scaling = {} if same else {"width": width, "height": height, "interpolation": "BICUBIC"}
        plane = frame.reformat(format="rgb24", **scaling).planes[0]
        data = memoryview(plane)
        for row in range(height):
            yield bytes(data[row * plane.line_size : row * plane.line_size + 3 * width])


def _reached(found: Iterator[Any], stamp: int, frame: Any) -> Any:
    """Return the first frame that is not before a time stamp; `frame`: the latest so far."""
    while frame is None or frame.pts is None or frame.pts < stamp:
        frame = next(found, None)
        if frame is None:
            return None
    return frame


def animation() -> Any:
    """Return the animation on stdin."""
    from PIL import Image

    image = Image.open(sys.stdin.buffer, formats=("GIF", "PNG", "WEBP"))
    if image.width * image.height > MOST_PIXELS:
        raise UnreadableError(f"has frames of {image.width} x {image.height} pixels: scale it down")
    return image


def animation_facts() -> dict[str, Any]:
    """Return the facts about an animation, as `facts` does; its time base is a millisecond."""
    image = animation()
    stamps, now = [], 0
    for number in range(image.n_frames):
        image.seek(number)
        image.load()
        stamps.append(now)
        lasts = image.info.get("duration", 0)
        now += round(lasts) if lasts >= 1000 * _SHORTEST else 100
        if len(stamps) > MOST_FRAMES:
            raise UnreadableError(f"has more than {MOST_FRAMES:,} frames: cut it")
    size = {"width": image.width, "height": image.height, "aspect": 1.0, "rotation": 0}
    rate = 1000 * len(stamps) / now
    return {**size, "stamps": stamps, "keys": [0], "base": [1, 1000], "rate": rate, "announced": 0, "end": now}


def animation_frames(width: int, height: int, wanted: list[str]) -> Iterator[bytes]:
    """Yield the samples of some frames of an animation; here stamps are frame numbers."""
    from PIL import Image

    image, number = animation(), -1
    for each in wanted:
        while number < int(each.partition("@")[0]):
            number += 1
            image.seek(number)
            image.load()
        white = Image.new("RGBA", image.size, "white")
        white.alpha_composite(image.convert("RGBA"))
        yield white.convert("RGB").resize((width, height), Image.Resampling.BICUBIC).tobytes()


def main() -> None:
    """Run one of the two commands."""
    kind, *rest = sys.argv[1:]
    if kind == ANIMATION:
        from PIL import Image

        Image.init()  # what it needs is imported now: then nothing can be opened
    else:
        import av
        import av.sidedata.encparams
        import av.sidedata.motionvectors
        import av.subtitles.stream  # which PyAV imports when it needs them, and then nothing can be opened
        import av.subtitles.subtitle
        import av.video.reformatter

        av.logging.set_level(av.logging.PANIC)
    seal()
    out = sys.stdout.buffer
    try:
        if not rest:
            out.write(json.dumps(animation_facts() if kind == ANIMATION else facts(kind)).encode())
            return
        size, wanted = (int(rest[0]), int(rest[1])), rest[2:]
        for data in animation_frames(*size, wanted) if kind == ANIMATION else frames(kind, *size, wanted):
            out.write(data)
    except UnreadableError as error:
        sys.stderr.write(json.dumps({"error": str(error)}))
    except MemoryError:
        sys.stderr.write(json.dumps({"error": "takes too much memory to decode: scale it down"}))
    except (OSError, ValueError, EOFError, SyntaxError) as error:  # FFmpeg's errors are of these kinds
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        sys.stderr.write(json.dumps({"error": f"is damaged: {reason}"}))


if __name__ == "__main__":
    main()
