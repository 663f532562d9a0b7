"""The recipe of the bundled model, in numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """The settings that decide the trained weights, besides the code."""

    seed: int = 0
    vision_scenes: int = 40_000
    vision_steps: int = 2_200
    vision_batch: int = 96
    vision_rate: float = 2e-3
    placing_steps: int = 300
    placing_rate: float = 6e-4
    language_scenes: int = 32_000
    odd_scenes: int = 10_000  # number of the tower's scenes that the decoder also sees
    language_steps: int = 3_600
    language_batch: int = 16
    language_rate: float = 1.5e-3
    questions: int = 4  # yes/no questions about a picture
