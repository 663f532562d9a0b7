"""`sira bench`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from sira_cli.analysis.bench import shape_names
from sira_cli.cli.loading import load_model
from sira_cli.cli.options import setting as set_option
from sira_cli.cli.options.choosing import ALL, able, choose_preset, method_names
from sira_cli.cli.options.groups import ReportOptions, ResearchModelOptions, option, with_options
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


@dataclass(frozen=True)
class BenchOptions:
    """The requests to time."""

    title: ClassVar[str] = "Options"

    shape: str | None = option(
        None, f"Random weights in a real model's shape: {', '.join(shape_names())}.", metavar="NAME"
    )
    method: str = option("sira,vcd", "Methods to measure besides greedy, or all.", metavar="NAME,...")
    max_new_tokens: str = option("32,64,128", "Text lengths in tokens.", metavar="N,...")
    batch_size: str = option("1", "Batch sizes.", "-b", "--batch-size", metavar="N,...")
    image_tokens: int = option(600, "Image tokens per picture, if not fixed.", min=1, metavar="N")
    runs: int = option(5, "Number of rounds, after one warm-up round.", min=1, metavar="N")


@with_options()
def bench(*, given: BenchOptions, model: ResearchModelOptions, target: ReportOptions) -> None:
    """Measure what methods cost compared with greedy, on the same pictures and in turn.

    Prefill is the time from the image encoder to the first token, a step the time from one token to the next, a
    request the total. Ratios are to greedy's time in the same round: median, then minimum and maximum. End tokens
    are ignored, so every text reaches its full length.
    """
    target.check()
    methods = [name for name in method_names(given.method) if name]
    for name in methods:
        find(name)
    sizes: dict[str, Any] = {"runs": given.runs, "image_tokens": given.image_tokens}
    sizes["lengths"] = _numbers("--max-new-tokens", given.max_new_tokens)
    sizes["batches"] = _numbers("--batch-size", given.batch_size)
    lvlm = _loaded(given.shape, model)
    if given.method.strip() == ALL:
        refusals = [UnsupportedModelError, *[NotCalibratedError] * (given.shape is None)]  # else a stand-in
        methods = list(able(lvlm, {name: (lvlm.preset, find(name)) for name in methods}, *refusals))
    from sira_cli.analysis.bench import measure

    requests = (given.runs + 1) * len(sizes["batches"]) * len({measure.GREEDY, *methods})
    with Progress.shown("requests", requests) as progress:
        for report in measure.bench(lvlm, methods, **sizes, on_request=progress.advance):
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
