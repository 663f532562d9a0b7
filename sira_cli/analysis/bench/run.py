"""All methods on one model, in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from sira_cli.analysis.bench.figures import BenchReport, BenchRow
from sira_cli.analysis.bench.measure import Timing, measure, pictures, prompts
from sira_cli.analysis.bench.stand_ins import RANDOM, with_stand_ins
from sira_cli.core.upstream import attention_of
from sira_cli.methods import find
from sira_cli.run.lvlm import Lvlm

WARM_UP = 4  # tokens
GREEDY = "greedy"


def bench(
    lvlm: Lvlm,
    methods: Sequence[str],
    *,
    lengths: Sequence[int],
    batches: Sequence[int],
    runs: int,
    image_tokens: int,
    processor_time: bool = False,
    on_request: Callable[[], None] = lambda: None,
    on_rows: Callable[[BenchReport], None] = lambda report: None,
) -> BenchReport:
    """Time requests of every method on the same model and pictures: A B A B ..., each round in the same order."""
    compared = decoders(methods)
    clock = time.process_time if processor_time else time.perf_counter
    rows: list[BenchRow] = []
    with with_stand_ins(dict.fromkeys(compared), lvlm) as stand_ins:
        for batch in batches:
            # They share the model: only hooks differ, which are on it while a request runs.
            lvlms = {name: lvlm.under(stand_ins.get(name, find(name))) for name in compared}
            images = pictures(lvlm.processor, image_tokens, batch)
            asked = prompts(lvlm.preset.prompts.caption, batch)
            inputs = {
                name: one.prepare(images, asked).to(lvlm.model.device, dtype=lvlm.model.dtype)
                for name, one in lvlms.items()
            }
            seen: dict[str, list[Timing]] = {name: [] for name in compared}
            for number in range(runs + 1):
                for name, one in lvlms.items():
                    tokens = max(lengths) if number else min(WARM_UP, max(lengths))
                    timing = measure(one, inputs[name], tokens, clock=clock)
                    if number:
                        seen[name].append(timing)
                    on_request()
            image, prompt = map(sum, lvlm.lengths(inputs[GREEDY]))
            sizes = batch, prompt, image
            rows += [BenchRow.of(name, sizes, seen[name], seen[GREEDY], lengths) for name in compared]
            report = BenchReport(
                **BenchReport.fields_of(lvlm),
                weights="random" if lvlm.revision == RANDOM else "its own",
                parameters=sum(parameter.numel() for parameter in lvlm.model.parameters()),
                attention=attention_of(lvlm.model.config),
                lengths=tuple(lengths),
                runs=runs,
                rows=tuple(rows),
                stand_ins=tuple(stand_ins),
                processor_time=processor_time,
                quantization=lvlm.quantization,
            )
            on_rows(report)
    return report


def requests(methods: Sequence[str], batches: int, runs: int) -> int:
    """Return the number of requests of `bench`."""
    return (runs + 1) * batches * len(decoders(methods))


def decoders(methods: Sequence[str]) -> list[str]:
    """Return the methods to measure, greedy first."""
    return list(dict.fromkeys([GREEDY, *methods]))
