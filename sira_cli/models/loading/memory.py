"""The number of pictures that fit into memory: caches are computed from the model's shape, all else is measured.

one prefill of one picture, under the method   ->  its peak memory, and its caches
these caches, with columns for all new tokens  ->  memory of a text at its maximum length
free memory                                    ->  the largest batch
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psutil
import torch
from transformers.cache_utils import DynamicCache, LinearAttentionLayer

from sira_cli.core.arguments import CACHE
from sira_cli.core.cache import ROOM
from sira_cli.core.recurrent import LateStateLayer
from sira_cli.methods.second_pass import SecondPass
from sira_cli.models.answering.decoding import DecodingModel
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


def cache_bytes(cache: Any) -> tuple[int, int]:
    """Return the bytes of keys, values and states in all layers and streams of a cache, and those of one more column.

    Sliding windows count as if they went on growing.
    """
    now = more = 0
    for layer in cache.layers:
        own = layer.states if isinstance(layer, LateStateLayer) else layer  # both streams'
        for stream in (own, getattr(layer, "cf", None)):
            if isinstance(stream, LinearAttentionLayer):
                states = [*stream.conv_states.values(), *stream.recurrent_states.values()]
                now += sum(state.nbytes for state in states if state is not None)
            elif stream is not None and stream.keys is not None and stream.keys.numel():
                tensors = stream.keys, stream.values, getattr(stream, "indexer_keys", None)
                size = sum(tensor.nbytes for tensor in tensors if tensor is not None)
                now += size
                more += size // stream.keys.shape[-2]
    return now, more


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
    """Run the prompt of one picture, and return the picture's memory in a batch."""
    model, settings = lvlm.model, lvlm.preset.generation
    text_config = model.config.get_text_config(decoder=True)
    cache = DynamicCache(config=text_config)
    decodings: list[Any] = []
    given: dict[str, Any] = {CACHE: cache, "num_beams": settings.num_beams, "do_sample": False}
    with peak_memory(*devices_of(model)) as peak:
        lvlm.decode(
            lvlm.to_device(inputs),
            1,
            task,
            on_attach=decodings.append,
            **given,
        )
    second = [each.cache for each in decodings if isinstance(each, SecondPass) and each.cache is not None]
    now, more = map(sum, zip(*map(cache_bytes, [cache, *second]), strict=True))
    logits = LOGITS * 4 * text_config.vocab_size * settings.num_beams
    return PictureMemory(max(peak.bytes, now), now + more * (settings.max_new_tokens + ROOM) + logits)


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
