"""What a batch takes in memory: the estimate against the bytes of real caches after real steps."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.cache_utils import DynamicCache

from sira_cli import load, methods
from sira_cli.core.arguments import CACHE
from sira_cli.core.cache import ROOM
from sira_cli.methods.second_pass import SecondPass
from sira_cli.models.memory import PictureMemory, free_memory, measure_picture, most_pictures, peak_memory
from sira_cli.run.lvlm import Lvlm
from tests.support.helpers import mostly_slow

STEPS = 70  # more than a cache's room
IMAGE = Image.fromarray(np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3))


def real(lvlm: Lvlm, count: int, tokens: int) -> tuple[int, int]:
    """Bytes behind all caches of so many pictures when their texts have so many tokens, each storage once, with room
    that is not in use yet; and columns of the shortest cache."""
    cache = DynamicCache(config=lvlm.model.config.get_text_config(decoder=True))
    decodings: list[Any] = []
    limits = {"do_sample": False, "num_beams": lvlm.preset.generation.num_beams, "min_new_tokens": tokens}
    inputs = lvlm.to_device(inputs_of(lvlm, count))
    lvlm.decode(inputs, tokens, on_attach=decodings.append, **{CACHE: cache}, **limits)
    caches: list[Any] = [cache, *(each.cache for each in decodings if isinstance(each, SecondPass))]
    layers = [layer for each in caches for layer in each.layers]
    streams = [stream for layer in layers for stream in (layer, getattr(layer, "cf", None)) if stream is not None]
    tensors = [getattr(stream, name, None) for stream in streams for name in ("keys", "values")]
    for layer in layers:
        states = getattr(layer, "states", layer)  # of both streams
        tensors += [*getattr(states, "conv_states", {}).values(), *getattr(states, "recurrent_states", {}).values()]
    storages = [tensor.untyped_storage() for tensor in tensors if isinstance(tensor, torch.Tensor)]
    taken = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
    return taken, min(each.get_seq_length() for each in caches)


def inputs_of(lvlm: Lvlm, count: int) -> Any:
    return lvlm.prepare([IMAGE] * count, ["Is there a cat on the table?"] * count)


@pytest.fixture(scope="module")
def loaded(checkpoint_of) -> Any:
    """A family's model under a method, loaded once."""
    made: dict[str, Lvlm] = {}

    def under(family: str, method: str, **settings: Any) -> Lvlm:
        if family not in made:
            made[family] = load(checkpoint_of(family), dtype="float32", max_new_tokens=STEPS)
        lvlm = made[family]
        return lvlm.under(methods.find(method), lvlm.preset.with_settings(**settings))

    return under


CASES: list[tuple[str, str, dict[str, int]]] = [
    ("LLaVA-1.5", "sira", {}),
    ("LLaVA-1.5", "greedy", {"num_beams": 3}),
    ("LLaVA-1.5", "m3id", {}),  # a second pass with a cache of its own and a shorter prompt
    ("Gemma 3", "sira", {}),  # sliding windows
    ("Qwen3.5", "sira", {}),  # recurrent states
]
SLOW = [("LLaVA-1.5", "sira", {"k": 1}), *(("LLaVA-1.5", name, {}) for name in ("greedy", "vcd", "sid"))]
SLOW += [("Gemma 3", "greedy", {}), ("Qwen3.5", "greedy", {})]


@pytest.mark.parametrize(("family", "method", "settings"), mostly_slow(CASES + SLOW, *CASES))
def test_a_text_takes_what_its_caches_take_at_its_end(family, method, settings, loaded):
    lvlm = loaded(family, method, **settings)
    # The logits of both streams and of what is made of them.
    vocabulary = lvlm.model.config.get_text_config(decoder=True).vocab_size
    logits = 6 * 4 * vocabulary * lvlm.preset.generation.num_beams
    found = 2 * (measure_picture(lvlm, inputs_of(lvlm, 1)).text - logits)
    taken, columns = real(lvlm, 2, STEPS)
    # Room that is not in use yet is counted; the last new token has no keys and values.
    assert taken <= found <= taken * (columns + ROOM) / (columns - 1)


def test_the_peak_of_a_prefill_holds_its_caches_and_what_the_process_took():
    """Of CUDA's own count there is none here; `test_on_cuda` has a stand-in for it."""
    with peak_memory(torch.device("cpu")) as peak:
        block = torch.ones(64 << 20, dtype=torch.uint8)
        time.sleep(0.1)
        del block
    assert 60 << 20 < peak.bytes < 200 << 20


@pytest.mark.parametrize(
    ("before", "most", "free", "reserved", "peak", "left"),
    [((5,), (8,), (20,), 2, 3, 22), ((5, 7), (8, 11), (20, 30), 0, 7, 20)],
    ids=["one GPU", "several: the peak is of all, and the least free memory counts"],
)
def test_on_cuda_the_peak_is_what_torch_counts_beyond_what_was_there(
    before, most, free, reserved, peak, left, monkeypatch
):
    """No GPU here: torch's counters are stand-ins, in GiB; what is reserved and not in use is free as well."""
    devices, calls = [torch.device("cuda", number) for number in range(len(before))], []
    counters = {
        "synchronize": lambda where: calls.append("wait"),
        "reset_peak_memory_stats": lambda where: calls.append("reset"),
        "memory_allocated": lambda where: before[where.index] << 30,
        "memory_reserved": lambda where: (before[where.index] + reserved) << 30,
        "max_memory_allocated": lambda where: most[where.index] << 30,
        "mem_get_info": lambda where: (free[where.index] << 30, 80 << 30),
    }
    for name, counter in counters.items():
        monkeypatch.setattr(torch.cuda, name, counter)
    with peak_memory(*devices) as found:
        calls.append("work")
    assert found.bytes == peak << 30
    assert calls == ["wait", "reset"] * len(devices) + ["work"] + ["wait"] * len(devices)
    assert (free_memory(*devices), most_pictures(devices[0])) == (int(0.9 * (left << 30)), 256)


def test_the_largest_batch_that_fits_prompts_and_texts_is_at_least_one_picture():
    for prefill, text, free, expected in ((100, 40, 1000, 10), (40, 100, 1099, 10), (100, 40, 99, 1), (1, 1, 1000, 64)):
        assert PictureMemory(prefill, text).largest_batch(free, 64) == expected
