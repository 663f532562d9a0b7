"""`sira bench`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sira_cli.analysis.bench import shape_names
from sira_cli.cli.loading import load_model
from sira_cli.cli.options import setting as set_option
from sira_cli.cli.options.choosing import ALL, able, choose_preset, method_names
from sira_cli.cli.options.common import AsJson, Overwrite, Quiet, ResearchModelOptions, Verbose
from sira_cli.cli.options.groups import with_options
from sira_cli.cli.terminal.console import set_verbosity, waiting
from sira_cli.cli.terminal.output import check_file, new_table, save_report, show_report, table_console
from sira_cli.cli.terminal.progress import Progress
from sira_cli.errors import NotCalibratedError, SettingsError, UnsupportedModelError
from sira_cli.methods import find

if TYPE_CHECKING:
    from sira_cli.analysis.bench.figures import BenchReport, BenchRow, Measure
    from sira_cli.run.lvlm import Lvlm


EXAMPLES = """
sira bench -p llava-1.5-7b --method sira,vcd
sira bench --shape qwen2.5-vl-7b -o bench.json
"""


@with_options()
def bench(
    *,
    shape: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Random weights in a real model's shape: {', '.join(shape_names())}.",
        ),
    ] = None,
    method: Annotated[
        str, typer.Option(metavar="NAME,...", help="Methods to measure besides greedy, or all.")
    ] = "sira,vcd",
    max_new_tokens: Annotated[
        str,
        typer.Option(metavar="N,...", help="Text lengths in tokens."),
    ] = "32,64,128",
    batch_size: Annotated[
        str,
        typer.Option("-b", "--batch-size", metavar="N,...", help="Batch sizes."),
    ] = "1",
    image_tokens: Annotated[
        int, typer.Option(min=1, metavar="N", help="Image tokens per picture, if not fixed.")
    ] = 600,
    runs: Annotated[int, typer.Option(min=1, metavar="N", help="Number of rounds, after one warm-up round.")] = 5,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write the JSON that --json prints.",
        ),
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
    model: ResearchModelOptions,
) -> None:
    """Measure what methods cost compared with greedy, on the same pictures and in turn.

    Prefill is the time from the image encoder to the first token, a step the time from one token to the next, a
    request the total. Ratios are to greedy's time in the same round: median, then minimum and maximum. End tokens
    are ignored, so every text reaches its full length. Caches are
    checked to be as long as the method's streams.
    """
    set_verbosity(quiet, verbose)
    methods = [name for name in method_names(method) if name]
    for name in methods:
        find(name)
    lengths = _numbers("--max-new-tokens", max_new_tokens)
    batches = _numbers("--batch-size", batch_size)
    check_file("--output", output, overwrite)
    lvlm = _loaded(shape, model)
    if method.strip() == ALL:
        refusals = [UnsupportedModelError] if shape else [UnsupportedModelError, NotCalibratedError]  # else a stand-in
        methods = list(able(lvlm, {name: (lvlm.preset, find(name)) for name in methods}, *refusals))
    from sira_cli.analysis.bench.run import bench as measure_all
    from sira_cli.analysis.bench.run import requests

    def save(measured: BenchReport) -> None:
        if output is not None:
            save_report(measured, output)

    total = requests(methods, len(batches), runs)
    with Progress.shown("requests", total) as progress:
        report = measure_all(
            lvlm,
            methods,
            lengths=lengths,
            batches=batches,
            runs=runs,
            image_tokens=image_tokens,
            on_request=progress.advance,
            on_rows=save,  # so that nothing is lost if a later batch size does not fit into memory
        )
    show_report(report, print_report, as_json)


def _numbers(option: str, given: str) -> list[int]:
    """Read numbers such as `1,8`, in order."""
    parts = [part.strip() for part in given.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise SettingsError(f"{option} {given!r}: expected whole numbers from 1 on, such as 1,8")
    return sorted({int(part) for part in parts})


def _loaded(shape: str | None, model: ResearchModelOptions) -> Lvlm:
    if shape is None:
        return load_model(choose_preset(model), model, "sira", pictures=())
    settings = set_option.read(model.settings, [find("sira")])["sira"]
    rest = replace(model, device=ResearchModelOptions.device, settings=None)
    if rest != ResearchModelOptions() or settings.keys() - {"k", "load.dtype"}:
        raise SettingsError("--shape is a model of its own: only --device, --set k and --set load.dtype go with it")
    with waiting(f"making random weights of {shape}"):
        from sira_cli.analysis.bench.random_models import load_shape

        return load_shape(shape, find("sira"), model.device, **settings)


def print_report(report: BenchReport) -> None:
    """Print tables per batch size, of phases and of whole requests."""
    from sira_cli.analysis.bench.figures import NOTES

    out = table_console()
    out.print(
        f"{report.model}, {report.weights} weights, {report.parameters / 1e9:.2f} B parameters, {report.dtype}, "
        f"{f'{report.quantization} language layers, ' if report.quantization else ''}{report.attention} attention\n"
        f"{report.device}; torch {report.torch}, transformers {report.transformers}\n"
        f"SIRA: K = {report.k} of {report.layers} layers, alpha = {report.alpha:g}; "
        f"{report.runs} round{'s' * (report.runs > 1)}, methods in turn"
    )
    if report.processor_time:
        out.print("times are processor times of this process, not wall times")
    if report.stand_ins:
        out.print(f"with calibrations of random values: {', '.join(report.stand_ins)}")
    for batch in dict.fromkeys(row.batch for row in report.rows):
        rows = [row for row in report.rows if row.batch == batch]
        each = "" if batch == 1 else " in all, of mixed sizes"
        title = f"batch {batch}: {rows[0].prompt_tokens} prompt tokens, {rows[0].image_tokens} of them image{each}"
        table = new_table("", figures=("prefill", "step", "tokens/s", "cache", "peak memory"), title=title)
        for row in rows:
            table.add_row(row.method, _shown(row.prefill), _shown(row.step), *_sizes(row))
        out.print(table)
        heads = []
        for length in report.lengths:
            heads.append(f"{length} token{'s' * (length > 1)}")
            heads += ["paper"] * any(length in row.paper for row in rows)
        table = new_table("whole request", figures=heads)
        for row in rows:
            cells = []
            for length in report.lengths:
                cells.append(_shown(row.requests[length]))
                if any(length in other.paper for other in rows):
                    cells.append(f"x{row.paper[length]:.1f}" if length in row.paper else "")
            table.add_row(row.method, *cells)
        out.print(table)
    for method in dict.fromkeys(row.method for row in report.rows):
        if method in NOTES:
            out.print(NOTES[method])


def _shown(measure: Measure | None) -> str:
    """Return milliseconds, and the ratio to greedy with its spread."""
    if measure is None:
        return "-"
    ratio = measure.ratio
    spread = "" if ratio.low == ratio.high else f" ({ratio.low:.2f}..{ratio.high:.2f})"
    return f"{1e3 * measure.seconds.median:,.1f} ms  x{ratio.median:.3f}{spread}"


def _sizes(row: BenchRow) -> list[str]:
    speed = "-" if row.tokens_per_second is None else f"{row.tokens_per_second:.1f}"
    peak = "-" if row.peak_bytes is None else f"{row.peak_bytes / 1e9:.2f} GB"
    return [speed, f"{row.cache_bytes / 1e6:.1f} MB", peak]
