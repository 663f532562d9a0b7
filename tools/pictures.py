"""Rendered scenes for the training, with the objects under each patch."""

from __future__ import annotations

import functools
import math
import multiprocessing
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from sira_cli.demo.questions import NUMBERS
from sira_cli.demo.scenes import COLORS, OBJECTS, PLACES, SIDE, TRAINING_SEEDS, Scene, make_scene, render
from tools.checkpoint import IMAGE_MEAN, IMAGE_SIDE, IMAGE_STD, IMAGE_TOKENS

# Of a patch: kinds under it, their colours, how many of each there are, and the place if most of it is background.
LABEL_WORDS = (*OBJECTS, *COLORS, *NUMBERS[1:], *PLACES)
LABELS = len(LABEL_WORDS)
GRID = math.isqrt(IMAGE_TOKENS)  # patches in a row, and in a column
MIN_PATCH_SHARE = 0.05  # share of a patch that an object must cover to count as under it


class Progress:
    """A progress line at intervals: steps, the mean loss since the last line, time left."""

    def __init__(self, name: str, done: int, total: int, every: int) -> None:
        self.name, self.done, self.total, self.every = name, done, total, every
        self._losses: list[float] = []
        self._first, self._began = done, time.monotonic()

    def step(self, loss: float | None = None) -> None:
        """Count one more."""
        self.done += 1
        if loss is not None:
            self._losses.append(loss)
        if self.done % self.every and self.done != self.total:
            return
        pace = (time.monotonic() - self._began) / (self.done - self._first)
        mean = f"  loss {sum(self._losses) / len(self._losses):.4f}" if self._losses else ""
        left = pace * (self.total - self.done) / 60
        print(f"{self.name} {self.done}/{self.total}{mean}  {pace:.3f} s each  {left:.1f} min left", flush=True)
        self._losses.clear()


class Pictures:
    """Rendered training scenes, on disk.

    The tower learns from scenes with broken co-occurrence, so that it sees objects in any place, as towers trained on
    diverse pictures do; the decoder learns the co-occurrence.

    Attributes:
        pixels: uint8 `[N, IMAGE_SIDE, IMAGE_SIDE, 3]`, resized as the image processor does it.
        labels: uint8 `[N, IMAGE_TOKENS, ceil(LABELS / 8)]`, packed bits.
    """

    def __init__(self, folder: Path, count: int, broken: bool) -> None:
        self.name = "broken" if broken else "typical"
        self._broken = broken
        self.pixels = open_array(folder / f"{self.name}-pixels.npy", np.uint8, (count, IMAGE_SIDE, IMAGE_SIDE, 3))
        packed = (count, IMAGE_TOKENS, math.ceil(LABELS / 8))
        self.labels = open_array(folder / f"{self.name}-labels.npy", np.uint8, packed)
        self._done = folder / f"{self.name}-{count}-rendered"

    def render(self, workers: int) -> None:
        """Fill both arrays, unless they are filled."""
        if self._done.exists():
            return
        count = len(self.pixels)
        with multiprocessing.get_context("spawn").Pool(workers) as pool:
            progress = Progress(f"rendering {self.name} scenes", 0, count, every=count // 10 or 1)
            rendered = pool.imap(functools.partial(_rendered, self._broken), TRAINING_SEEDS[:count], chunksize=50)
            for index, (pixels, labels) in enumerate(rendered):
                self.pixels[index], self.labels[index] = pixels, labels
                progress.step()
        self._done.touch()

    def batch(self, indices: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Return normalised pixels `[B, 3, IMAGE_SIDE, IMAGE_SIDE]` and labels `[B, IMAGE_TOKENS, LABELS]`, float32."""
        pixels = torch.from_numpy(self.pixels[indices]).permute(0, 3, 1, 2) / 255
        pixels = (pixels - torch.tensor(IMAGE_MEAN)[:, None, None]) / torch.tensor(IMAGE_STD)[:, None, None]
        labels = np.unpackbits(self.labels[indices], axis=-1, count=LABELS)
        return pixels, torch.from_numpy(labels).float()


def patch_labels(scene: Scene, seen: np.ndarray) -> np.ndarray:
    """Return the labels under each patch of a rendered scene, bool `[IMAGE_TOKENS, LABELS]`."""
    patch = SIDE // GRID
    under = seen.reshape(GRID, patch, GRID, patch).transpose(0, 2, 1, 3).reshape(IMAGE_TOKENS, -1)
    labels = np.zeros((IMAGE_TOKENS, LABELS), bool)
    labels[(under == 0).mean(axis=1) > 0.5, LABEL_WORDS.index(scene.place)] = True
    objects = scene.objects
    for index, thing in enumerate(scene.things, start=1):
        covered = (under == index).mean(axis=1) >= MIN_PATCH_SHARE
        for word in (thing.name, thing.color, NUMBERS[len(objects[thing.name])]):
            labels[covered, LABEL_WORDS.index(word)] = True
    return labels


def open_array(path: Path, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Open the array in a file, writable; make a new one if none has that shape."""
    if path.exists():
        array: np.ndarray = np.lib.format.open_memmap(path, mode="r+")
        if array.shape == shape:
            return array
    return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)


def _rendered(broken: bool, seed: int) -> tuple[np.ndarray, np.ndarray]:
    scene = make_scene(seed, broken)
    picture, seen = render(scene)
    small = picture.resize((IMAGE_SIDE, IMAGE_SIDE), Image.Resampling.BICUBIC)
    return np.asarray(small), np.packbits(patch_labels(scene, seen), axis=-1)
