"""`sira drift`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sira_cli.cli.console import note, say, set_verbosity
from sira_cli.cli.options import (
    DecodingOptions,
    Images,
    ModelOptions,
    Question,
    SelectionOptions,
    Verbose,
    check_file,
    choose_preset,
    load_model,
    with_options,
)
from sira_cli.cli.output import save_plot, table_console
from sira_cli.cli.pictures import chosen
from sira_cli.cli.progress import Progress
from sira_cli.errors import PictureError, SettingsError, SiraError

if TYPE_CHECKING:
    from sira_cli.analysis.drift.measure import Divergence
    from sira_cli.analysis.drift.report import DriftReport, Estimate, Failure
    from sira_cli.models.lvlm import Lvlm
    from sira_cli.pictures.perturb import Perturbations
    from sira_cli.pictures.sources import Source

ROWS = 16  # of layers in the table; more layers share rows


@with_options(model=ModelOptions, selection=SelectionOptions)
def drift(
    *,
    paths: Images = None,
    question: Question = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", help="The same without the preset's wording; default its caption prompt.")
    ] = None,
    k: Annotated[int | None, typer.Option(help="Layers after the fork, K; default the preset's.")] = None,
    blur: Annotated[
        float,
        typer.Option(metavar="RADIUS", help="Standard deviation of the blur, as a share of the shorter side."),
    ] = 0.05,
    patches: Annotated[int, typer.Option(metavar="N", help="Shuffle a grid of N x N patches.")] = 8,
    seed: Annotated[int, typer.Option(help="Of the shuffle.")] = 0,
    model: ModelOptions,
    selection: SelectionOptions,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE.json", help="The record that --json prints.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw a figure: .png, .pdf, .svg (extra `plot`).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of the table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Errors only.")] = False,
    verbose: Verbose = 0,
) -> None:
    """Measure how far SIRA's CF stream, a blurred and a shuffled picture stray (the paper's Figure 4).

    After every layer: 1 - cosine similarity to the full model, at the position that predicts the next
    token. Of the next token: KL(full || reference) in nats. A caption's first word may be always the
    same: a question (-q) tells more. The paper does not say how strong its blur and its shuffle are:
    the defaults are ours.
    """
    set_verbosity(quiet, verbose)
    if question is not None and prompt is not None:
        raise SettingsError("give --question or --prompt, not both")
    from sira_cli.analysis.plots import check_format
    from sira_cli.pictures.perturb import Perturbations

    perturbations = Perturbations(blur, patches, seed)
    for option, file in (("--output", output), ("--plot", plot)):
        check_file(option, file)
    if plot is not None:
        check_format(plot)
    sources = chosen(paths or [], selection)
    if not sources:
        note(f"--shard {selection.shard} holds none of the pictures")
        return
    preset = choose_preset(model, DecodingOptions(k=k), prompt=prompt)
    text = preset.prompts.caption if question is None else preset.prompts.asking(question)
    lvlm = load_model(preset, model, "sira")
    measured, failures = _measure(lvlm, sources, text, perturbations)
    if failures and len(sources) > 1:
        say(f"{len(failures)} of {len(sources)} pictures failed")
    if measured:
        from sira_cli.analysis.drift.report import DriftReport
        from sira_cli.files import replacing

        report = DriftReport.of(lvlm, text, perturbations, measured, failures)
        if as_json:
            print(report.to_json())
        else:
            _print(report)
        if output is not None:
            with replacing(output) as record:
                record.write(report.to_json().encode() + b"\n")
        if plot is not None:
            from sira_cli.analysis.drift.plot import draw

            save_plot(draw, report, plot)
    if failures:
        raise typer.Exit(3)


def _measure(
    lvlm: Lvlm, sources: list[Source], prompt: str, perturbations: Perturbations
) -> tuple[list[dict[str, Divergence]], list[Failure]]:
    """Every picture; those that fail are said, and the others go on."""
    from sira_cli.analysis.drift.measure import measure_drift
    from sira_cli.analysis.drift.report import Failure
    from sira_cli.models.records import as_text
    from sira_cli.pictures.opening import one_line
    from sira_cli.pictures.sources import STDIN

    measured, failures = [], []
    with Progress.shown("pictures", len(sources)) as progress:
        for source in sources:
            try:
                picture: Any = sys.stdin.buffer if source.path == STDIN else source.path
                measured.append(measure_drift(lvlm, picture, prompt, perturbations))
                progress.advance()
                continue
            except PictureError as error:
                message = str(error)
            except SiraError:
                raise
            except Exception as error:
                message = f"{one_line(source.path)}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            say(message)
            failures.append(Failure(as_text(source.path), message))
            progress.advance(error=True)
    return measured, failures


def _print(report: DriftReport) -> None:
    """The table: layers, those that share a row never on both sides of the boundary; stages; KL."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from sira_cli.analysis.drift.plot import STYLES

    out = table_console()
    table = Table(box=SIMPLE_HEAD)
    table.add_column("drift after layer")
    for name in report.references:
        table.add_column(STYLES[name][0], justify="right")
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
