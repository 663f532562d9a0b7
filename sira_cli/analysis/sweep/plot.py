"""The paper's Figure 3 as a picture file (extra `plot`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sira_cli.analysis.plots import new_figure, write_figure
from sira_cli.analysis.sweep import best
from sira_cli.analysis.sweep.cells import GREEDY, Cell

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import BinaryIO

    from matplotlib.axes import Axes

    from sira_cli.analysis.sweep.outcome import SweepReport

# Colours of Okabe and Ito, distinct for the colour-blind; markers make them distinct in grey.
STYLES = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"), ("#E69F00", "v"), ("#56B4E9", "P"))


def draw(report: SweepReport, file: BinaryIO, ending: str) -> None:
    """Draw the score over K at the best alpha, and over alpha, from greedy on, at the best K; see `panels`.

    If no setting is best, the one nearest to the paper's is drawn.
    """
    from matplotlib.ticker import MaxNLocator

    ks, alphas = sorted({row.k for row in report.rows[1:]}), sorted({row.alpha for row in report.rows[1:]})
    shown = report.best or best.paper(report.layers)
    k = min(ks, key=lambda value: abs(value - shown.k))
    alpha = min(alphas, key=lambda value: abs(value - shown.alpha))
    rows = panels(report)
    figure = new_figure(1 + 3.2 * len(rows))
    for number, (title, lines) in enumerate(rows.items()):
        over_k = figure.add_subplot(len(rows), 2, 2 * number + 1)
        over_alpha = figure.add_subplot(len(rows), 2, 2 * number + 2, sharey=over_k)
        _panel(over_k, report, lines, ks, [Cell(value, alpha) for value in ks])
        _panel(over_alpha, report, lines, [0, *alphas], [GREEDY, *(Cell(k, value) for value in alphas)])
        over_k.xaxis.set_major_locator(MaxNLocator(integer=True))
        over_k.set_ylabel(f"{title}, percent")
        if number == 0:
            over_k.set_title(f"(a) alpha = {alpha:g}")
            over_alpha.set_title(f"(b) K = {k}")
            handles, labels = over_k.get_legend_handles_labels()
    over_k.set_xlabel(f"layers after the fork, K (of L = {report.layers})")
    over_alpha.set_xlabel("contrast strength, alpha")
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4), frameon=False)
    figure.suptitle(
        f"{report.preset or report.model}: {report.questions:,} questions, {report.pictures:,} pictures, "
        "95 % intervals; dashed: greedy"
    )
    write_figure(figure, file, ending)


def panels(report: SweepReport) -> dict[str, dict[str, str]]:
    """Return the panels of the figure: by the title of a row, the measured figure of each line's label.

    The first row has the score of each split; with captions, the rows below have the figures of the rule.
    """
    rows = {report.score: {split: f"{split} {report.score}" for split in report.splits}}
    if report.captions:
        rows |= {name: {name: name} for name in ("CHAIRi", "coverage")}
    return rows


def _panel(
    axes: Axes, report: SweepReport, lines: Mapping[str, str], values: Sequence[float], cells: Sequence[Cell]
) -> None:
    """Draw a line per figure over cells in the order of the rows, with its interval as a band, and greedy's value."""
    for number, (label, name) in enumerate(lines.items()):
        colour, marker = STYLES[number % len(STYLES)]
        found = [row.figures[name] for row in report.rows if Cell(row.k, row.alpha) in cells]
        axes.plot(values, [each.value for each in found], color=colour, marker=marker, markersize=4, label=label)
        axes.fill_between(
            values, [each.low for each in found], [each.high for each in found], color=colour, alpha=0.15, linewidth=0
        )
        axes.axhline(report.greedy.figures[name].value, color=colour, linestyle="--", linewidth=1)
    axes.grid(alpha=0.3)
