"""Medians, spreads and ratios to greedy: the rows of the paper's table of inference efficiency (Appendix B)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from sira_cli.analysis.experiment import Table
from sira_cli.run.report import Report

# Seconds of a request on Qwen2.5-VL over those of standard decoding, as that table has them. OPERA's milliseconds for
# 64 tokens would be 7.8 times; the table has 5.8.
PAPER = {
    "greedy": {32: 1.0, 64: 1.0, 128: 1.0},
    "vcd": {32: 2.1, 64: 2.1, 128: 2.1},
    "opera": {32: 5.3, 64: 5.8, 128: 5.9},
    "sira": {32: 1.4, 64: 1.5, 128: 1.5},
}
# Why a method's ratio is another one than the paper's.
NOTES = {"opera": "opera: one pass per token, in which a beam's candidates go together; the authors' code takes six"}


@dataclass(frozen=True)
class Timing:
    """The time and memory of a request.

    Attributes:
        encoder: seconds until the (first) image encoder was done.
        tokens: `[N]` seconds until each token was decoded, encoder included; for a search that may retract tokens,
            until its texts first had that length.
        cache_bytes: keys and values at the end, of all streams.
        peak_bytes: largest memory during the request, weights included; None if the system does not report it.
    """

    encoder: float
    tokens: tuple[float, ...]
    cache_bytes: int
    peak_bytes: int | None

    @property
    def prefill(self) -> float:
        """Seconds from the image encoder to the first token."""
        return self.tokens[0] - self.encoder

    @property
    def steps(self) -> list[float]:
        """Seconds between one token and the next, N - 1 of them."""
        return [after - before for before, after in zip(self.tokens, self.tokens[1:], strict=False)]


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
    """One figure of one method, and its ratio to greedy's in the same round: a drifting machine favours no method."""

    seconds: Spread
    ratio: Spread

    @classmethod
    def of(cls, runs: Sequence[Timing], baseline: Sequence[Timing], figure: Callable[[Timing], float]) -> Measure:
        """Make it from a method's runs and greedy's; `runs[i]` and `baseline[i]` are of the same round."""
        own, base = [figure(run) for run in runs], [figure(run) for run in baseline]
        return cls(Spread.of(own), Spread.of([a / b for a, b in zip(own, base, strict=True)]))

    def __str__(self) -> str:
        ratio = self.ratio
        spread = "" if ratio.low == ratio.high else f" ({ratio.low:.2f}..{ratio.high:.2f})"
        return f"{1e3 * self.seconds.median:,.1f} ms  x{ratio.median:.3f}{spread}"


class Sizes(NamedTuple):
    """The sizes of a batch: B, and the tokens of all B prompts."""

    batch: int
    prompt_tokens: int
    image_tokens: int


@dataclass(frozen=True)
class BenchRow:
    """A method at a batch size.

    Attributes:
        batch, prompt_tokens, image_tokens: as in `Sizes`.
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
        cls, method: str, sizes: Sizes, own: Sequence[Timing], base: Sequence[Timing], lengths: Sequence[int]
    ) -> BenchRow:
        """Make it from a method's and greedy's runs, round by round.

        A shorter request is the beginning of the longest one, so each run serves all lengths.
        """
        step = Measure.of(own, base, lambda run: median(run.steps)) if own[0].steps else None
        return cls(
            method=method,
            **sizes._asdict(),
            prefill=Measure.of(own, base, lambda run: run.prefill),
            step=step,
            requests={n: Measure.of(own, base, lambda run, n=n: run.tokens[n - 1]) for n in lengths},  # type: ignore[misc]
            tokens_per_second=None if step is None else sizes.batch / step.seconds.median,
            cache_bytes=own[0].cache_bytes,
            peak_bytes=max((run.peak_bytes for run in own if run.peak_bytes is not None), default=None),
            paper={length: ratio for length, ratio in PAPER.get(method, {}).items() if length in lengths},
        )


@dataclass(frozen=True)
class BenchReport(Report):
    """The measurements, with model and device.

    Attributes:
        weights: random, or the model's.
        runs: measured rounds, after one that only warms up.
        rows: by batch size; greedy's come first.
        stand_ins: methods whose calibration had random values.
    """

    schema = "sira.bench/1"
    optional = ("stand_ins", "processor_time", "quantization")

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

    def table(self) -> Iterator[Table | str]:
        """Yield the settings, then for each batch size a table of phases and one of whole requests."""
        quantization = f"{self.quantization} language layers, " if self.quantization else ""
        yield (
            f"{self.model}, {self.weights} weights, {self.parameters / 1e9:.2f} B parameters, {self.dtype}, "
            f"{quantization}{self.attention} attention"
        )
        yield f"{self.device}; torch {self.torch}, transformers {self.transformers}"
        yield (
            f"SIRA: K = {self.k} of {self.layers} layers, alpha = {self.alpha:g}; "
            f"{self.runs} round{'s' * (self.runs > 1)}, methods in turn"
        )
        if self.processor_time:
            yield "times are processor times of this process, not wall times"
        if self.stand_ins:
            yield f"with calibrations of random values: {', '.join(self.stand_ins)}"
        for batch in dict.fromkeys(row.batch for row in self.rows):
            yield from self._tables([row for row in self.rows if row.batch == batch])
        for method in dict.fromkeys(row.method for row in self.rows):
            if method in NOTES:
                yield NOTES[method]

    def _tables(self, rows: Sequence[BenchRow]) -> Iterator[Table]:
        """Yield the two tables of one batch size."""
        first = rows[0]
        mixed = "" if first.batch == 1 else " in all, of mixed sizes"
        prompt = f"{first.prompt_tokens} prompt tokens, {first.image_tokens} of them image{mixed}"
        phases = [
            [
                row.method,
                str(row.prefill),
                str(row.step or "-"),
                "-" if row.tokens_per_second is None else f"{row.tokens_per_second:.1f}",
                f"{row.cache_bytes / 1e6:.1f} MB",
                "-" if row.peak_bytes is None else f"{row.peak_bytes / 1e9:.2f} GB",
            ]
            for row in rows
        ]
        figures = ("prefill", "step", "tokens/s", "cache", "peak memory")
        yield Table(("",), figures, [phases], title=f"batch {first.batch}: {prompt}")
        heads, cells = [], [[row.method] for row in rows]
        for length in self.lengths:
            heads.append(f"{length} token{'s' * (length > 1)}")
            known = any(length in row.paper for row in rows)
            heads += ["paper"] * known
            for row, line in zip(rows, cells, strict=True):
                line.append(str(row.requests[length]))
                line += [f"x{row.paper[length]:.1f}" if length in row.paper else ""] * known
        yield Table(("whole request",), heads, [cells])
