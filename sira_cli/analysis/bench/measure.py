"""Time one request: the end of the image encoder, and the end of each token."""

from __future__ import annotations

import gc
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import GenerationConfig
from transformers.cache_utils import DynamicCache, LinearAttentionLayer
from transformers.generation.streamers import BaseStreamer

from sira_cli.core.arguments import CACHE
from sira_cli.core.families import find_backbone
from sira_cli.core.fork import Fork
from sira_cli.core.recurrent import LateStateLayer
from sira_cli.core.upstream import DummyLayer
from sira_cli.errors import SiraError
from sira_cli.methods.opera import Opera
from sira_cli.methods.second_pass import SecondPass
from sira_cli.models.memory import cache_bytes, peak_since, restart_peak
from sira_cli.models.model import BRANCH
from sira_cli.models.packed import stored_bytes
from sira_cli.models.placement import devices_of
from sira_cli.run.lvlm import Lvlm

SHARES = (
    1.0,
    0.75,
    0.5,
    0.9,
    0.6,
    0.8,
    0.7,
    1.0,
)  # of the image tokens, in a mixed batch


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
        output = lvlm.decode(
            inputs,
            tokens,
            on_attach=decodings.append,
            **given,
            streamer=seen,
        )
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


def _hidden(lvlm: Lvlm, inputs: Any) -> Tensor:
    """Return the prompts' positions that have no row in the CF stream, `[B, S]`."""
    image: Tensor = lvlm.find_image(inputs["input_ids"])
    return torch.zeros_like(image) if lvlm.method == "sid" else image  # it masks image rows


def check_caches(lvlm: Lvlm, inputs: Any, decoding: Any, caches: Sequence[Any], tokens: int) -> None:
    """Check that each layer of each stream holds its prompt and every new token but the last, for every beam.

    A recurrent layer holds a state for each text and stream; a layer that shares another one's keys holds nothing.
    """
    new = tokens - 1
    prompts, prompt = inputs["input_ids"].shape
    expected = [(prompt + new, 0)] * lvlm.layers  # rows of the full and of the CF stream
    if isinstance(decoding, Fork):
        kept = inputs["attention_mask"].bool()  # [B, S]
        kept &= ~_hidden(lvlm, inputs)
        text = int(kept.sum(dim=1).max())
        expected[decoding.boundary :] = [(prompt + new, text + new)] * decoding.k
    wanted = [expected]
    if isinstance(decoding, SecondPass):
        wanted.append([(inputs[f"{BRANCH}input_ids"].shape[1] + new, 0)] * lvlm.layers)
    for rows in wanted:
        for index, mixer in enumerate(find_backbone(lvlm.model).mixers):
            if mixer.recurrent:
                rows[index] = (prompts, prompts if rows[index][1] else 0)
            elif mixer.keys_from != index:
                rows[index] = (0, 0)
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
