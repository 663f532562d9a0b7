"""The number of pictures that fit into memory: caches are computed from the model's shape, all else is measured.

one prefill of one picture, under the method   ->  its peak memory, and its caches
these caches, with columns for all new tokens  ->  memory of a text at its maximum length
free memory                                    ->  the largest batch
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from transformers.cache_utils import DynamicCache, DynamicSlidingWindowLayer, LinearAttentionLayer

from sira_cli.core.arguments import CACHE
from sira_cli.core.cache import ROOM, RoomyLayer
from sira_cli.core.recurrent import LateStateLayer
from sira_cli.core.static_cache import CF_ROWS
from sira_cli.methods.second_pass import SecondPass
from sira_cli.models.answering.decoding import DecodingModel
from sira_cli.models.loading.compiled import CACHE_ROWS
from sira_cli.models.loading.peak import peak_memory
from sira_cli.models.loading.placement import devices_of

LOGITS = 6  # float32 numbers per vocabulary entry and text: both streams', their contrast, the picking of a token
# Shares of free memory. A full GPU raises an error, and the batch is halved; a process on a CPU is killed, and other
# programs use the same memory.
SHARES = {"cuda": 0.9}
SHARE = 0.5
# A larger batch is hardly faster, and many pictures would be read ahead for it.
LIMITS = {"cuda": 256}
LIMIT = 16


@dataclass(frozen=True)
class StreamLayer:
    """The keys and values of one stream in one layer, for one picture with all its beams.

    Attributes:
        column_bytes: bytes per column.
        columns: number of columns after the prompt.
        window: columns that the model's own layer sees; 0: all.
        slides: whether columns outside the window are dropped.
        room: maximum number of allocated but unused columns.
        fork: whether it is the CF stream of a fork.
        state: whether it is a recurrent layer's state: one column, replaced by each token.
    """

    column_bytes: int
    columns: int
    window: int = 0
    slides: bool = False
    room: int = 0
    fork: bool = False
    state: bool = False

    def growing(self, new_tokens: int) -> int:
        """Return the maximum bytes of a cache that grows by `new_tokens` tokens in `generate`."""
        if self.state:
            return self.column_bytes
        columns = self.columns + new_tokens
        return self.column_bytes * (min(columns, self.window) if self.slides else columns + self.room)

    def static(self, prompt: int, new_tokens: int) -> int:
        """Return bytes in a static cache (`CompiledSteps`, `StaticLateLayer`); for a prompt of `prompt` tokens."""
        if self.fork:
            return self.column_bytes * math.ceil((self.columns + new_tokens) / CF_ROWS) * CF_ROWS
        columns = math.ceil((prompt + new_tokens) / CACHE_ROWS) * CACHE_ROWS
        return self.column_bytes * (min(columns, self.window) if self.window else columns)


def windows(cache: DynamicCache) -> list[int]:
    """Return the sliding window of each layer of an empty cache; 0: no window."""
    return [int(getattr(layer, "sliding_window", 0) or 0) for layer in cache.layers]


def stream_layers(cache: DynamicCache, windows: Sequence[int]) -> list[StreamLayer]:
    """Return all streams of all layers of a cache that holds the prompt of one picture.

    Args:
        cache: filled.
        windows: from `windows`, when the cache was empty; empty: no windows.
    """
    found = []
    layers: list[Any] = list(cache.layers)
    for layer, window in zip(layers, windows or [0] * len(layers), strict=True):
        if isinstance(layer, LateStateLayer):
            layer = layer.states  # both streams'
        for stream, fork in ((layer, False), (getattr(layer, "cf", None), True)):
            if isinstance(stream, LinearAttentionLayer):
                states = [*stream.conv_states.values(), *stream.recurrent_states.values()]
                size = sum(state.nbytes for state in states if state is not None)
                found.append(StreamLayer(size, 1, state=True))
            elif stream is not None and stream.keys is not None and stream.keys.numel():
                columns, indexer = stream.keys.shape[-2], getattr(stream, "indexer_keys", None)
                extra = 0 if indexer is None else indexer.nbytes
                found.append(
                    StreamLayer(
                        (stream.keys.nbytes + stream.values.nbytes + extra) // columns,
                        columns,
                        window,
                        isinstance(stream, DynamicSlidingWindowLayer),
                        ROOM if isinstance(stream, RoomyLayer) else 0,
                        fork,
                    )
                )
    return found


@dataclass(frozen=True)
class PictureMemory:
    """Memory of a picture in a batch, in bytes.

    Attributes:
        prefill: peak while its prompt runs: pixels, image features, activations, logits, and its caches so far.
        text: its caches at the maximum length of its text, and the logits of a step.
    """

    prefill: int
    text: int

    def largest_batch(self, free: int, most: int) -> int:
        """Return the number of pictures that fit into `free` bytes, from 1 to `most`: all prompts, then all texts."""
        return max(1, min(free // max(self.prefill, self.text), most))


@torch.no_grad()
def measure_picture(lvlm: DecodingModel, inputs: Any, task: str = "caption") -> PictureMemory:
    """Run the prompt of one picture, and return the picture's memory in a batch.

    Args:
        lvlm: the model under its method.
        inputs: from its `prepare`, for one picture and prompt; take the largest picture of a run, to be safe.
        task: `caption` or `ask`.

    Raises:
        torch.OutOfMemoryError: memory is too small for one picture.
    """
    model, settings = lvlm.model, lvlm.preset.generation
    text_config = model.config.get_text_config(decoder=True)
    cache = DynamicCache(config=text_config)
    own_windows = windows(cache)
    decodings: list[Any] = []
    plain = copy.copy(lvlm)
    plain.compiled = None  # only steps are compiled
    given: dict[str, Any] = {CACHE: cache, "num_beams": settings.num_beams, "do_sample": False}
    with peak_memory(*devices_of(model)) as peak:
        plain.decode(
            plain.to_device(inputs),
            1,
            task,
            on_attach=decodings.append,
            **given,
        )
    layers = stream_layers(cache, own_windows)
    for decoding in decodings:
        if isinstance(decoding, SecondPass) and decoding.cache is not None:
            layers += stream_layers(decoding.cache, own_windows)
    new, prompt = settings.max_new_tokens, inputs["input_ids"].shape[1]
    if lvlm.compiled is not None:
        caches = sum(layer.static(prompt, new) for layer in layers)
    else:
        caches = sum(layer.growing(new) for layer in layers)
    logits = LOGITS * 4 * text_config.vocab_size * settings.num_beams
    return PictureMemory(max(peak.bytes, sum(layer.column_bytes * layer.columns for layer in layers)), caches + logits)


def free_memory(*devices: torch.device) -> int:
    """Return the bytes for a batch: a share of the free memory, of the device with the least.

    With several devices each holds only a part of a batch, so this errs on the side of small batches.
    """
    return min(map(_free, devices))


def _free(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    else:
        free = psutil.virtual_memory().available
    return int(free * SHARES.get(device.type, SHARE))


def most_pictures(device: torch.device) -> int:
    """Return the maximum batch size, for any amount of memory."""
    return LIMITS.get(device.type, LIMIT)
