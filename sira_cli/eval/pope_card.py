"""POPE's card. Its code is imported when files are read: the catalogue is read whenever the command line starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sira_cli.eval.base import ONE_WORD
from sira_cli.eval.card import Asking, Card
from sira_cli.eval.options import Option

if TYPE_CHECKING:
    from sira_cli.eval.pope import Pope

SUFFIX = Option("suffix", "text after each yes/no question; empty: none", default=ONE_WORD)


def _read(paths: Sequence[Path], asking: Asking) -> Pope:
    from sira_cli.eval.answers.read import expand
    from sira_cli.eval.pope import Pope

    options = asking.options
    return Pope(
        paths,
        rule=options.get("rule", "official"),
        suffix=options.get("suffix", ONE_WORD),
        limit=asking.limit,
        repope=CARD.files_in(expand("repope", options["repope"])) if "repope" in options else (),
    )


CARD = Card(
    name="pope",
    title="Yes/no questions about objects",
    source="Li et al. 2023",
    figures="accuracy, F1, precision, recall, FPR, yes-rate",
    files=("coco_pope_random.json", "coco_pope_popular.json", "coco_pope_adversarial.json"),
    holds="POPE's files of questions, one per split, such as coco_pope_random.json",
    size="0.3 MB per file; COCO val2014 (6 GB)",
    licence="MIT",
    url="https://github.com/RUCAIBox/POPE (folder output/coco)",
    answers='{"question", "answer"} in the order of the questions, or {"question_id", "text"}',
    note="Give one file of answers per file of questions.",
    read=_read,
    several=True,
    options=(
        Option(
            "rule",
            "script whose rule decides what counts as yes or no",
            ("official", "vcd", "opera", "strict", "repope"),
            "official",
        ),
        Option("repope", "RePOPE's files, their folder or a pattern: also show figures with its corrected labels"),
        SUFFIX,
    ),
)
