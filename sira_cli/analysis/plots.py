"""Figures as picture files (extra `plot`)."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sira_cli.errors import SettingsError, install

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".pdf", ".svg")
# Okabe and Ito's colours, distinct for the colour-blind; markers make lines distinct in grey.
STYLES = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"), ("#E69F00", "v"), ("#56B4E9", "P"))


def check_format(path: Path) -> None:
    """Check that a figure can be drawn to a path."""
    if path.suffix.lower() not in FORMATS:
        raise SettingsError(f"{path}: expected a name that ends in {', '.join(FORMATS)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise SettingsError(f"{path}: a figure needs matplotlib: {install('plot')}")


def new_figure(height: float) -> Figure:
    """Make an empty figure of 10 by `height` inches, without pyplot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw_line(axes: Any, x: Sequence[float], values: Sequence[tuple[float, float, float]], label: str, n: int) -> str:
    """Draw values with a band from low to high around them in the n-th style, and return its colour."""
    colour, marker = STYLES[n % len(STYLES)]
    value, low, high = zip(*values, strict=True)
    axes.plot(x, value, color=colour, marker=marker, markersize=4, label=label)
    axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
    return colour
