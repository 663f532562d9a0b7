"""Let decoders caption scenes that the model never saw, and answer POPE-style questions about them.

In every second scene co-occurrence is broken: the objects are not those that usually go with the place.
What is counted here becomes figures in `figures.py`.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image

from sira_cli.demo import MODEL
from sira_cli.demo.figures import SPLITS, Counts, Report, Split
from sira_cli.demo.language import mentions, yes_no_question
from sira_cli.demo.scenes import TRAINING_SEEDS, Scene, render, scene
from sira_cli.demo.world import OBJECTS
from sira_cli.eval.pope import official

PER_ANSWER = 3  # questions about things that are there, and per split about things that are not
T = TypeVar("T")
BATCH = 50  # captions; twice as many answers


def load_methods(folder: Path = MODEL) -> dict[str, Any]:
    """An `Lvlm` for each decoder: the model in `folder` with the settings of the preset `demo`."""
    return {method: load_method(method, folder) for method in ("greedy", "sira")}


def load_method(method: str, folder: Path = MODEL, **settings: Any) -> Any:
    """The model in `folder` under one decoder; the preset `demo`'s settings unless given here."""
    from sira_cli.models import presets
    from sira_cli.models.loading import load

    preset = presets.find("demo")
    if folder != MODEL:
        preset = preset.model_copy(update={"model": str(folder)})
    return load(preset, method=method, **settings)


def measure(
    methods: dict[str, Any],
    subjects: list[Scene],
    questions: Questions | None = None,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Report:
    """Compare decoders, each an `Lvlm` of the bundled model, on the same scenes.

    Args:
        methods: the first is what the others are compared with.
        subjects: the scenes.
        questions: None measures captions only.
        on_progress: told how many scenes are done.
    """
    counts: dict[str, list[dict[str, int]]] = {name: [] for name in methods}
    done = 0
    for batch in batches(subjects, BATCH):
        pictures = [render(of)[0] for of in batch]
        asked = [questions.about(of) if questions else [] for of in batch]
        for name, lvlm in methods.items():
            captions = _say(lvlm, pictures, [lvlm.preset.prompts.caption] * len(batch))
            answers = _answers(lvlm, pictures, asked)
            counts[name] += [_count(*row) for row in zip(batch, captions, asked, answers, strict=True)]
        done += len(batch)
        on_progress(done)
    return Report.of(
        {name: columns(rows) for name, rows in counts.items()},
        {name: _settings(lvlm) for name, lvlm in methods.items()},
    )


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Neighbours, `size` of them at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def held_out(seed: int) -> Scene:
    """The scene of a seed, with broken co-occurrence if the seed is odd."""
    return scene(seed, broken=seed % 2 == 1)


def hallucinated(of: Scene, text: str) -> list[tuple[int, int]]:
    """Start and end of every mention of something that is not in the scene."""
    return [(start, end) for start, end, name in mentions(text) if name not in of.objects]


@functools.cache
def _co_occurrence(sample: int) -> tuple[Counter[str], dict[str, Counter[str]]]:
    """How often objects are in training scenes, and how often together with a place or with another object."""
    frequency: Counter[str] = Counter()
    together: dict[str, Counter[str]] = {}
    for seed in TRAINING_SEEDS[:sample]:
        of = scene(seed)
        names = list(of.objects)
        frequency.update(names)
        for context in (of.place, *names):
            together.setdefault(context, Counter()).update(names)
    return frequency, together


@dataclass(frozen=True)
class Question:
    """POPE's question about one object; `splits` are those it belongs to."""

    name: str
    there: bool
    splits: tuple[Split, ...]


class Questions:
    """POPE's three splits (Li et al. 2023, Section 5.1), with co-occurrence as it is in training.

    About every scene PER_ANSWER objects that are there and, for each split, as many that are not:
    `random`: any; `popular`: the most frequent ones; `adversarial`: those that most often go with what is in
    the picture, its place included.
    """

    def __init__(self, sample: int = 2_000) -> None:
        self._frequency, self._together = _co_occurrence(sample)

    def about(self, of: Scene) -> list[Question]:
        """The questions about one scene, without repetition: those to be answered with yes first."""
        rng = np.random.default_rng([of.seed, of.broken, 3])
        there = [str(name) for name in rng.permutation(list(of.objects))]
        absent = [str(name) for name in rng.permutation([name for name in OBJECTS if name not in of.objects])]
        ranked: dict[Split, list[str]] = {
            "random": absent,
            "popular": sorted(absent, key=lambda name: -self._frequency[name]),
            "adversarial": sorted(absent, key=lambda name: -self._affinity(name, of)),
        }
        splits: dict[str, list[Split]] = {}
        for split, names in ranked.items():
            for name in names[:PER_ANSWER]:
                splits.setdefault(name, []).append(split)
        return [Question(name, True, SPLITS) for name in there[:PER_ANSWER]] + [
            Question(name, False, tuple(chosen)) for name, chosen in splits.items()
        ]

    def _affinity(self, name: str, of: Scene) -> float:
        contexts = [self._together[context] for context in (of.place, *of.objects) if context in self._together]
        return sum(together[name] / together.total() for together in contexts)


def caption_counts(of: Scene, caption: str) -> dict[str, int]:
    """Everything about the caption of a scene that CHAIR's figures are ratios of."""
    named = [name for _, _, name in mentions(caption)]
    wrong = hallucinated(of, caption)
    return {
        "captions": 1,
        "captions with a hallucination": int(bool(wrong)),
        "mentions": len(named),
        "hallucinated mentions": len(wrong),
        "objects": len(of.objects),
        "objects mentioned": len(set(named) & set(of.objects)),
        "words": len(caption.split()),
    }


def answer_counts(splits: Sequence[str], answered: Iterable[tuple[bool, Sequence[str], str]]) -> dict[str, int]:
    """Everything about one picture that POPE's figures are ratios of.

    Args:
        splits: all there are.
        answered: whether yes is the true answer, the splits that the question belongs to, and what was said.
    """
    row = {f"{split} {cell}": 0 for split in splits for cell in ("TP", "FP", "TN", "FN")}
    for there, belongs_to, answer in answered:
        yes = official(answer)
        cell = ("TP" if yes else "FN") if there else ("FP" if yes else "TN")
        for split in belongs_to:
            row[f"{split} {cell}"] += 1
    return row


def columns(rows: Sequence[dict[str, int]]) -> Counts:
    """Counts of N scenes or pictures, one after the other: `[N]` each."""
    return {name: np.array([row[name] for row in rows], dtype=float) for name in rows[0]}


def _count(of: Scene, caption: str, questions: list[Question], answers: list[str]) -> dict[str, int]:
    answered = ((asked.there, asked.splits, answer) for asked, answer in zip(questions, answers, strict=True))
    return caption_counts(of, caption) | (answer_counts(SPLITS, answered) if questions else {})


def _settings(lvlm: Any) -> dict[str, Any]:
    if lvlm.method == "greedy":
        return {}
    return {"k": lvlm.k, "layers": lvlm.layers, "alpha": lvlm.alpha}


def _answers(lvlm: Any, pictures: list[Image.Image], asked: list[list[Question]]) -> list[list[str]]:
    flat = [
        (picture, yes_no_question(question.name))
        for picture, questions in zip(pictures, asked, strict=True)
        for question in questions
    ]
    texts = [
        text
        for part in batches(flat, 2 * BATCH)
        for text in _say(lvlm, [picture for picture, _ in part], [question for _, question in part])
    ]
    rest = iter(texts)
    return [[next(rest) for _ in questions] for questions in asked]


def _say(lvlm: Any, pictures: list[Image.Image], prompts: list[str]) -> list[str]:
    return [answer.text for answer in lvlm.answer(lvlm.prepare(pictures, prompts))]
