"""Do the scores of words tell hallucinated objects from true ones? Measured on held-out scenes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sira_cli.demo.evaluate import hallucinated
from sira_cli.demo.figures import markdown
from sira_cli.demo.language import mentions
from sira_cli.demo.scenes import Scene, render
from sira_cli.eval.stats.bootstrap import Figure
from sira_cli.models.word_scores import WordScores

BATCH = 50  # captions
RESAMPLES = 1_000
SCORES = ("grounding", "delta", "probability")  # the last: under the full stream alone, what the others have to beat


def measure_words(
    methods: dict[str, Any], subjects: list[Scene], on_progress: Callable[[int], None] = lambda done: None
) -> dict[str, dict[str, Any]]:
    """AUROC of each score over the object words of each decoder's captions.

    Args:
        methods: `Lvlm`s of the bundled model.
        subjects: the scenes.
        on_progress: told how many scenes are done, of each method anew.

    Returns:
        Per method `words`, `hallucinated` (counts) and a `Figure` for each of `SCORES`, in percent, with its 95 %
        bootstrap interval over scenes: 100 tells all true words from hallucinated ones, 50 is chance; None if
        the captions have words of one kind only.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, lvlm in methods.items():
        rows = []  # of a word: scene, hallucinated, scores
        for start in range(0, len(subjects), BATCH):
            batch = subjects[start : start + BATCH]
            for scene, (of, scored) in enumerate(zip(batch, _captions(lvlm, batch), strict=True), start=start):
                rows += [(scene, *row) for row in _object_words(of, *scored)]
            on_progress(start + len(batch))
        table = np.array(rows, dtype=float).reshape(-1, 2 + len(SCORES))
        found[name] = {"words": len(table), "hallucinated": int(table[:, 1].sum())}
        for column, score in enumerate(SCORES, start=2):
            found[name][score] = _with_interval(table[:, 0], table[:, 1] > 0, table[:, column], len(subjects))
    return found


def from_json(content: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What `measure_words` returned, after it has been through JSON (`dataclasses.asdict` for figures)."""
    return {
        name: row | {score: row[score] and Figure(**row[score]) for score in SCORES} for name, row in content.items()
    }


def words_table(found: dict[str, dict[str, Any]]) -> str:
    """Markdown."""
    rows = [["words of", "object words", "hallucinated", *(f"AUROC of {score}" for score in SCORES)]]
    for name, row in found.items():
        rows.append([name, str(row["words"]), str(row["hallucinated"]), *(f"{row[score] or '-'}" for score in SCORES)])
    return markdown(rows)


def auroc(positive: np.ndarray, score: np.ndarray) -> float:
    """Probability that a positive's score is above a negative's, ties counted half; NaN without both kinds."""
    _, rank, count = np.unique(score, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    average = last - (count - 1) / 2  # of the ranks that equal scores share
    ups, downs = int(positive.sum()), int((~positive).sum())
    if not ups or not downs:
        return float("nan")
    return float((average[rank][positive].sum() - ups * (ups + 1) / 2) / (ups * downs))


def _captions(lvlm: Any, batch: list[Scene]) -> list[tuple[str, list[dict[str, Any]], list[dict[str, Any]]]]:
    """Of each scene the caption, and its words under the contrast and under the full stream alone."""
    inputs = lvlm.prepare([render(of)[0] for of in batch], [lvlm.preset.prompts.caption] * len(batch))
    contrast, full = WordScores(lvlm.vocabulary, lvlm.sira.alpha), WordScores(lvlm.vocabulary, 0.0)

    def add(tokens: list[int], step: Any) -> None:
        contrast.add(tokens, step)
        full.add(tokens, step)

    rows = [lvlm.until_end(row) for row in lvlm.generate(inputs, on_tokens=add).tolist()]
    texts = [lvlm.vocabulary.text(row).strip() for row in rows]
    return [
        (text, contrast.words(number, len(row)), full.words(number, len(row)))
        for number, (text, row) in enumerate(zip(texts, rows, strict=True))
    ]


def _object_words(
    of: Scene, text: str, contrast: list[dict[str, Any]], full: list[dict[str, Any]]
) -> list[tuple[bool, float, float, float]]:
    """Every mention of an object: hallucinated, and its scores; of several words their product or sum."""
    wrong = set(hallucinated(of, text))
    rows = []
    for start, end, _ in mentions(text):
        at = [number for number, word in enumerate(contrast) if word["start"] < end and word["end"] > start]
        rows.append(
            (
                (start, end) in wrong,
                float(np.prod([contrast[number]["grounding"] for number in at])),
                sum(contrast[number]["delta"] for number in at),
                float(np.prod([full[number]["grounding"] for number in at])),
            )
        )
    return rows


def _with_interval(scenes: np.ndarray, wrong: np.ndarray, score: np.ndarray, size: int) -> Figure | None:
    """AUROC of true words against hallucinated ones; the bootstrap draws scenes."""
    if wrong.all() or not wrong.any():
        return None
    rng = np.random.default_rng(0)
    words = [np.flatnonzero(scenes == scene) for scene in range(size)]
    drawn = []
    for _ in range(RESAMPLES):
        picked = np.concatenate([words[scene] for scene in rng.integers(size, size=size)])
        drawn.append(auroc(~wrong[picked], score[picked]))
    low, high = np.nanpercentile(drawn, [2.5, 97.5])
    return Figure(100 * auroc(~wrong, score), 100 * float(low), 100 * float(high))
