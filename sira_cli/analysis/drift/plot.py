"""The paper's Figure 4, (a) and (b), as a picture file (extra `plot`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sira_cli.analysis.plots import new_figure, write_figure

if TYPE_CHECKING:
    from typing import BinaryIO

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sira_cli.analysis.drift.profiles import DriftReport, Profile

# Colours of Okabe and Ito, distinct for the colour-blind; markers and hatches make them distinct in grey.
STYLES = {
    "cf": ("SIRA's CF stream", "#0072B2", "o", ""),
    "blur": ("Gaussian blur", "#D55E00", "s", "///"),
    "shuffle": ("patch shuffle", "#009E73", "^", "..."),
}


def draw(report: DriftReport, file: BinaryIO, ending: str) -> None:
    """Draw drift after every layer, and next-token KL."""
    figure = new_figure(4)
    layers, divergence = figure.subplots(1, 2, width_ratios=(2, 1))
    _draw_drift(layers, report)
    _draw_kl(divergence, report.references)
    _title(figure, report)
    write_figure(figure, file, ending)


def _draw_drift(axes: Axes, report: DriftReport) -> None:
    """Draw (a): a line per reference, a band of one standard error, the boundary."""
    from matplotlib.ticker import MaxNLocator

    numbers = range(1, report.layers + 1)
    for name, profile in report.references.items():
        label, colour, marker, _ = STYLES[name]
        mean = [layer.mean for layer in profile.drift]
        axes.plot(numbers, mean, color=colour, marker=marker, markersize=4, label=label)
        error = [layer.stderr or 0.0 for layer in profile.drift]
        low, high = ([m + sign * e for m, e in zip(mean, error, strict=True)] for sign in (-1, 1))
        axes.fill_between(numbers, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.axvline(report.boundary, color="0.3", linestyle="--", linewidth=1, label=f"fork after b = {report.boundary}")
    axes.set_title("(a) layer-wise drift")
    axes.set_xlabel("decoder layer")
    axes.set_ylabel("1 - cosine similarity to the full stream")
    axes.set_xlim(0.5, report.layers + 0.5)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend()


def _draw_kl(axes: Axes, references: dict[str, Profile]) -> None:
    """Draw (b): a bar per reference, its value, one standard error."""
    for name, profile in references.items():
        label, colour, _, hatch = STYLES[name]
        bars = axes.bar(
            [label.replace(" ", "\n", 1)],
            [profile.kl.mean],
            yerr=[profile.kl.stderr or 0.0],
            capsize=3,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            ecolor="0.2",
        )
        axes.bar_label(bars, fmt="%.3g", padding=3)
    axes.margins(y=0.15)
    axes.set_title("(b) next-token KL")
    axes.set_ylabel("KL(full || reference), nats")


def _title(figure: Figure, report: DriftReport) -> None:
    pictures = f"{report.pictures} picture" + "s" * (report.pictures != 1)
    error = ", ± standard error" * (report.pictures > 1)
    figure.suptitle(f"{report.preset or report.model}: K = {report.k} of {report.layers} layers, {pictures}{error}")
