"""Decode pictures of strangers in a process of its own, which can be ended at any moment and has limits of its own.

parent                                   child
names, sizes, limit; the files    -->    reads the headers
                                  <--    bytes that decoding takes
(waits for memory) go             -->    decodes
                                  <--    sizes; the samples; or an error
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from PIL import Image

from sira_cli.errors import HugePictureError, PictureError, PictureMemoryError
from sira_cli.interrupts import in_time
from sira_cli.parsing import from_json
from sira_cli.pictures.opening import MEMORY, decode_picture, memory_for, picture_size

SECONDS = 30.0  # for the pictures of one request; the largest that are usually allowed take a few
_SPARE = 2**30  # bytes above what decoding takes by its header
_CPU_SECONDS = 240  # of one request, for a child whose parent is gone
_ERRORS = {kind.__name__: kind for kind in (PictureError, HugePictureError, PictureMemoryError)}
_COMMAND = (sys.executable, "-P", "-W", "ignore", "-m", "sira_cli.pictures.apart")


class TooManyPixelsError(HugePictureError):
    """The pictures of a request have more pixels together than the limit; the first argument is their number."""


class Decoder:
    """A process that decodes pictures, started when it is needed. For one thread at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def decode(self, files: Mapping[str, bytes], most_pixels: int, look: Callable[[], None]) -> list[Image.Image]:
        """Return pictures in RGB, in order; `files` by name.

        `look` is called now and then. If it raises an error, or decoding takes too long, the process is ended. Raises
        PictureError, and TooManyPixelsError if the pictures have more than `most_pixels` together.
        """
        process = self._running()
        try:
            answer = in_time(lambda: _exchange(process, files, most_pixels), SECONDS, look)
        except TimeoutError:
            self.end()
            names = ", ".join(files)
            reason = f"takes longer than {SECONDS:.0f} s to decode"
            raise PictureError(f"{names}: {reason}: convert it to PNG or JPEG") from None
        except (OSError, ValueError) as error:  # the process has ended
            self.end()
            raise PictureError(f"{', '.join(files)}: cannot be decoded: its decoder failed") from error
        except BaseException:
            self.end()
            raise
        if isinstance(answer, PictureError):
            raise answer
        return answer

    def end(self) -> None:
        """End the process, whatever it does."""
        process = self._process
        self._process = None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was not sent yet
                    pipe.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self.end()
        if self._process is None:
            self._process = subprocess.Popen(
                _COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=_environment(),
                start_new_session=True,  # Ctrl-C is for the parent, which finishes what it has begun
            )
        return self._process


def _environment() -> dict[str, str]:
    """Return an environment in which the child finds what this process has imported, with one thread for numpy."""
    package = str(Path(__file__).parents[2])
    path = os.pathsep.join([package, *filter(None, sys.path)])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def _exchange(
    process: subprocess.Popen[bytes], files: Mapping[str, bytes], most_pixels: int
) -> list[Image.Image] | PictureError:
    """Ask a child for pictures, and return them or its error."""
    sink = process.stdin
    source = process.stdout
    assert sink is not None
    assert source is not None
    sizes = {name: len(data) for name, data in files.items()}
    _send(sink, {"files": sizes, "most_pixels": most_pixels}, *files.values())
    answer = _received(source)
    if "needed" in answer:
        with MEMORY.taken(answer["needed"]):
            _send(sink, {})
            answer = _received(source)
            if "sizes" in answer:
                return [_image(source, width, height) for width, height in answer["sizes"]]
    if "pixels" in answer:
        return TooManyPixelsError(answer["pixels"])
    return _ERRORS[answer["kind"]](answer["error"])


def _image(source: IO[bytes], width: int, height: int) -> Image.Image:
    return Image.frombytes("RGB", (width, height), source.read(3 * width * height))


def _send(sink: IO[bytes], message: Mapping[str, Any], *data: bytes) -> None:
    sink.write(json.dumps(message).encode() + b"\n")
    for each in data:
        sink.write(each)
    sink.flush()


def _received(source: IO[bytes]) -> dict[str, Any]:
    """Return the next message; ValueError at the end."""
    message = from_json(source.readline())
    if not isinstance(message, dict):
        raise ValueError("expected a message")
    return message


def serve(source: IO[bytes], sink: IO[bytes]) -> None:
    """Decode pictures for a parent until it is gone."""
    while True:
        try:
            asked = _received(source)
        except ValueError:
            return
        files = {name: source.read(size) for name, size in asked["files"].items()}
        try:
            _limit(0)
            pixels = 0
            for name, data in files.items():
                width, height = picture_size(name, data)
                pixels += width * height
            if pixels > asked["most_pixels"]:
                _send(sink, {"pixels": pixels})
                continue
            needed = max(memory_for(name, data) for name, data in files.items()) + 3 * pixels
            _send(sink, {"needed": needed})
            _received(source)
            _limit(needed)
            images = [decode_picture(name, data)[0] for name, data in files.items()]
        except PictureError as error:
            kind = next(name for name in (base.__name__ for base in type(error).__mro__) if name in _ERRORS)
            _send(sink, {"kind": kind, "error": str(error)})
        else:
            _send(sink, {"sizes": [image.size for image in images]})
            for image in images:
                sink.write(image.tobytes())
            sink.flush()


def _limit(needed: int) -> None:
    """Limit this process's memory above what it has now, and its processor time."""
    if sys.platform != "linux":
        return
    import resource

    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5])
    memory = pages * resource.getpagesize() + needed + _SPARE
    seconds = int(time.process_time()) + _CPU_SECONDS
    for kind, value in ((resource.RLIMIT_DATA, memory), (resource.RLIMIT_CPU, seconds)):
        _, most = resource.getrlimit(kind)
        if most == resource.RLIM_INFINITY or value <= most:
            resource.setrlimit(kind, (value, most))


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
