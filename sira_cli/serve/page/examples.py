"""Pictures to try on the page: drawn scenes, for the bundled model only."""

from __future__ import annotations

import functools
import io

from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import render
from sira_cli.models.preset import Preset
from sira_cli.models.presets import BUNDLED

# One for each outcome in examples/README.md: sira's caption names fewer absent objects than greedy's, as many (none),
# as many (some), more.
SEEDS = (2_900_010, 2_900_002, 2_900_003, 2_900_000)


def examples_for(preset: Preset) -> list[dict[str, str]]:
    """Return the name of each example picture for a model, and the place that it shows."""
    if preset.model != BUNDLED:
        return []
    return [{"name": name_of(seed), "place": held_out(seed).place} for seed in SEEDS]


def name_of(seed: int) -> str:
    """Return the name of a scene's file, as in `examples/`."""
    return f"scene-{seed}.png"


@functools.cache
def draw(seed: int) -> bytes:
    """Return a scene as a PNG."""
    data = io.BytesIO()
    render(held_out(seed))[0].save(data, "PNG")
    return data.getvalue()
