"""Clips that tests write: each frame has its number as its grey, and a corner that tells which way is up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from PIL import Image


def drawn(number: int, size: tuple[int, int] = (96, 64)) -> np.ndarray:
    """A frame: grey by its number, red in the upper left corner, a white bar that moves."""
    frame = np.full((size[1], size[0], 3), 20 + 5 * number % 200, np.uint8)
    frame[:, (3 * number) % size[0]] = 255
    frame[:16, :16] = (255, 0, 0)
    return frame


def write_clip(
    path: Path,
    frames: int = 20,
    codec: str = "libx264",
    rate: int = 10,
    size: tuple[int, int] = (96, 64),
    pixels: str = "yuv420p",
    times: Sequence[int] | None = None,
    aspect: Fraction | None = None,
    gop: int = 6,
    **container: str,
) -> Path:
    """A clip by FFmpeg; `times`: of the frames in milliseconds."""
    with av.open(str(path), "w", options=container) as output:
        stream = output.add_stream(codec, rate=rate, options={"g": str(gop)} if gop else {})
        stream.width, stream.height = size
        stream.pix_fmt = pixels
        if aspect is not None:
            stream.codec_context.sample_aspect_ratio = aspect
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(drawn(number, size), format="rgb24")
            if times is not None:
                frame.pts, frame.time_base = times[number], Fraction(1, 1000)
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return path


def write_animation(path: Path, frames: int = 6, duration: int = 200) -> Path:
    """An animation by Pillow."""
    pictures = [Image.fromarray(drawn(7 * number)) for number in range(frames)]
    lossless = {"lossless": True} if path.suffix == ".webp" else {}
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=duration, **lossless)
    return path


def turned(path: Path, matrix: Sequence[int]) -> Path:
    """The same mp4 file with another matrix (a, b, c, d) in the header of its track, as phones write it."""
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 4 + 40
    a, b, c, d = (value << 16 for value in matrix)
    for place, value in zip((0, 4, 12, 16), (a, b, c, d), strict=True):
        data[at + place : at + place + 4] = value.to_bytes(4, "big", signed=True)
    path.write_bytes(bytes(data))
    return path


def all_frames(path: Path) -> list[np.ndarray]:
    """Every frame of a clip, decoded one after the other without seeking."""
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


# The part of each family's chat template, as published, that places a clip; the checkpoints of tests leave it out.
PLACES = {
    "Qwen2-VL": "<|vision_start|><|video_pad|><|vision_end|>",
    "Qwen2.5-VL": "<|vision_start|><|video_pad|><|vision_end|>",
    "Qwen3-VL": "<|vision_start|><|video_pad|><|vision_end|>",
    "Qwen3.5": "<|vision_start|><|video_pad|><|vision_end|>",
    "InternVL": "<video>\n",
    "Gemma 4 E": "<|video|>",
}


# Settings of their video processors that the files of tests leave out: 1 patch of 2 frames, few pixels.
_QWEN3 = {"video_processor_type": "Qwen3VLVideoProcessor", "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2}
_QWEN3 |= {"size": {"shortest_edge": 8192, "longest_edge": 65536}, "cap_pixels_per_frame": False}
_QWEN2 = {"video_processor_type": "Qwen2VLVideoProcessor", "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2}
_QWEN2 |= {"size": {"shortest_edge": 3136, "longest_edge": 12544}, "cap_pixels_per_frame": False}
SETTINGS = {
    "Qwen2-VL": _QWEN2,
    "Qwen2.5-VL": _QWEN2,
    "Qwen3-VL": _QWEN3,
    "Qwen3.5": _QWEN3,
    "Gemma 4 E": {"video_processor_type": "Gemma4VideoProcessor", "patch_size": 16, "max_soft_tokens": 70},
}


def with_place_for_clips(folder: Path, family: str) -> Path:
    """The same checkpoint with the part of its chat template that places a clip, and its video processor's settings."""
    if family in SETTINGS:
        (folder / "video_preprocessor_config.json").write_text(json.dumps(SETTINGS[family]))
    for path in folder.glob("chat_template.*"):
        text = path.read_text() if path.suffix == ".jinja" else json.loads(path.read_text())["chat_template"]
        (variable,) = {each for each in ("content", "item") if f"{each}['type'] == 'image'" in text}
        test = f"{variable}['type'] == 'image'"
        for start, end in (("{% if ", " %}"), ("{%- if ", " -%}")):
            clip = f"{start}{variable}['type'] == 'video'{end}{PLACES[family]}{start.replace('if', 'elif')}{test}{end}"
            text = text.replace(f"{start}{test}{end}", clip)
        path.write_text(text if path.suffix == ".jinja" else json.dumps({"chat_template": text}))
    return folder
