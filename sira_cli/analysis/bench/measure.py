"""The cost of decoders: requests of methods in turn, and their ratios to greedy's (the paper's table in Appendix B).

A request's time stamps are the end of the image encoder, and the end of each token.
"""

from __future__ import annotations

import gc
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
from PIL import Image
from torch import Tensor
from transformers import GenerationConfig
from transformers.cache_utils import DynamicCache
from transformers.generation.streamers import BaseStreamer

from sira_cli._version import __version__
from sira_cli.analysis.experiment import Units
from sira_cli.core.arguments import CACHE
from sira_cli.core.upstream import attention_of
from sira_cli.errors import SiraError
from sira_cli.methods import find
from sira_cli.methods.base import Method
from sira_cli.methods.calibrated import Calibrated, Calibration, Origin
from sira_cli.methods.second_pass import SecondPass
from sira_cli.models.memory import cache_bytes, peak_memory
from sira_cli.models.placement import devices_of
from sira_cli.run.lvlm import Lvlm
from sira_cli.run.records import flat
from sira_cli.run.reports import Report, Table

WARM_UP = 4  # tokens
ROUND = "batch {}, round {}"  # the name of a unit
GREEDY = "greedy"
RANDOM = "random"  # the revision of a model with random weights
SHARES = (1.0, 0.75, 0.5, 0.9, 0.6, 0.8, 0.7, 1.0)  # of the image tokens, in a mixed batch
# Seconds of a request on Qwen2.5-VL over those of standard decoding, as that table has them. OPERA's milliseconds for
# 64 tokens would be 7.8 times; the table has 5.8.
PAPER = {
    "greedy": {32: 1.0, 64: 1.0, 128: 1.0},
    "vcd": {32: 2.1, 64: 2.1, 128: 2.1},
    "opera": {32: 5.3, 64: 5.8, 128: 5.9},
    "sira": {32: 1.4, 64: 1.5, 128: 1.5},
}


@dataclass(frozen=True)
class Timing:
    """The time and memory of a request."""

    encoder: float  # seconds until the (first) image encoder was done
    # `[N]` seconds until each token was decoded, encoder included; for a search that may retract tokens, until its
    # texts first had that length
    tokens: tuple[float, ...]
    cache_bytes: int  # keys and values at the end, of all streams
    peak_bytes: int | None  # most memory during the request, weights included; None: the system does not report it

    @classmethod
    def of(cls, unit: Mapping[str, Any]) -> Timing:
        """Make it from its JSON."""
        return cls(**{**unit, "tokens": tuple(unit["tokens"])})

    @property
    def steps(self) -> list[float]:
        """Seconds between one token and the next, N - 1 of them."""
        return [after - before for before, after in zip(self.tokens, self.tokens[1:], strict=False)]


Runs = Sequence[Timing]
Sizes = tuple[int, int, int]


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
    def of(cls, runs: Runs, baseline: Runs, figure: Callable[[Timing], float]) -> Measure:
        """Make it from a method's runs and greedy's; `runs[i]` and `baseline[i]` are of the same round."""
        seconds = list(map(figure, runs))
        ratios = [value / figure(greedy) for value, greedy in zip(seconds, baseline, strict=True)]
        return cls(Spread.of(seconds), Spread.of(ratios))

    def __str__(self) -> str:
        ratio = self.ratio
        spread = "" if ratio.low == ratio.high else f" ({ratio.low:.2f}..{ratio.high:.2f})"
        return f"{1e3 * self.seconds.median:,.1f} ms  x{ratio.median:.3f}{spread}"


@dataclass(frozen=True)
class BenchRow:
    """A method at a batch size."""

    method: str
    batch: int
    prompt_tokens: int  # of all B prompts
    image_tokens: int
    prefill: Measure  # from the image encoder to the first token; of a method with two passes, both
    step: Measure | None  # between two tokens, or lengths of a search: the median of a run's steps; None: one token
    requests: dict[int, Measure]  # by number of new tokens, the whole request
    tokens_per_second: float | None  # of all B texts, while decoding
    cache_bytes: int
    peak_bytes: int | None
    paper: dict[int, float]  # by number of new tokens, the paper's ratio

    @classmethod
    def of(cls, method: str, sizes: Sizes, own: Runs, base: Runs, lengths: Sequence[int]) -> BenchRow:
        """Make it from B, the tokens of all prompts and of their images, and a method's and greedy's runs by round.

        A shorter request is the beginning of the longest one, so each run serves all lengths.
        """
        step = Measure.of(own, base, lambda run: median(run.steps)) if own[0].steps else None
        return cls(
            method,
            *sizes,
            prefill=Measure.of(own, base, lambda run: run.tokens[0] - run.encoder),
            step=step,
            requests={n: Measure.of(own, base, lambda run, n=n: run.tokens[n - 1]) for n in lengths},  # type: ignore[misc]
            tokens_per_second=None if step is None else sizes[0] / step.seconds.median,
            cache_bytes=own[0].cache_bytes,
            peak_bytes=max((run.peak_bytes for run in own if run.peak_bytes is not None), default=None),
            paper={length: ratio for length, ratio in PAPER.get(method, {}).items() if length in lengths},
        )


@dataclass(frozen=True)
class BenchReport(Report):
    """The measurements, with model and device."""

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
    weights: str  # random, or the model's
    parameters: int
    attention: str
    lengths: tuple[int, ...]
    runs: int  # measured rounds, after one that only warms up
    rows: tuple[BenchRow, ...]  # by batch size; greedy's come first
    stand_ins: tuple[str, ...] = ()  # methods whose calibration had random values
    processor_time: bool = False
    quantization: str | None = None

    def table(self) -> Iterator[Table | str]:
        """Yield the settings, then for each batch size a table of phases and one of whole requests."""
        kind = f"{self.dtype}, {self.quantization} language layers" if self.quantization else self.dtype
        size = f"{self.weights} weights, {self.parameters / 1e9:.2f} B parameters"
        yield f"{self.model}, {size}, {kind}, {self.attention} attention"
        yield f"{self.device}; torch {self.torch}, transformers {self.transformers}"
        rounds = "1 round, methods in turn" if self.runs == 1 else f"{self.runs} rounds, methods in turn"
        yield f"SIRA: K = {self.k} of {self.layers} layers, alpha = {self.alpha:g}; {rounds}"
        if self.processor_time:
            yield "times are processor times of this process, not wall times"
        if self.stand_ins:
            yield f"with calibrations of random values: {', '.join(self.stand_ins)}"
        for batch in dict.fromkeys(row.batch for row in self.rows):
            rows = [row for row in self.rows if row.batch == batch]
            mixed = "" if batch == 1 else " in all, of mixed sizes"
            title = f"batch {batch}: {rows[0].prompt_tokens} prompt tokens, {rows[0].image_tokens} of them image{mixed}"
            phases = []
            for row in rows:
                speed = "-" if row.tokens_per_second is None else f"{row.tokens_per_second:.1f}"
                peak = "-" if row.peak_bytes is None else f"{row.peak_bytes / 1e9:.2f} GB"
                cache = f"{row.cache_bytes / 1e6:.1f} MB"
                phases.append([row.method, str(row.prefill), str(row.step or "-"), speed, cache, peak])
            yield Table(("",), ("prefill", "step", "tokens/s", "cache", "peak memory"), [phases], title=title)
            heads = []
            requests = [[row.method] for row in rows]
            for length in self.lengths:
                heads.append("1 token" if length == 1 else f"{length} tokens")
                in_paper = any(length in row.paper for row in rows)
                if in_paper:
                    heads.append("paper")
                for row, cells in zip(rows, requests, strict=True):
                    cells.append(str(row.requests[length]))
                    if in_paper:
                        cells.append(f"x{row.paper[length]:.1f}" if length in row.paper else "")
            yield Table(("whole request",), heads, [requests])


def bench(
    lvlm: Lvlm,
    methods: Sequence[str],
    *,
    lengths: Sequence[int],
    batches: Sequence[int],
    runs: int,
    image_tokens: int,
    processor_time: bool = False,
    units: Units[list[Any]] | None = None,
    on_requests: Callable[[int, bool], None] = lambda count, worked: None,
) -> Iterator[BenchReport]:
    """Time requests of every method on the same model and pictures: A B A B ..., each round in the same order.

    Args:
        lvlm: the loaded model; with random weights, calibrated methods get stand-ins.
        methods: names of methods; greedy is always among them.
        lengths: numbers of new tokens.
        batches: numbers of texts that are decoded together.
        runs: rounds that are measured at each batch size, after one that warms up.
        image_tokens: of a picture, about.
        processor_time: measure the time of the processor instead of the clock's.
        units: keeps the rounds that are measured; a stopped bench goes on after the last one.
        on_requests: called with the number of requests that are done, and whether they were measured now.

    Yields:
        The report after each batch size, so that nothing is lost if a later one does not fit into memory.

    Raises:
        SettingsError: `units` holds rounds that were measured with other settings, or on another machine.
    """
    clock = time.process_time if processor_time else time.perf_counter
    decoders = {name: find(name) for name in (GREEDY, *methods)}
    units = Units() if units is None else units  # an empty one is falsy
    settings = settings_of(lvlm)
    settings["methods"] = list(decoders)
    settings["lengths"] = list(lengths)
    settings["image_tokens"] = image_tokens
    settings["processor_time"] = processor_time
    units.begin(settings)
    rows: list[BenchRow] = []
    with tempfile.TemporaryDirectory(prefix="sira-bench-") as folder:
        stand_ins = _calibrate_at_random(lvlm, decoders, Path(folder)) if lvlm.revision == RANDOM else ()
        # They share the model: only hooks differ, which are on it while a request runs.
        lvlms = {name: lvlm.under(method) for name, method in decoders.items()}
        for batch in batches:
            images = pictures(lvlm.processor, image_tokens, batch)
            asked = prompts(lvlm.preset.prompts.caption, batch)
            inputs = {name: lvlm.to_device(decoder.prepare(images, asked)) for name, decoder in lvlms.items()}
            rounds = [ROUND.format(batch, number) for number in range(1, runs + 1)]
            turns = Turns(lvlms, inputs, max(lengths), clock, on_requests)
            turns.measure(rounds, units)
            timings: dict[str, list[Timing]] = {}
            for place, name in enumerate(lvlms):
                timings[name] = [Timing.of(units[unit][place]) for unit in rounds]
            image, prompt = map(sum, lvlm.lengths(inputs[GREEDY]))
            for name, runs_of_method in timings.items():
                rows.append(BenchRow.of(name, (batch, prompt, image), runs_of_method, timings[GREEDY], lengths))
            yield BenchReport(
                model=lvlm.preset.name or lvlm.preset.model,
                dtype=lvlm.dtype,
                device=device_name(lvlm.model.device),
                torch=torch.__version__,
                transformers=transformers.__version__,
                k=lvlm.k,
                layers=lvlm.layers,
                alpha=lvlm.alpha,
                quantization=lvlm.quantization,
                weights="random" if lvlm.revision == RANDOM else "its own",
                parameters=sum(parameter.numel() for parameter in lvlm.model.parameters()),
                attention=attention_of(lvlm.model.config),
                lengths=tuple(lengths),
                runs=runs,
                rows=tuple(rows),
                stand_ins=stand_ins,
                processor_time=processor_time,
            )


def _calibrate_at_random(lvlm: Lvlm, decoders: dict[str, Method], folder: Path) -> tuple[str, ...]:
    """Replace methods that need a calibration by those with random values, and return their names.

    A cost does not depend on values.
    """
    names = []
    for name, method in decoders.items():
        if isinstance(method, Calibrated):
            path = folder / f"{name}.safetensors"
            origin = Origin(name, lvlm.preset.model, RANDOM, {}, __version__)
            Calibration(origin, method.stand_in(lvlm.model)).write(path)
            decoders[name] = replace(method, calibration=str(path))
            names.append(name)
    return tuple(names)


@dataclass(frozen=True)
class Turns:
    """Requests of methods in turn, of the same texts: a round is one of each method."""

    lvlms: Mapping[str, Lvlm]
    inputs: Mapping[str, Any]
    tokens: int
    clock: Callable[[], float]
    on_requests: Callable[[int, bool], None]

    def measure(self, rounds: Sequence[str], units: Units[list[Any]]) -> None:
        """Measure the rounds that are missing in `units`, after one that warms up, and keep each."""
        missing = [name for name in rounds if name not in units]
        left = 1 + len(missing) if missing else 0
        self.on_requests((1 + len(rounds) - left) * len(self.lvlms), False)
        if missing:
            self._round(min(WARM_UP, self.tokens))
        for name in missing:
            units.add({name: self._round(self.tokens)})

    def _round(self, tokens: int) -> list[Any]:
        timed = []
        for name, lvlm in self.lvlms.items():
            timed.append(asdict(measure(lvlm, self.inputs[name], tokens, clock=self.clock)))
            self.on_requests(1, True)
        return timed


def settings_of(lvlm: Lvlm) -> dict[str, Any]:
    """Return the settings that decide the times of a loaded model, as JSON holds them."""
    return flat(lvlm.preset.decisive()) | {
        "checkpoint": lvlm.revision,
        "dtype": lvlm.dtype,
        "quantization": lvlm.quantization,
        "device": device_name(lvlm.model.device),
    }


def pictures(processor: Any, image_tokens: int, count: int) -> list[Image.Image]:
    """Make pictures of noise with about `image_tokens` image tokens; several have mixed sizes.

    A processor that scales every picture to the same size ignores the number.
    """
    image = processor.image_processor
    made = []
    patch = getattr(image, "patch_size", None)
    side = patch * getattr(image, "merge_size", 1) if isinstance(patch, int) else 28  # pixels along a token
    for share in islice(cycle(SHARES), count):
        height = max(1, round((image_tokens * share * 3 / 4) ** 0.5))
        width = max(1, round(image_tokens * share / height))
        made.append(Image.effect_noise((side * width, side * height), 60).convert("RGB"))
    return made


def prompts(prompt: str, count: int) -> list[str]:
    """Repeat the prompt a different number of times in each row of a batch, so that rows have to be padded."""
    return [prompt + f" {prompt}" * (number % 3) for number in range(count)]


def measure(lvlm: Lvlm, inputs: Any, tokens: int, *, clock: Callable[[], float] = time.perf_counter) -> Timing:
    """Time one request of `tokens` new tokens for each of B prompts."""
    model = lvlm.model
    text = model.config.get_text_config(decoder=True)
    no_token = text.vocab_size  # so that nothing ends a text
    generation = GenerationConfig(max_new_tokens=tokens, do_sample=False, pad_token_id=0, eos_token_id=no_token)
    gc.collect()
    devices = devices_of(model)
    cache = DynamicCache(config=text)
    decodings: list[Any] = []
    given: dict[str, Any] = {CACHE: cache, "generation_config": generation}
    encoder = model.get_encoder(modality="image")
    if encoder in (model, model.base_model):
        raise SiraError(f"the image encoder of {type(model).__name__} cannot be identified")
    seen = _Clock(model.device, clock)
    with peak_memory(*devices) as peak, ExitStack() as hooks:
        hooks.callback(encoder.register_forward_hook(seen.encoded).remove)
        output = lvlm.decode(inputs, tokens, on_attach=decodings.append, **given, streamer=seen)
    made = output.shape[1] - inputs["input_ids"].shape[1]
    if made != tokens or len(seen.tokens) != tokens:
        raise SiraError(f"method {lvlm.method} made {made} tokens ({len(seen.tokens)} seen), expected {tokens}")
    caches = [cache, *(decoding.cache for decoding in decodings if isinstance(decoding, SecondPass))]
    # On GPUs without the caches that other decoders keep.
    weights = sum(weight.nbytes for weight in model.parameters())
    most = peak.bytes + weights if devices[0].type == "cuda" else peak.most
    return Timing(seen.encoder, tuple(seen.tokens), sum(cache_bytes(kept)[0] for kept in caches), most)


class _Clock(BaseStreamer):
    """Time stamps, in seconds since the start: the end of the first image encoder, and of each token."""

    def __init__(self, device: torch.device, now: Callable[[], float]) -> None:
        self._device = device
        self._now = now
        self._prompt = True  # whether it is what comes next
        self.encoder = 0.0
        self.tokens: list[float] = []
        self._start = 0.0
        self._start = self._stamp()

    def encoded(self, *_: Any) -> None:
        """Note the time, unless it is that of a second encoder."""
        self.encoder = self.encoder or self._stamp()

    def put(self, value: Tensor) -> None:
        """Note the time. `generate` calls this with the prompt, then with each step's tokens, which are on the CPU.

        A method's own search calls this when its texts reach a new length, so the times of shorter requests are those
        at which the search would have ended there.
        """
        if not self._prompt:
            self.tokens.append(self._now() - self._start)
        self._prompt = False

    def end(self) -> None:
        """Do nothing; `generate` calls it at the end."""

    def _stamp(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        elif self._device.type == "mps":
            torch.mps.synchronize()
        return self._now() - self._start


def device_name(device: torch.device) -> str:
    """Return the chip's name, as its maker calls it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    if device.type != "cpu":
        return f"{device.type}, {name}"
    threads = torch.get_num_threads()
    return f"{name}, 1 thread" if threads == 1 else f"{name}, {threads} threads"
