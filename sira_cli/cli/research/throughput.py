"""`sira bench --throughput`."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from sira_cli.cli.options.values import TextLengths
from sira_cli.cli.terminal.output import new_table, table_console
from sira_cli.cli.terminal.progress import Progress

if TYPE_CHECKING:
    from sira_cli.analysis.bench.figures import Spread
    from sira_cli.analysis.bench.throughput import ThroughputReport
    from sira_cli.models.lvlm import Lvlm


def measure_throughput(
    lvlm: Lvlm,
    *,
    count: int,
    batch_size: int,
    runs: int,
    image_tokens: int,
    compiled: bool,
    text_lengths: TextLengths | None,
) -> ThroughputReport:
    """Measure, and show the progress.

    Args:
        lvlm: the model under SIRA. The bundled one sees validation scenes, others see noise.
        count: number of pictures.
        batch_size, runs: as for `throughput`.
        image_tokens: image tokens of the largest noise picture.
        compiled: also measure compiled steps.
        text_lengths: the model's own or drawn ones; None: own for the bundled model, else drawn.
    """
    from sira_cli.analysis.bench.measure import pictures
    from sira_cli.analysis.bench.throughput import COMPILED, CONTESTANTS, throughput
    from sira_cli.demo.questions import validation_pictures
    from sira_cli.models.loading.presets import BUNDLED

    bundled = lvlm.preset.model == BUNDLED
    text_lengths = text_lengths or ("own" if bundled else "drawn")
    if bundled:
        images = [scene.open().stills[0] for scene in islice(validation_pictures(), count)]
    else:
        images = pictures(lvlm.processor, image_tokens, count)
    with Progress.shown("turns", (runs + 1) * len(CONTESTANTS + COMPILED * compiled)) as progress:
        return throughput(
            lvlm,
            images,
            batch_size=batch_size,
            runs=runs,
            drawn=text_lengths == "drawn",
            compile=compiled,
            on_turn=progress.advance,
        )


def print_throughput(report: ThroughputReport) -> None:
    """Print a table of the contestants."""
    from statistics import mean, pstdev

    out = table_console()
    lengths = report.lengths
    out.print(
        f"{report.model}, {report.dtype}; {report.device}; torch {report.torch}, transformers {report.transformers}\n"
        f"SIRA: K = {report.k} of {report.layers} layers, alpha = {report.alpha:g}; "
        f"{report.runs} round{'s' * (report.runs > 1)}, in turn\n"
        f"{report.pictures} pictures, {report.batch_size} at once; texts of {min(lengths)} to {max(lengths)} tokens, "
        f"mean {mean(lengths):.0f}, standard deviation {pstdev(lengths):.0f}"
        f"{', drawn' if report.drawn else ', as the model writes them'}"
    )
    table = new_table("", "pictures/s", "to SIRA, static", "to greedy, static")
    for row in report.rows:
        speed = f"{row.pictures_per_second.median:.2f}"
        table.add_row(row.name, speed, _ratio(row.by_static), _ratio(row.by_greedy))
    out.print(table)


def _ratio(spread: Spread) -> str:
    ends = "" if spread.low == spread.high else f" ({spread.low:.2f}..{spread.high:.2f})"
    return f"x{spread.median:.2f}{ends}"
