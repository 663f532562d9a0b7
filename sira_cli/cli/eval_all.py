"""`sira eval all`: every benchmark that a folder holds, with one loaded model, on one page."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from sira_cli.cli.console import note, resumable, say, set_verbosity
from sira_cli.cli.decoding_options import MethodsOptions
from sira_cli.cli.eval_options import NoControls, OverwriteAnswers
from sira_cli.cli.eval_run import ask, choose_methods
from sira_cli.cli.option_groups import with_options
from sira_cli.cli.options import BatchSizeOption, ModelOptions, Quiet, RetryErrors, Verbose
from sira_cli.cli.output import check_file, save_report, table_console
from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from sira_cli.eval.overview import Overview

EXAMPLES = """
sira eval all --data benchmarks/ -p llava-1.5-7b --method sira,vcd -o all/ --html all.html
sira eval all --data scenes/ -p demo
"""


@dataclass(frozen=True)
class AllOptions:
    """Options on the questions, and on the files of answers and figures."""

    title: ClassVar[str] = "Answers and figures"

    batch_size: BatchSizeOption = None
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Take only N questions per file (POPE), or N pictures (per file or subset)."
        ),
    ] = None
    no_controls: NoControls = False
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FOLDER", help="Keep answers and report.json here, in NAME/."),
    ] = None
    overwrite: OverwriteAnswers = False
    retry_errors: RetryErrors = False
    html: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Also write the page as HTML.")] = None
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the tables.")] = False
    quiet: Quiet = False
    verbose: Verbose = 0


@with_options(options=AllOptions, model=ModelOptions, decoding=MethodsOptions)
def eval_all(
    *,
    data: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="Holds pope/, repope/, coco/, amber/, images/, and others by their names."),
    ],
    options: AllOptions,
    model: ModelOptions,
    decoding: MethodsOptions,
) -> None:
    """Run every benchmark that a folder holds, and print one page: figures with intervals, and cost.

    Each is asked in its own words. Those that need a judge are left out. A benchmark's pictures are in its folder, or
    in images/. sira demo --export writes such a folder.
    """
    set_verbosity(options.quiet, options.verbose)
    check_file("--html", options.html)
    if options.output is not None and options.output.is_file():
        raise SettingsError(f"--output {options.output}: expected a folder: a run writes several files")
    with ExitStack() as stack:
        folder = options.output or Path(stack.enter_context(TemporaryDirectory(prefix="sira-eval-")))
        overview = _run(data, folder, options, model, decoding)
    if options.html is not None:
        from sira_cli.files import write_whole

        write_whole(options.html, overview.to_html().encode())
    print(overview.to_json()) if options.json else _print(overview)
    if any(report.failures for report in overview.reports.values()):
        say("pictures failed; their questions are left out of all figures")
        raise typer.Exit(3)


def _run(data: Path, folder: Path, options: AllOptions, model: ModelOptions, decoding: MethodsOptions) -> Overview:
    from sira_cli.eval.evaluation import Evaluation, pictures_of
    from sira_cli.eval.found import find_benchmarks, unjudged
    from sira_cli.eval.overview import Overview, costs_in

    found = find_benchmarks(data, options.limit)
    note(f"{data} holds {', '.join(one.card.name for one in found)}")
    if judged := unjudged(data):
        note(f"left out, because their answers need a judge: {', '.join(judged)}")
    pictures = [picture for one in found for picture in pictures_of(one.benchmark, one.images)]
    methods, lvlm = choose_methods(model, decoding, not options.no_controls, pictures)
    evaluations = {
        one.card.name: Evaluation(
            one.benchmark,
            one.images,
            methods,
            output=folder / one.card.name,
            overwrite=options.overwrite,
            retry_errors=options.retry_errors,
            batch_size=options.batch_size,
        )
        for one in found
    }
    reports, costs = {}, {}
    for one in found:
        evaluation = evaluations[one.card.name]
        with resumable(options.output is not None, options.overwrite), evaluation.opened():
            lvlm = ask(evaluation, model, pictures, lvlm)
        report = reports[one.card.name] = evaluation.report()
        save_report(report, folder / one.card.name / "report.json")
        parts = tuple(part.name for part in one.benchmark.parts)
        costs[one.card.name] = costs_in(folder / one.card.name, report.settings, parts)
    return Overview(evaluation.preset.name, evaluation.preset.model, reports, costs)


def _print(overview: Overview) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    out = table_console()
    out.print(f"{overview.preset} ({overview.model})", style="bold", markup=False)
    for sheet in overview.sheets():
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        table.add_column(sheet.card.name)
        table.add_column("")
        for method in sheet.methods:
            table.add_column(method, justify="right")
        shown = ""
        for line in sheet.lines:
            table.add_row(Text("" if line.group == shown else line.group), line.figure, *line.cells)
            shown = line.group
        table.add_row("per answer", "", *sheet.cost, style="dim")
        out.print(table)
        for text in sheet.notes:
            out.print(text, style="bold", markup=False, soft_wrap=True)
    out.print(overview.how(), markup=False, soft_wrap=True)
