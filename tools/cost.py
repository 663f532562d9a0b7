"""The cost of a caption under each method: single pictures, all methods in turn on the same ones."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from sira_cli.analysis.bench.measure import Spread
from sira_cli.demo.scenes import Scene, render
from sira_cli.run.lvlm import Lvlm

TIMED = 20  # scenes, unless fewer are measured; one more warms up


def caption_costs(methods: Mapping[str, Lvlm], scenes: Sequence[Scene]) -> dict[str, Spread]:
    """Return the time of a caption relative to the first method's of the same scene: A B C A B C ..., a scene per
    round.

    The first round only warms up. Captions are as long as the method makes them.
    """
    ratios: dict[str, list[float]] = {name: [] for name in methods}
    for number, scene in enumerate(scenes):
        picture, seconds = render(scene)[0], {}
        for name, lvlm in methods.items():
            began = time.perf_counter()
            lvlm.answer(lvlm.prepare([picture], [lvlm.preset.prompts.caption]))
            seconds[name] = time.perf_counter() - began
        base = next(iter(seconds.values()))
        for name, each in seconds.items():
            if number:
                ratios[name].append(each / base)
    return {name: Spread.of(row) for name, row in ratios.items()}
