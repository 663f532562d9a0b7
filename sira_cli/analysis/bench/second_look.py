"""The cost of a second look: captions of the same pictures without one, with `flag` and with `rewrite`, in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from PIL import Image

from sira_cli.analysis.bench.figures import LookCost, Spread
from sira_cli.models.look.verify import Verify
from sira_cli.models.lvlm import Lvlm

ASKING = ("flag", "rewrite")


def look_costs(
    methods: Mapping[str, Lvlm],
    pictures: Sequence[Image.Image],
    runs: int,
    on_request: Callable[[], None] = lambda: None,
) -> tuple[LookCost, ...]:
    """Time captions one by one, from the picture's samples to the text; a round before the first only warms up.

    Args:
        methods: a model under each.
        pictures: to caption.
        runs: rounds.
        on_request: called after each caption.
    """
    looks = {"": None, **{mode: Verify(mode=mode) for mode in ASKING}}
    costs = []
    for name, lvlm in methods.items():
        seconds: dict[str, list[float]] = {mode: [] for mode in looks}
        for number in range(runs + 1):
            spent = dict.fromkeys(looks, 0.0)
            things = rewritten = 0
            for picture in pictures if number else pictures[:1]:
                for mode, look in looks.items():
                    began = time.perf_counter()
                    result = lvlm.caption(picture, verify=look)
                    spent[mode] += time.perf_counter() - began
                    things += len(result.objects or ()) if mode == "flag" else 0
                    rewritten += result.draft is not None
                    on_request()
            if number:
                for mode, total in spent.items():
                    seconds[mode].append(total)
        alone = seconds.pop("")
        costs.append(
            LookCost(
                name,
                len(pictures),
                things / len(pictures),
                rewritten,
                Spread.of([total / len(pictures) for total in alone]),
                {mode: Spread.of([a / b for a, b in zip(own, alone, strict=True)]) for mode, own in seconds.items()},
            )
        )
    return tuple(costs)


def look_requests(methods: int, pictures: int, runs: int) -> int:
    """Return the number of captions of `look_costs`."""
    return methods * (1 + len(ASKING)) * (1 + pictures * runs)
