"""KL and drift over K as a picture file (extra `plot`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sira_cli.analysis.calibration.which_k import SHARE
from sira_cli.analysis.plots import new_figure, write_figure

if TYPE_CHECKING:
    from typing import BinaryIO

    from matplotlib.axes import Axes

    from sira_cli.analysis.calibration.k_report import KReport
    from sira_cli.analysis.drift.profiles import Estimate

COLOUR = "#0072B2"


def draw(report: KReport, file: BinaryIO, ending: str) -> None:
    """Draw KL and late drift over K, with bands of one standard error, the rule's K and the paper's.

    Args:
        report: what was measured.
        file: where to write it.
        ending: one of `plots.FORMATS`.
    """
    figure = new_figure(10, 4)
    left, right = figure.subplots(1, 2)
    _line(left, report, [row.kl for row in report.rows], "KL(full || CF), nats")
    left.axhline(SHARE * max(row.kl.mean for row in report.rows), color="0.6", linewidth=1)
    _line(right, report, [row.drift for row in report.rows], "late drift, 1 - cosine similarity")
    left.legend()
    pictures = f"{report.pictures} picture" + "s" * (report.pictures != 1)
    figure.suptitle(f"{report.preset or report.model}: {pictures}, {report.tokens:,} tokens of its own captions")
    write_figure(figure, file, ending)


def _line(axes: Axes, report: KReport, values: list[Estimate], title: str) -> None:
    from matplotlib.ticker import MaxNLocator

    ks = [row.k for row in report.rows]
    mean = [value.mean for value in values]
    axes.plot(ks, mean, color=COLOUR, marker="o", markersize=4)
    low, high = ([each.mean + sign * (each.stderr or 0.0) for each in values] for sign in (-1, 1))
    axes.fill_between(ks, low, high, color=COLOUR, alpha=0.2, linewidth=0)
    axes.axvline(report.k, color="0.2", linestyle="-", linewidth=1, label=f"the rule's K = {report.k}")
    axes.axvline(report.half, color="0.2", linestyle="--", linewidth=1, label=f"L/2 = {report.half}")
    axes.set_title(title)
    axes.set_xlabel(f"layers after the fork, K (of L = {report.layers})")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
