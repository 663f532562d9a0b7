"""The paper's Figure 3 as a picture file (extra `plot`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sira_cli.analysis.plots import new_figure, write_figure
from sira_cli.analysis.sweep.cells import GREEDY, Cell

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import BinaryIO

    from matplotlib.axes import Axes

    from sira_cli.analysis.sweep.outcome import SweepReport

# Colours of Okabe and Ito, which the colour-blind tell apart; markers tell them apart in grey.
STYLES = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"), ("#E69F00", "v"), ("#56B4E9", "P"))


def draw(report: SweepReport, file: BinaryIO, ending: str) -> None:
    """Draw the score over K at the best alpha, and over alpha, from greedy on, at the best K.

    Where the best setting is not in the grid, the nearest one takes its place.

    Args:
        report: what was measured.
        file: where to write it.
        ending: .png, .pdf or .svg.
    """
    from matplotlib.ticker import MaxNLocator

    ks, alphas = sorted({row.k for row in report.rows[1:]}), sorted({row.alpha for row in report.rows[1:]})
    k = min(ks, key=lambda value: abs(value - report.best.k))
    alpha = min(alphas, key=lambda value: abs(value - report.best.alpha))
    figure = new_figure(10, 4.2)
    over_k, over_alpha = figure.subplots(1, 2, sharey=True)
    _panel(over_k, report, ks, [Cell(value, alpha) for value in ks])
    over_k.set_title(f"(a) alpha = {alpha:g}")
    over_k.set_xlabel(f"layers after the fork, K (of L = {report.layers})")
    over_k.xaxis.set_major_locator(MaxNLocator(integer=True))
    over_k.set_ylabel(f"{report.score}, percent")
    _panel(over_alpha, report, [0, *alphas], [GREEDY, *(Cell(k, value) for value in alphas)])
    over_alpha.set_title(f"(b) K = {k}")
    over_alpha.set_xlabel("contrast strength, alpha")
    handles, labels = over_k.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4), frameon=False)
    figure.suptitle(
        f"{report.preset or report.model}: {report.questions:,} questions, {report.pictures:,} pictures, "
        "95 % intervals; dashed: greedy"
    )
    write_figure(figure, file, ending)


def _panel(axes: Axes, report: SweepReport, values: Sequence[float], cells: Sequence[Cell]) -> None:
    """Draw a line per split over cells in the order of the rows, with its interval as a band, and greedy's value."""
    for number, split in enumerate(report.splits):
        colour, marker = STYLES[number % len(STYLES)]
        name = f"{split} {report.score}"
        found = [row.figures[name] for row in report.rows if Cell(row.k, row.alpha) in cells]
        axes.plot(values, [each.value for each in found], color=colour, marker=marker, markersize=4, label=split)
        axes.fill_between(
            values, [each.low for each in found], [each.high for each in found], color=colour, alpha=0.15, linewidth=0
        )
        axes.axhline(report.greedy.figures[name].value, color=colour, linestyle="--", linewidth=1)
    axes.grid(alpha=0.3)
