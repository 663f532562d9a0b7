"""Do the scores of words separate hallucinated objects from true ones? Measured on held-out scenes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sira_cli.core.streams import Step
from sira_cli.demo.measure import markdown
from sira_cli.demo.questions import hallucinated, mentions
from sira_cli.demo.scenes import Scene, render
from sira_cli.eval.statistics import Figure, auroc_interval
from sira_cli.models.progress import WordScores
from sira_cli.run.lvlm import Lvlm

BATCH = 50  # captions
FIFTHS = (0.8, 0.6, 0.4, 0.2)  # groundings between rows of the table
SCORES = ("grounding", "delta", "probability")  # the last, of the full stream alone, is the baseline


def measure_words(methods: Mapping[str, Lvlm], scenes: Sequence[Scene]) -> dict[str, dict[str, Any]]:
    """Measure the AUROC of each score over the object words of each decoder's captions."""
    found: dict[str, dict[str, Any]] = {}
    for name, lvlm in methods.items():
        rows = []  # one per word: scene, hallucinated, scores
        for start in range(0, len(scenes), BATCH):
            batch = scenes[start : start + BATCH]
            for number, (scene, scored) in enumerate(
                zip(batch, scored_captions(lvlm, batch), strict=True), start=start
            ):
                rows += [(number, *row) for row in object_words(scene, *scored)]
        table = np.array(rows, dtype=float).reshape(-1, 2 + len(SCORES))
        degrees = np.array([sum(grounding < edge for edge in FIFTHS) for grounding in table[:, 2]])
        found[name] = {
            "words": len(table),
            "hallucinated": int(table[:, 1].sum()),
            "by_doubt": [
                [int((degrees == degree).sum()), int(table[degrees == degree, 1].sum())]
                for degree in range(len(FIFTHS) + 1)
            ],
        }
        for column, score in enumerate(SCORES, start=2):
            found[name][score] = auroc_interval(table[:, 0], table[:, 1] == 0, table[:, column], len(scenes))
    return found


def from_json(content: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Restore the result of `measure_words` from JSON (`dataclasses.asdict` for figures)."""
    return {
        name: row | {score: row[score] and Figure(**row[score]) for score in SCORES} for name, row in content.items()
    }


def words_table(found: dict[str, dict[str, Any]]) -> str:
    """Return the table in Markdown."""
    rows = [["words of", "object words", "hallucinated", *(f"AUROC of {score}" for score in SCORES)]]
    for name, row in found.items():
        rows.append([name, str(row["words"]), str(row["hallucinated"]), *(f"{row[score] or '-'}" for score in SCORES)])
    return markdown(rows)


def doubt_table(found: dict[str, dict[str, Any]]) -> str:
    """Return in Markdown the hallucination rate of object words by grounding."""
    rows = [["grounding", *(cell for name in found for cell in (f"words of {name}", "hallucinated"))]]
    edges = [1.0, *FIFTHS, 0.0]
    for degree in reversed(range(len(FIFTHS) + 1)):
        counts = [row["by_doubt"][degree] for row in found.values()]
        shares = ((str(words), f"{100 * wrong / words:.0f} %" if words else "-") for words, wrong in counts)
        rows.append([f"{edges[degree + 1]:g} to {edges[degree]:g}", *(cell for pair in shares for cell in pair)])
    return markdown(rows)


def scored_captions(lvlm: Lvlm, batch: Sequence[Scene]) -> list[tuple[str, list[dict[str, Any]], list[dict[str, Any]]]]:
    """Return each scene's caption, and its words under the contrast and under the full stream alone."""
    inputs = lvlm.prepare([render(scene)[0] for scene in batch], [lvlm.preset.prompts.caption] * len(batch))
    contrast, full = WordScores(lvlm.parser, lvlm.sira.alpha), WordScores(lvlm.parser, 0.0)

    def add(tokens: list[int], step: Step) -> None:
        contrast.add(tokens, step)
        full.add(tokens, step)

    rows = [lvlm.ends.until_end(row) for row in lvlm.generate(inputs, on_tokens=add).tolist()]
    texts = [lvlm.vocabulary.text(row).strip() for row in rows]
    return [
        (text, contrast.words(number, len(row)), full.words(number, len(row)))
        for number, (text, row) in enumerate(zip(texts, rows, strict=True))
    ]


def object_words(
    scene: Scene, text: str, contrast: list[dict[str, Any]], full: list[dict[str, Any]]
) -> list[tuple[bool, float, float, float]]:
    """Return whether each mention of an object is hallucinated, and its scores; several words multiply or add up."""
    wrong = set(hallucinated(scene, text))
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
