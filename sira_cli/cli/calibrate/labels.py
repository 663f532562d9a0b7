"""Ground truth for captions, and the false-alarm rate: real objects that may fall below the threshold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from sira_cli.analysis.calibration.support import Caption, Labelled

FALSE_ALARMS = 3.0  # percent

Annotations = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="Labels: folder of COCO annotations."),
]
Labels = Annotated[
    Path | None,
    typer.Option(metavar="FILE.json", help='Labels: {"a.jpg": ["dog", "car"], ...}, all objects.'),
]
FalseAlarms = Annotated[
    float,
    typer.Option(
        "--false-alarms",
        metavar="PERCENT",
        min=0,
        max=100,
        help="Share of real objects that may be marked.",
    ),
]


def labelling(
    annotations: Path | None, labels: Path | None
) -> Callable[[Sequence[Caption]], tuple[list[Labelled], int]]:
    """Return a function that labels captions, and counts the objects without a label.

    Raises:
        SettingsError: no labels are given, or two kinds.
    """
    if (annotations is None) == (labels is None):
        raise SettingsError("give the ground truth: --annotations PATH (COCO's) or --labels FILE.json, not both")
    from sira_cli.analysis.calibration.support import from_coco, from_labels

    def label(captions: Sequence[Caption]) -> tuple[list[Labelled], int]:
        if annotations is not None:
            return from_coco(captions, annotations)
        assert labels is not None
        return from_labels(captions, labels), 0

    return label
