"""A benchmark made up for tests, and answers to it."""

from __future__ import annotations

import json
from collections.abc import Mapping

from sira_cli.eval.answers import Answers
from sira_cli.eval.benchmark import Ask, Benchmark, Counted, Part


def share(total: Mapping[str, float]) -> dict[str, float]:
    return {"share": 100 * total["right"] / total["all"] if total["all"] else 0.0}


class Made(Benchmark):
    """A benchmark of two groups: what is said is right if it is `1`."""

    name = "made"

    def __init__(self, pictures: int = 40) -> None:
        asks = (Ask(f"{group}/{number}", f"{number}.jpg", "?") for group in "ab" for number in range(pictures))
        self.parts = (Part("only", "ask", tuple(asks), ("a", "b")),)

    def means(self, part):
        return {"mean": part.groups}

    def count(self, part, texts):
        for ask in part.asks:
            if ask.id in texts:
                right = texts[ask.id] == "1"
                yield Counted(ask.id, ask.picture, (ask.id[0],), right, {"right": right, "all": 1})

    def figures(self, group, total, *, smooth=False):
        return share(total)

    def denominators(self, group):
        return {"share": ("all",)}

    def reduce(self, part, text):
        return text.rstrip(".")

    def read(self, paths):
        return {"only": json.loads(paths[0].read_text())}


def said(name: str, a: str, b: str) -> Answers:
    texts = {f"{group}/{number}": text for group, row in (("a", a), ("b", b)) for number, text in enumerate(row)}
    return Answers(name, {"only": {ask: text for ask, text in texts.items() if text != "-"}})
