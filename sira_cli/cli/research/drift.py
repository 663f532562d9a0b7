"""`sira drift`."""

from __future__ import annotations

import typer

from sira_cli.cli.loading import load_model
from sira_cli.cli.options.choosing import choose_preset
from sira_cli.cli.options.groups import (
    Depth,
    FewOptions,
    Images,
    Plot,
    Question,
    ReportOptions,
    ResearchModelOptions,
    with_options,
)
from sira_cli.cli.terminal.console import show_stages
from sira_cli.cli.terminal.output import check_plot, save_plot, show_report

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
    plot: Plot = None,
    model: ResearchModelOptions,
    selection: FewOptions,
    target: ReportOptions,
) -> None:
    """Measure how far SIRA's CF stream and blurred or shuffled pictures diverge from the original (Figure 4).

    Two measures are shown: after every layer, 1 - cosine similarity to the full model, at the position that
    predicts the next token; and for the next token, KL(full || reference) in nats. A question (--question) shows more
    than a caption, whose first word may always be the same. The paper does not give the strength of its blur and
    shuffle: these are ours.
    """
    target.check()
    check_plot(plot, target.overwrite)
    pictures = selection.selected(paths).pictures()
    preset = choose_preset(model, k=k)
    prompt = preset.prompts.caption if question is None else preset.prompts.asking(question)
    lvlm = load_model(preset, model, "sira", pictures=pictures)
    from sira_cli.analysis.drift import Divergence, DriftReport, measure_pictures
    from sira_cli.analysis.experiment import Units

    units = Units[dict[str, Divergence]]()
    show_stages(measure_pictures(lvlm, pictures, prompt, units), len(pictures))
    if units:
        report = DriftReport.of(lvlm, prompt, units)
        show_report(report, target.as_json, target.output)
        if plot is not None:
            save_plot(report, plot)
    if units.failures:
        raise typer.Exit(3)
