"""`sira calibrate k`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sira_cli.cli.calibrate.pictures import SCENE_BATCH, BatchSize, Scenes, measured, some_pictures
from sira_cli.cli.choosing import choose_preset, load_model
from sira_cli.cli.console import set_verbosity
from sira_cli.cli.option_groups import with_options
from sira_cli.cli.options import AsJson, Images, ModelOptions, Overwrite, Quiet, ReportFile, SelectionOptions, Verbose
from sira_cli.cli.output import (
    check_preset_file,
    check_report_files,
    save_plot,
    save_preset,
    save_report,
    table_console,
)
from sira_cli.errors import PictureError

if TYPE_CHECKING:
    from sira_cli.analysis.calibration.k_report import KReport
    from sira_cli.analysis.drift.profiles import Estimate, FailedFile

EXAMPLES = """
sira calibrate k photos/ -m ./my-checkpoint
sira calibrate k photos/ -p llava-1.5-7b --plot k.png --write-preset mine.yaml
"""


@with_options(model=ModelOptions, selection=SelectionOptions)
def k(
    *,
    paths: Images = None,
    scenes: Scenes = False,
    batch_size: BatchSize = None,
    model: ModelOptions,
    selection: SelectionOptions,
    output: ReportFile = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw a figure: .png, .pdf or .svg (extra `plot`).")
    ] = None,
    write_preset: Annotated[
        Path | None, typer.Option("--write-preset", metavar="FILE.yaml", help="Write a preset with the rule's K.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Estimate K for a model that nobody has measured, from pictures without labels.

    The model captions a few dozen pictures (32 unless --limit says otherwise) without SIRA. Then, for every K, the
    stream without late sight of the picture reads the same captions: KL(full || CF) says how much it has lost. The rule
    takes the least K that reaches 90 % of the largest KL. It is a guess: where you have labels, sira sweep measures K.
    """
    set_verbosity(quiet, verbose)
    check_report_files(output, plot, overwrite)
    check_preset_file(write_preset, overwrite)
    preset = choose_preset(model)
    pictures, drawn = some_pictures(paths, selection, scenes, preset)
    lvlm = load_model(preset, model, "sira", pictures=() if drawn else pictures)
    from sira_cli.analysis.calibration.k_report import KReport
    from sira_cli.analysis.calibration.which_k import measure_divergence
    from sira_cli.analysis.drift.profiles import FailedFile

    failures: list[FailedFile] = []
    found = list(
        measured(
            measure_divergence(lvlm, pictures, batch_size or (SCENE_BATCH if drawn else 1)),
            len(pictures),
            lambda picture, error: failures.append(FailedFile(picture.name_in(None), error)),
        )
    )
    if not found:
        raise PictureError("no picture could be measured, so there is no K")
    report = KReport.of(lvlm, found, failures)
    if as_json:
        print(report.to_json())
    else:
        _print(report)
    if output is not None:
        save_report(report, output)
    if plot is not None:
        from sira_cli.analysis.calibration.k_plot import draw

        save_plot(draw, report, plot)
    if write_preset is not None:
        how = f"K by sira calibrate k on {report.pictures} pictures without labels"
        save_preset(preset.with_settings(k=report.k), write_preset, how, f"K = {report.k}")
    if failures:
        raise typer.Exit(3)


def _print(report: KReport) -> None:
    """Print the curve, both values of K, and how far to trust them."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    for name in ("K", "KL, nats", "of largest", "late drift"):
        table.add_column(name, justify="right")
    table.add_column("")
    most = max(row.kl.mean for row in report.rows)
    for row in report.rows:
        marks = ["the rule"] * (row.k == report.k) + ["L/2, the paper's"] * (row.k == report.half)
        table.add_row(str(row.k), _shown(row.kl), f"{row.kl.mean / most:.0%}", _shown(row.drift), ", ".join(marks))
    out = table_console()
    out.print(table)
    pictures, error = "picture" + "s" * (report.pictures != 1), "; ± standard error" * (report.pictures > 1)
    out.print(f"{report.pictures} {pictures}, {report.tokens:,} tokens of the model's own captions{error}")
    out.print(
        f"K = {report.k} of L = {report.layers}: {report.rule}; "
        f"the same K in {report.agreement:.0%} of resamples of the pictures. The paper's K = L/2 is {report.half}"
    )
    out.print(
        "a guess without labels, and on the bundled model no better than L/2: it gives 6 there, labels chose 7. "
        "Where you have labelled questions, sira sweep measures K"
    )


def _shown(value: Estimate) -> str:
    return f"{value.mean:.3g}" + ("" if value.stderr is None else f" ±{value.stderr:.2g}")
