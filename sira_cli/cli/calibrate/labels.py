"""Options of ground truth for captions, and of the false-alarm rate: real objects that may fall below the threshold."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
