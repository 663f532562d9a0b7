"""Medians, spreads and ratios to greedy of the measurements, and their record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import transformers
from pydantic import TypeAdapter

from sira_cli.analysis.bench.measure import Timing, device_name
from sira_cli.run.lvlm import Lvlm
from sira_cli.run.report import Report

# Seconds of a request on Qwen2.5-VL over those of standard decoding (paper, Appendix B, Table "Comparison of
# inference efficiency"). OPERA's milliseconds for 64 tokens would be 7.8 times; the table has 5.8.
PAPER = {
    "greedy": {32: 1.0, 64: 1.0, 128: 1.0},
    "vcd": {32: 2.1, 64: 2.1, 128: 2.1},
    "opera": {32: 5.3, 64: 5.8, 128: 5.9},
    "sira": {32: 1.4, 64: 1.5, 128: 1.5},
}
# Why a method's ratio is another one than the paper's.
NOTES = {"opera": "opera: one pass per token, in which a beam's candidates go together; the authors' code takes six"}


@dataclass(frozen=True)
class Spread:
    """A median with the smallest and the largest value."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Make it from at least one value."""
        return cls(median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}..{self.high:.2f})"


@dataclass(frozen=True)
class Measure:
    """One figure of one method.

    Attributes:
        seconds: over the runs.
        ratio: ratio to the baseline's run of the same round, so that a drifting machine favours no method.
    """

    seconds: Spread
    ratio: Spread

    @classmethod
    def of(cls, runs: Sequence[Timing], baseline: Sequence[Timing], figure: Callable[[Timing], float]) -> Measure:
        """Make it from a method's runs and greedy's; `runs[i]` and `baseline[i]` are of the same round."""
        own, base = [figure(run) for run in runs], [figure(run) for run in baseline]
        return cls(Spread.of(own), Spread.of([a / b for a, b in zip(own, base, strict=True)]))


@dataclass(frozen=True)
class BenchRow:
    """A method at a batch size.

    Attributes:
        method: its name.
        batch: B.
        prompt_tokens, image_tokens: of all B prompts.
        prefill: from the image encoder to the first token; of a method with two passes, both.
        step: time between two tokens of a text, or two lengths of a search: the median of a run's steps. None: only one
            token.
        requests: by number of new tokens, the whole request.
        tokens_per_second: of all B texts, while decoding.
        cache_bytes: keys and values of all streams at the end.
        peak_bytes: most memory during a request, weights included.
        paper: by number of new tokens, the paper's ratio.
    """

    method: str
    batch: int
    prompt_tokens: int
    image_tokens: int
    prefill: Measure
    step: Measure | None
    requests: dict[int, Measure]
    tokens_per_second: float | None
    cache_bytes: int
    peak_bytes: int | None
    paper: dict[int, float]

    @classmethod
    def of(
        cls,
        method: str,
        sizes: tuple[int, int, int],
        own: Sequence[Timing],
        base: Sequence[Timing],
        lengths: Sequence[int],
    ) -> BenchRow:
        """Make it from a method's and greedy's runs, round by round; `sizes` are B, prompt and image tokens.

        A shorter request is the beginning of the longest one, so each run serves all lengths.
        """
        batch, prompt_tokens, image_tokens = sizes
        step = Measure.of(own, base, lambda run: median(run.steps)) if own[0].steps else None
        paper = PAPER.get(method, {})
        return cls(
            method=method,
            batch=batch,
            prompt_tokens=prompt_tokens,
            image_tokens=image_tokens,
            prefill=Measure.of(own, base, lambda run: run.prefill),
            step=step,
            requests={length: Measure.of(own, base, _until(length)) for length in lengths},
            tokens_per_second=None if step is None else batch / step.seconds.median,
            cache_bytes=own[0].cache_bytes,
            peak_bytes=max((run.peak_bytes for run in own if run.peak_bytes is not None), default=None),
            paper={length: ratio for length, ratio in paper.items() if length in lengths},
        )


@dataclass(frozen=True)
class BenchReport(Report):
    """The measurements, with model and device.

    Attributes:
        model: preset or model.
        device: the chip.
        torch, transformers: their versions.
        k, layers, alpha: of SIRA.
        weights: random, or the model's.
        parameters: number of weights.
        runs: measured rounds, after one that only warms up.
        rows: by batch size; greedy's come first.
        stand_ins: methods whose calibration had random values.
        processor_time: whether times are the process's processor time instead of elapsed time.
        quantization: of the weights; None: none.
    """

    schema = "sira.bench/1"

    model: str
    dtype: str
    device: str
    torch: str
    transformers: str
    k: int
    layers: int
    alpha: float
    weights: str
    parameters: int
    attention: str
    lengths: tuple[int, ...]
    runs: int
    rows: tuple[BenchRow, ...]
    stand_ins: tuple[str, ...] = ()
    processor_time: bool = False
    quantization: str | None = None

    @staticmethod
    def fields_of(lvlm: Lvlm) -> dict[str, Any]:
        """Return the fields of a loaded model on this machine."""
        return {
            "model": lvlm.preset.name or lvlm.preset.model,
            "dtype": lvlm.dtype,
            "device": device_name(lvlm.model.device),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "k": lvlm.k,
            "layers": lvlm.layers,
            "alpha": lvlm.alpha,
        }

    @classmethod
    def from_json(cls, text: str) -> BenchReport:
        """Make a report from the JSON of `to_json`."""
        return TypeAdapter(cls).validate_json(text)

    def to_json(self) -> str:
        """Return one JSON object, `sira.bench/1`; times in seconds, memory in bytes."""
        unused = [name for name in ("stand_ins", "processor_time", "quantization") if not getattr(self, name)]
        return self.as_json(**dict.fromkeys(unused))


def _until(length: int) -> Callable[[Timing], float]:
    return lambda run: run.tokens[length - 1]
