"""All methods on one model, in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import transformers

from sira_cli.bench.measure import Timing, device_name, measure, pictures, prompts
from sira_cli.bench.report import BASELINE, BenchReport, Row
from sira_cli.lvlm import Lvlm
from sira_cli.methods import find

WARM_UP = 2  # tokens


def bench(
    lvlm: Lvlm,
    methods: Sequence[str],
    *,
    lengths: Sequence[int],
    batches: Sequence[int],
    runs: int,
    image_tokens: int,
    on_request: Callable[[], None] = lambda: None,
) -> BenchReport:
    """Time requests of every method on the same model and the same pictures: A B A B ..., each round in the same order.

    Args:
        lvlm: the model under SIRA, with the K and alpha to measure.
        methods: beside greedy, which is measured in any case.
        lengths: new tokens; one request is as long as the longest, the others are its beginnings.
        batches: batch sizes; pictures and prompts of a batch differ in size.
        runs: measured rounds.
        image_tokens: of the largest picture, where the model lets pictures have their own size.
        on_request: called after each request.

    Raises:
        SiraError: what ran is not what should be measured.
    """
    # They share the model; only their hooks differ, which are on it while a request runs.
    names = [BASELINE, *(name for name in methods if name != BASELINE)]
    decoders = {
        name: Lvlm(lvlm.model, lvlm.processor, lvlm.preset, find(name), lvlm.revision, lvlm.quantization)
        for name in names
    }
    rows = []
    for batch in batches:
        images = pictures(lvlm.processor, image_tokens, batch)
        asked = prompts(lvlm.preset.prompts.caption, batch)
        inputs = {
            name: one.prepare(images, asked).to(lvlm.model.device, dtype=lvlm.model.dtype)
            for name, one in decoders.items()
        }
        seen: dict[str, list[Timing]] = {name: [] for name in names}
        for number in range(runs + 1):
            for name, one in decoders.items():
                timing = measure(one, inputs[name], max(lengths) if number else min(WARM_UP, max(lengths)))
                if number:
                    seen[name].append(timing)
                on_request()
        image, prompt = map(sum, lvlm.lengths(inputs[BASELINE]))
        rows += [Row.of(name, (batch, prompt, image), seen[name], seen[BASELINE], lengths) for name in names]
    return BenchReport(
        model=lvlm.preset.name or lvlm.preset.model,
        weights="random" if lvlm.revision == "random" else "the model's",
        parameters=sum(parameter.numel() for parameter in lvlm.model.parameters()),
        dtype=str(lvlm.model.dtype).removeprefix("torch."),
        attention=lvlm.model.config._attn_implementation,
        device=device_name(lvlm.model.device),
        torch=torch.__version__,
        transformers=transformers.__version__,
        k=lvlm.k,
        layers=lvlm.layers,
        alpha=lvlm.alpha,
        lengths=tuple(lengths),
        runs=runs,
        rows=tuple(rows),
    )
