"""`sira drift`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from sira_cli.cli.loading import load_model
from sira_cli.cli.options.choosing import choose_preset
from sira_cli.cli.options.common import (
    AsJson,
    Depth,
    FewOptions,
    Images,
    Overwrite,
    Plot,
    Question,
    Quiet,
    ReportFile,
    ResearchModelOptions,
    Verbose,
)
from sira_cli.cli.options.groups import with_options
from sira_cli.cli.terminal.console import set_verbosity
from sira_cli.cli.terminal.output import (
    check_file,
    check_plot,
    new_table,
    save_plot,
    show_report,
    table_console,
)
from sira_cli.cli.terminal.stages import measured

if TYPE_CHECKING:
    from sira_cli.analysis.drift.profiles import DriftReport, Estimate, FailedFile

ROWS = 16  # in the table; more layers share rows


EXAMPLES = """
sira drift photo.jpg
sira drift photos/ --limit 20 --plot drift.png
"""


@with_options()
def drift(
    *,
    paths: Images = None,
    question: Question = None,
    k: Depth = None,
    model: ResearchModelOptions,
    selection: FewOptions,
    output: ReportFile = None,
    plot: Plot = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Measure how far SIRA's CF stream and blurred or shuffled pictures diverge from the original (Figure 4).

    Two measures are shown: after every layer, 1 - cosine similarity to the full model, at the position that
    predicts the next token; and for the next token, KL(full || reference) in nats. A question (--question) shows more
    than a caption, whose first word may always be the same. The paper does not give the strength of its blur and
    shuffle: these are ours.
    """
    set_verbosity(quiet, verbose)
    from sira_cli.pictures.perturb import Perturbations

    perturbations = Perturbations()
    check_file("--output", output, overwrite)
    check_plot(plot, overwrite)
    pictures = selection.selected(paths).pictures()
    preset = choose_preset(model, k=k)
    text = preset.prompts.caption if question is None else preset.prompts.asking(question)
    lvlm = load_model(preset, model, "sira", pictures=pictures)
    from sira_cli.analysis.drift.measure import measure_each
    from sira_cli.analysis.drift.profiles import DriftReport, FailedFile

    failures: list[FailedFile] = []
    found = measured(
        measure_each(lvlm, pictures, text, perturbations),
        len(pictures),
        lambda picture, error: failures.append(FailedFile(picture.name_in(None), error)),
    )
    if divergences := list(found):
        report = DriftReport.of(lvlm, text, perturbations, divergences, failures)
        show_report(report, _print, as_json, output)
        if plot is not None:
            from sira_cli.analysis.drift.plot import draw

            save_plot(draw, report, plot)
    if failures:
        raise typer.Exit(3)


def _print(report: DriftReport) -> None:
    """Print the table: layers (no row spans the boundary), stages, KL."""
    from sira_cli.analysis.drift.plot import STYLES

    out = table_console()
    table = new_table("drift after layer", figures=(STYLES[name][0] for name in report.references))
    profiles, b = report.references.values(), report.boundary
    size = -(-report.layers // ROWS)
    for start, end in ((0, b), (b, report.layers)):
        for first in range(start, end, size):
            last = min(first + size, end)
            means = [[layer.mean for layer in profile.drift[first:last]] for profile in profiles]
            rows = f"{first + 1}" if last == first + 1 else f"{first + 1}-{last}"
            table.add_row(rows, *(f"{sum(mean) / len(mean):.4f}" for mean in means), end_section=last == end)
    early, late = ([_shown(getattr(profile, stage), ".4f") for profile in profiles] for stage in ("early", "late"))
    table.add_row(f"early, 1-{b}", *early)
    table.add_row(f"late, {b + 1}-{report.layers}", *late, end_section=True)
    table.add_row("next-token KL, nats", *(_shown(profile.kl, ".2g") for profile in profiles))
    out.print(table)
    how, pictures = report.perturbations, f"{report.pictures} picture" + "s" * (report.pictures != 1)
    out.print(
        f"{pictures}; K = {report.k} of L = {report.layers}, fork at b = {b}; blur {how.blur:g} of the shorter side, "
        f"{how.patches} x {how.patches} patches" + "; ± standard error" * (report.pictures > 1)
    )


def _shown(value: Estimate, digits: str) -> str:
    return f"{value.mean:{digits}}" + ("" if value.stderr is None else f" ±{value.stderr:{digits}}")
