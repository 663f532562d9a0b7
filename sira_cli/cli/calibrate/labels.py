"""What is there: the labels that captions are held against, and the share of it that may fall below the line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from sira_cli.analysis.calibration.support import Caption, Labelled

Annotations = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="What is there: the folder of COCO's annotations, for pictures of COCO."),
]
Labels = Annotated[
    Path | None,
    typer.Option(metavar="FILE.json", help='What is there: {"a.jpg": ["dog", "car"], ...}, all that is in each.'),
]
FalseAlarms = Annotated[
    float,
    typer.Option(
        "--false-alarms", metavar="PERCENT", min=0, max=100, help="Things that are there may fall below the line."
    ),
]


def labelling(
    annotations: Path | None, labels: Path | None
) -> Callable[[Sequence[Caption]], tuple[list[Labelled], int]]:
    """Return what labels captions, and counts the things that it knows nothing about.

    Raises:
        SettingsError: there are no labels, or two kinds of them.
    """
    if (annotations is None) == (labels is None):
        raise SettingsError("say what is there with --annotations PATH (COCO's) or --labels FILE.json: one of them")
    from sira_cli.analysis.calibration.support import from_coco, from_labels

    def label(captions: Sequence[Caption]) -> tuple[list[Labelled], int]:
        if annotations is not None:
            return from_coco(captions, annotations)
        assert labels is not None
        return from_labels(captions, labels), 0

    return label
