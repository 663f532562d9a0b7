"""`sira bench`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sira_cli.analysis.bench import shape_names
from sira_cli.cli.loading import load_model
from sira_cli.cli.options import setting as set_option
from sira_cli.cli.options.choosing import ALL, able, choose_preset, method_names
from sira_cli.cli.options.groups import ReportOptions, ResearchModelOptions, with_options
from sira_cli.cli.terminal.console import Progress, waiting
from sira_cli.cli.terminal.output import save_report, show_report
from sira_cli.errors import NotCalibratedError, SettingsError, UnsupportedModelError
from sira_cli.methods import find

if TYPE_CHECKING:
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
        typer.Option(metavar="NAME", help=f"Random weights in a real model's shape: {', '.join(shape_names())}."),
    ] = None,
    method: Annotated[
        str, typer.Option(metavar="NAME,...", help="Methods to measure besides greedy, or all.")
    ] = "sira,vcd",
    max_new_tokens: Annotated[str, typer.Option(metavar="N,...", help="Text lengths in tokens.")] = "32,64,128",
    batch_size: Annotated[str, typer.Option("-b", "--batch-size", metavar="N,...", help="Batch sizes.")] = "1",
    image_tokens: Annotated[
        int, typer.Option(min=1, metavar="N", help="Image tokens per picture, if not fixed.")
    ] = 600,
    runs: Annotated[int, typer.Option(min=1, metavar="N", help="Number of rounds, after one warm-up round.")] = 5,
    model: ResearchModelOptions,
    target: ReportOptions,
) -> None:
    """Measure what methods cost compared with greedy, on the same pictures and in turn.

    Prefill is the time from the image encoder to the first token, a step the time from one token to the next, a
    request the total. Ratios are to greedy's time in the same round: median, then minimum and maximum. End tokens
    are ignored, so every text reaches its full length. Caches are
    checked to be as long as the method's streams.
    """
    target.check()
    methods = [name for name in method_names(method) if name]
    for name in methods:
        find(name)
    lengths, batches = _numbers("--max-new-tokens", max_new_tokens), _numbers("--batch-size", batch_size)
    lvlm = _loaded(shape, model)
    if method.strip() == ALL:
        refusals = [UnsupportedModelError] if shape else [UnsupportedModelError, NotCalibratedError]  # else a stand-in
        methods = list(able(lvlm, {name: (lvlm.preset, find(name)) for name in methods}, *refusals))
    from sira_cli.analysis.bench.measure import GREEDY
    from sira_cli.analysis.bench.measure import bench as measure_all

    sizes: dict[str, Any] = {"lengths": lengths, "batches": batches, "runs": runs, "image_tokens": image_tokens}
    with Progress.shown("requests", (runs + 1) * len(batches) * len({GREEDY, *methods})) as progress:
        for report in measure_all(lvlm, methods, **sizes, on_request=progress.advance):
            if target.output is not None:
                save_report(report, target.output)
    show_report(report, target.as_json)


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
