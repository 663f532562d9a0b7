"""`sira eval` over a folder of benchmarks: one loaded model, one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import typer

from sira_cli.cli.eval.options import EvalOptions
from sira_cli.cli.eval.run import ask, choose_methods, looks
from sira_cli.cli.options.common import ModelOptions
from sira_cli.cli.options.decoding import MethodsOptions
from sira_cli.cli.terminal.console import note, resumable, say
from sira_cli.cli.terminal.output import new_table, save_report, table_console

if TYPE_CHECKING:
    from sira_cli.eval.card import Card
    from sira_cli.eval.overview import Overview


def evaluate_folder(
    data: Path,
    cards: Sequence[Card],
    given: Mapping[str, Mapping[str, str]],
    options: EvalOptions,
    model: ModelOptions,
    decoding: MethodsOptions,
) -> None:
    """Ask a model the benchmarks that a folder holds, and print one page: figures with intervals, and cost.

    Args:
        data: laid out as `eval/found.py` says.
        cards: of the benchmarks; empty: all but those that need a judge.
        given: each benchmark's options, by its name.
        options, model, decoding: the command line's.

    Raises:
        typer.Exit: with 3 if pictures failed, 130 if interrupted.
        SiraError: the run could not start or continue.
    """
    with ExitStack() as stack:
        folder = options.output or Path(stack.enter_context(TemporaryDirectory(prefix="sira-eval-")))
        overview = _run(data, cards, given, folder, options, model, decoding)
    if options.html is not None:
        from sira_cli.files import write_whole

        write_whole(options.html, overview.to_html().encode())
    print(overview.to_json()) if options.json or options.format == "json" else _print(overview)
    if any(report.failures for report in overview.reports.values()):
        say("pictures failed; their questions are left out of all figures")
        raise typer.Exit(3)


def _run(
    data: Path,
    cards: Sequence[Card],
    given: Mapping[str, Mapping[str, str]],
    folder: Path,
    options: EvalOptions,
    model: ModelOptions,
    decoding: MethodsOptions,
) -> Overview:
    from sira_cli.eval.evaluation import Evaluation, has_captions, pictures_of
    from sira_cli.eval.found import find_benchmarks, unjudged
    from sira_cli.eval.overview import Overview, costs_in

    found = find_benchmarks(data, options.limit, cards, given)
    note(f"{data} holds {', '.join(one.card.name for one in found)}")
    if not cards and (judged := unjudged(data)):
        note(f"left out, because their answers need a judge: {', '.join(judged)}")
    pictures = [picture for one in found for picture in pictures_of(one.benchmark, one.images)]
    methods, lvlm = choose_methods(model, decoding, not options.no_controls, pictures)
    looked = looks(options, decoding, methods)
    evaluations = {
        one.card.name: Evaluation(
            one.benchmark,
            one.images,
            methods,
            output=folder / one.card.name,
            overwrite=options.overwrite,
            retry_errors=options.retry_errors,
            batch_size=options.batch_size,
            looks=looked if has_captions(one.benchmark) else {},
        )
        for one in found
    }
    reports, costs = {}, {}
    for one in found:
        evaluation = evaluations[one.card.name]
        with resumable(options.output is not None, options.overwrite), evaluation.opened():
            lvlm = ask(evaluation, model, lvlm)
        report = reports[one.card.name] = evaluation.report()
        save_report(report, folder / one.card.name / "report.json")
        parts = tuple(part.name for part in one.benchmark.parts)
        costs[one.card.name] = costs_in(folder / one.card.name, report.settings, parts)
    return Overview(evaluation.preset.name, evaluation.preset.model, reports, costs)


def _print(overview: Overview) -> None:
    from rich.text import Text

    out = table_console()
    out.print(f"{overview.preset} ({overview.model})", style="bold")
    for sheet in overview.sheets():
        table = new_table(sheet.card.name, "", figures=sheet.methods, tight=True)
        shown = ""
        for line in sheet.lines:
            table.add_row(Text("" if line.group == shown else line.group), line.figure, *line.cells)
            shown = line.group
        table.add_row("per answer", "", *sheet.cost, style="dim")
        out.print(table)
        for text in sheet.notes:
            out.print(text, style="bold", soft_wrap=True)
    out.print(overview.how(), soft_wrap=True)
