"""Time requests of methods in turn: the end of the image encoder, and the end of each token."""

from __future__ import annotations

import gc
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image
from torch import Tensor
from transformers import GenerationConfig
from transformers.cache_utils import DynamicCache, LinearAttentionLayer
from transformers.generation.streamers import BaseStreamer

from sira_cli._version import __version__
from sira_cli.analysis.bench.report import BenchReport, BenchRow, Sizes, Timing
from sira_cli.core.arguments import CACHE
from sira_cli.core.families import find_backbone
from sira_cli.core.fork import Fork
from sira_cli.core.recurrent import LateStateLayer
from sira_cli.core.upstream import DummyLayer, attention_of
from sira_cli.errors import SiraError
from sira_cli.methods import find
from sira_cli.methods.base import Method
from sira_cli.methods.calibrated import Calibrated, Calibration, Origin
from sira_cli.methods.opera import Opera
from sira_cli.methods.second_pass import SecondPass
from sira_cli.models.memory import cache_bytes, peak_since, restart_peak
from sira_cli.models.model import BRANCH
from sira_cli.models.packed import stored_bytes
from sira_cli.models.placement import devices_of
from sira_cli.run.lvlm import Lvlm

WARM_UP = 4  # tokens
GREEDY = "greedy"
RANDOM = "random"  # the revision of a model with random weights
SHARES = (1.0, 0.75, 0.5, 0.9, 0.6, 0.8, 0.7, 1.0)  # of the image tokens, in a mixed batch


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
) -> Iterator[BenchReport]:
    """Time requests of every method on the same model and pictures: A B A B ..., each round in the same order.

    The report is yielded after each batch size, so that nothing is lost if a later one does not fit into memory.
    """
    compared, clock = decoders(methods), time.process_time if processor_time else time.perf_counter
    rows: list[BenchRow] = []
    with with_stand_ins(compared, lvlm) as stand_ins:
        for batch in batches:
            # They share the model: only hooks differ, which are on it while a request runs.
            lvlms = {name: lvlm.under(stand_ins.get(name, find(name))) for name in compared}
            images = pictures(lvlm.processor, image_tokens, batch)
            asked = prompts(lvlm.preset.prompts.caption, batch)
            inputs = {
                name: one.prepare(images, asked).to(lvlm.model.device, dtype=lvlm.model.dtype)
                for name, one in lvlms.items()
            }
            timings: dict[str, list[Timing]] = {name: [] for name in compared}
            for number in range(runs + 1):
                tokens = max(lengths) if number else min(WARM_UP, max(lengths))
                for name, one in lvlms.items():
                    timing = measure(one, inputs[name], tokens, clock=clock)
                    timings[name] += [timing] * (number > 0)
                    on_request()
            image, prompt = map(sum, lvlm.lengths(inputs[GREEDY]))
            sizes = Sizes(batch, prompt, image)
            rows += [BenchRow.of(name, sizes, timings[name], timings[GREEDY], lengths) for name in compared]
            yield BenchReport(
                model=lvlm.preset.name or lvlm.preset.model,
                dtype=lvlm.dtype,
                device=device_name(lvlm.model.device),
                torch=torch.__version__,
                transformers=transformers.__version__,
                k=lvlm.k,
                layers=lvlm.layers,
                alpha=lvlm.alpha,
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


def decoders(methods: Sequence[str]) -> list[str]:
    """Return the methods to measure, greedy first."""
    return list(dict.fromkeys([GREEDY, *methods]))


@contextmanager
def with_stand_ins(names: Sequence[str], lvlm: Lvlm) -> Iterator[dict[str, Method]]:
    """Yield the methods that need a calibration, each with one of random values, if the weights are random.

    A method's cost does not depend on their values.
    """
    calibrated: dict[str, Method] = {}
    with tempfile.TemporaryDirectory(prefix="sira-bench-") as folder:
        for name in names:
            method = find(name)
            if isinstance(method, Calibrated) and lvlm.revision == RANDOM:
                path = Path(folder) / f"{name}.safetensors"
                origin = Origin(name, lvlm.preset.model, RANDOM, {}, __version__)
                Calibration(origin, method.stand_in(lvlm.model)).write(path)
                calibrated[name] = replace(method, calibration=str(path))
        yield calibrated


def pictures(processor: Any, image_tokens: int, count: int) -> list[Image.Image]:
    """Make pictures of noise with about `image_tokens` image tokens; several have mixed sizes.

    A processor that scales every picture to the same size ignores the number.
    """
    image = processor.image_processor
    unit = getattr(image, "patch_size", None), getattr(image, "merge_size", 1)
    side = unit[0] * unit[1] if isinstance(unit[0], int) else 28  # pixels along a token
    shares = SHARES if count > 1 else (1.0,)
    made = []
    for number in range(count):
        tokens = image_tokens * shares[number % len(shares)]
        height = max(1, round((tokens * 3 / 4) ** 0.5))
        width = max(1, round(tokens / height))
        made.append(Image.effect_noise((side * width, side * height), 60).convert("RGB"))
    return made


def prompts(prompt: str, count: int) -> list[str]:
    """Repeat the prompt a different number of times in each row of a batch, so that rows have to be padded."""
    return [prompt + f" {prompt}" * (number % 3) for number in range(count)]


def measure(lvlm: Lvlm, inputs: Any, tokens: int, *, clock: Callable[[], float] = time.perf_counter) -> Timing:
    """Time one request of `tokens` new tokens for each of B prompts."""
    model = lvlm.model
    no_token = model.config.get_text_config(decoder=True).vocab_size  # so that nothing ends a text
    generation = GenerationConfig(max_new_tokens=tokens, do_sample=False, pad_token_id=0, eos_token_id=no_token)
    gc.collect()
    devices = devices_of(model)
    before = restart_peak(devices)
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    decodings: list[Any] = []
    given: dict[str, Any] = {CACHE: cache, "generation_config": generation}
    with _Clock(model, clock).running() as seen:
        output = lvlm.decode(inputs, tokens, on_attach=decodings.append, **given, streamer=seen)
    decoding = decodings[0] if decodings else None
    made = output.shape[1] - inputs["input_ids"].shape[1]
    if made != tokens or len(seen.tokens) != tokens:
        raise SiraError(f"method {lvlm.method} made {made} tokens ({len(seen.tokens)} seen), expected {tokens}")
    caches: list[Any] = [cache, decoding.cache] if isinstance(decoding, SecondPass) else [cache]
    check_caches(lvlm, inputs, decoding, caches, tokens)
    cached = sum(cache_bytes(each)[0] for each in caches)
    peak = peak_since(devices)
    if peak is not None and before is not None:  # without the caches that other decoders keep
        peak += stored_bytes(model) - before
    return Timing(seen.encoder, tuple(seen.tokens), cached, peak)


def check_caches(lvlm: Lvlm, inputs: Any, decoding: Any, caches: Sequence[Any], tokens: int) -> None:
    """Check that each layer of each stream holds its prompt and every new token but the last, for every beam.

    A recurrent layer holds a state for each text and stream; a layer that shares another one's keys holds nothing.
    """
    new = tokens - 1
    prompts, prompt = inputs["input_ids"].shape
    expected = [(prompt + new, 0)] * lvlm.layers  # rows of the full and of the CF stream
    if isinstance(decoding, Fork):
        rows = inputs["attention_mask"].bool()  # [B, S], those of the CF stream
        if lvlm.method != "sid":  # it masks image rows
            rows &= ~lvlm.find_image(inputs["input_ids"])
        text = int(rows.sum(dim=1).max())
        expected[decoding.boundary :] = [(prompt + new, text + new)] * decoding.k
    wanted = [expected]
    if isinstance(decoding, SecondPass):
        wanted.append([(inputs[f"{BRANCH}input_ids"].shape[1] + new, 0)] * lvlm.layers)
    for index, mixer in enumerate(find_backbone(lvlm.model).mixers):
        for layers in wanted:
            if mixer.recurrent:
                layers[index] = (prompts, prompts if layers[index][1] else 0)
            elif mixer.keys_from != index:
                layers[index] = (0, 0)
    found = [[_rows(layer) for layer in cache.layers] for cache in caches]
    if found != wanted:
        raise SiraError(
            f"method {lvlm.method}: rows of (full, CF) per cache and layer are {found}, expected {wanted}: "
            "the wrong decoder was measured"
        )
    beams = lvlm.decoder.beams if isinstance(lvlm.decoder, Opera) else 1
    if beams > 1 and any(len(layer.keys) != prompts * beams for cache in caches for layer in cache.layers):
        raise SiraError(f"method {lvlm.method}: its cache does not hold {prompts} x {beams} beams")


def device_name(device: torch.device) -> str:
    """Return the chip's name, as its maker calls it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    threads = torch.get_num_threads()
    return f"{name}, {threads} thread{'s' * (threads > 1)}" if device.type == "cpu" else f"{device.type}, {name}"


class _Clock(BaseStreamer):
    """Time stamps, in seconds since the start."""

    def __init__(self, model: Any, clock: Callable[[], float]) -> None:
        self._model, self._now = model, clock
        self._prompt = True
        self.encoder = 0.0
        self.tokens: list[float] = []

    @contextmanager
    def running(self) -> Iterator[_Clock]:
        """Start the clock with the block."""
        encoder = self._model.get_encoder(modality="image")
        if encoder in (self._model, self._model.base_model):
            raise SiraError(f"the image encoder of {type(self._model).__name__} cannot be identified")
        handle = encoder.register_forward_hook(self._encoded)
        _wait(self._model.device)
        self._start = self._now()
        try:
            yield self
        finally:
            handle.remove()

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

    def _encoded(self, *_: Any) -> None:
        if not self.encoder:
            _wait(self._model.device)
            self.encoder = self._now() - self._start


def _rows(layer: Any) -> tuple[int, int]:
    """Return a layer's number of rows of the full and of the CF stream; for states, the number of texts."""
    if isinstance(layer, LateStateLayer):
        both = len(_states(layer.states)[0])
        return both - both // 2, both // 2
    if isinstance(layer, LinearAttentionLayer):
        return len(_states(layer)[0]), 0
    if isinstance(layer, DummyLayer):
        return 0, 0
    return int(layer.get_seq_length()), int(layer.cf.get_seq_length()) if hasattr(layer, "cf") else 0


def _states(layer: LinearAttentionLayer) -> list[Any]:
    return [*layer.conv_states.values(), *layer.recurrent_states.values()]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
