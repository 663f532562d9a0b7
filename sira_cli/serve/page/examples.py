"""Pictures to try on the page: drawn scenes, for the bundled model only."""

from __future__ import annotations

import functools
import io

from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import render
from sira_cli.models.loading.preset import Preset
from sira_cli.models.loading.presets import BUNDLED

# The first scene of each outcome in examples/README.md; the last one is SIRA's failure.
OUTCOMES = {
    2_900_003: "SIRA names fewer absent objects than greedy",
    2_900_001: "neither SIRA nor greedy names an absent object",
    2_900_004: "SIRA names as many absent objects as greedy",
    2_900_000: "SIRA names more absent objects than greedy",
}
SEEDS = tuple(OUTCOMES)


def examples_for(preset: Preset) -> list[dict[str, str]]:
    """Return the example pictures for a model: name, the place shown, and the outcome."""
    if preset.model != BUNDLED:
        return []
    words = {seed: f"{held_out(seed).place}: {outcome}" for seed, outcome in OUTCOMES.items()}
    return [{"name": name_of(seed), "words": said} for seed, said in words.items()]


def name_of(seed: int) -> str:
    """Return the name of a scene's file, as in `examples/`."""
    return f"scene-{seed}.png"


@functools.cache
def draw(seed: int) -> bytes:
    """Return a scene as a PNG."""
    data = io.BytesIO()
    render(held_out(seed))[0].save(data, "PNG")
    return data.getvalue()
