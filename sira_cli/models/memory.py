"""Peak memory: on GPUs by torch's count, elsewhere by the system's count for the process."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import psutil
import torch
from transformers.cache_utils import DynamicCache, DynamicSlidingWindowLayer, LinearAttentionLayer

from sira_cli.core.arguments import CACHE
from sira_cli.core.cache import ROOM
from sira_cli.core.recurrent import LateStateLayer
from sira_cli.methods.logits_only import LogitsOnly
from sira_cli.methods.second_pass import SecondPass
from sira_cli.models.model import LoadedModel
from sira_cli.models.placement import devices_of
from sira_cli.models.sizes import LOGITS

TICK = 0.005  # seconds between two readings of the process's memory


@dataclass
class Peak:
    """Memory in use before a block, and its peak inside, in bytes."""

    before: int
    most: int

    @property
    def bytes(self) -> int:
        """The peak beyond the memory in use before."""
        return self.most - self.before


@contextlib.contextmanager
def peak_memory(*devices: torch.device) -> Iterator[Peak]:
    """Measure the block's peak memory: torch's allocations on GPUs, else the memory of the process."""
    if devices[0].type == "cuda":
        for device in devices:
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
        peak = Peak(sum(map(torch.cuda.memory_allocated, devices)), 0)
        yield peak
        for device in devices:
            torch.cuda.synchronize(device)
        peak.most = sum(map(torch.cuda.max_memory_allocated, devices))
        return
    ended = threading.Event()
    process = psutil.Process()
    before = process.memory_info().rss
    peak = Peak(before, before)

    def watch() -> None:
        while not ended.wait(TICK):
            peak.most = max(peak.most, process.memory_info().rss)

    watcher = threading.Thread(target=watch, name="sira-memory", daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        ended.set()
        watcher.join()
        peak.most = max(peak.most, process.memory_info().rss)


def peak_of_process() -> dict[str, int]:
    """Return peaks in bytes: `host`, of this process, and `cuda`, torch's on its GPUs, if any."""
    peak = {}
    with contextlib.suppress(ImportError):  # Windows
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        peak["host"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    if torch.cuda.is_available():
        peak["cuda"] = sum(map(torch.cuda.max_memory_allocated, range(torch.cuda.device_count())))
    return peak


class Share(NamedTuple):
    """The part of free memory that a batch may take, and the largest batch."""

    memory: float
    pictures: int


CUDA = Share(0.9, 256)  # a batch is halved if a GPU is full
OTHERS = Share(0.5, 16)


def cache_bytes(cache: Any, columns: int = 1) -> tuple[int, int]:
    """Return the bytes of a cache, all layers and streams, and those of more columns, as far as windows let it grow."""
    now = 0
    more = 0
    for layer in cache.layers:
        full = layer.states if isinstance(layer, LateStateLayer) else layer  # states are both streams'
        for stream in (full, getattr(layer, "cf", None)):
            if isinstance(stream, LinearAttentionLayer):
                states = [*stream.conv_states.values(), *stream.recurrent_states.values()]
                now += sum(state.nbytes for state in states if state is not None)
            elif stream is not None and stream.keys is not None and stream.keys.numel():
                tensors = (stream.keys, stream.values, getattr(stream, "indexer_keys", None))
                size = sum(tensor.nbytes for tensor in tensors if tensor is not None)
                length = stream.keys.shape[-2]
                grown = columns
                if isinstance(stream, DynamicSlidingWindowLayer):
                    grown = min(columns, stream.sliding_window - length)
                now += size
                more += size // length * grown
    return now, more


@dataclass(frozen=True)
class PictureMemory:
    """Memory of a picture in a batch, in bytes."""

    prefill: int  # peak while its prompt runs: pixels, image features, activations, logits, and its caches so far
    text: int  # its caches at the maximum length of its text, and the logits of a step

    def largest_batch(self, free: int, most: int) -> int:
        """Return the number of pictures that fit into `free` bytes, from 1 to `most`: all prompts, then all texts."""
        return max(1, min(free // max(self.prefill, self.text), most))


@torch.no_grad()
def measure_picture(lvlm: LoadedModel, inputs: Any, task: str = "caption") -> PictureMemory:
    """Run the prompt of one picture, and return the picture's memory in a batch."""
    model = lvlm.model
    settings = lvlm.preset.generation
    text_config = model.config.get_text_config(decoder=True)
    cache = DynamicCache(config=text_config)
    decodings: list[Any] = []
    options: dict[str, Any] = {CACHE: cache, "num_beams": settings.num_beams, "do_sample": False}
    with peak_memory(*devices_of(model)) as peak:
        lvlm.decode(lvlm.to_device(inputs), 1, task, on_attach=decodings.append, **options)
    columns = settings.max_new_tokens + ROOM
    now, more = cache_bytes(cache, columns)
    for decoding in decodings:
        if isinstance(decoding, SecondPass) and decoding.cache is not None:
            branch_now, branch_more = cache_bytes(decoding.cache, columns)
            now += branch_now
            more += branch_more
    logits = LOGITS * 4 * text_config.vocab_size * settings.num_beams
    if isinstance(lvlm.decoder, LogitsOnly) and lvlm.decoder.first_steps is None:
        logits += 2 * 4 * text_config.vocab_size * settings.max_new_tokens  # of all steps, kept and stacked
    return PictureMemory(max(peak.bytes, now), now + more + logits)


def free_memory(*devices: torch.device) -> int:
    """Return the bytes for a batch: a share of the free memory, of the device with the least."""
    if devices[0].type != "cuda":
        return int(OTHERS.memory * psutil.virtual_memory().available)
    free = []
    for device in devices:
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        free.append(torch.cuda.mem_get_info(device)[0] + unused)
    return int(CUDA.memory * min(free))


def most_pictures(device: torch.device) -> int:
    """Return the maximum batch size, for any amount of memory."""
    share = CUDA if device.type == "cuda" else OTHERS
    return share.pictures
