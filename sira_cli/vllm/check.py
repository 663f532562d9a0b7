"""A short prompt at vLLM's start: is what the model decodes SIRA's?"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.forward_context import set_forward_context
from vllm.v1.worker.gpu.attn_utils import build_attn_metadata, init_attn_backend

from sira_cli.errors import UnsupportedModelError
from sira_cli.vllm.step import plan
from sira_cli.vllm.streams import Streams, TwoStreamModel

_log = logging.getLogger("vllm.sira")  # vLLM shows it with its own

ROWS = 24  # of the prompt that is tried
CUT = 10  # where it is cut in two
IMAGE = slice(6, 14)  # its image tokens


def check(model: Any, streams: Streams) -> None:
    """Run a short prompt with an image in it: the streams must differ where they must, and be equal where they must.

    Raises:
        UnsupportedModelError: they do not, so the texts would not be SIRA's.
    """
    caches = streams.caches
    names = {name for group in caches.kv_cache_groups for name in group.layer_names} - set(streams.contrast)
    groups, _, _ = init_attn_backend(caches, streams.vllm_config, streams.device, active_layer_names=names)
    run = functools.partial(_last, model, streams, groups)
    with_image = run()
    text_only = run(image=False)
    cut = run(cuts=(CUT, ROWS - 1))
    dtype = streams.vllm_config.model_config.dtype
    tolerance = {torch.float32: 1e-3, torch.float16: 2e-2}.get(dtype, 5e-2)
    rounding = _apart(*text_only.chunk(2))
    found = {
        "both streams are the same": _apart(*with_image.chunk(2)) > max(1e-5, 3 * rounding),
        "the streams differ without an image": rounding <= tolerance,
        "a prompt in pieces gives something else": _apart(with_image, cut) <= tolerance,
        "its logits are not the contrast of both": _contrasted(model, with_image.to(dtype), streams),
    }
    failed = [what for what, holds in found.items() if not holds]
    if failed:
        raise UnsupportedModelError(
            f"SIRA refuses to serve {type(model).__name__}: its two streams are not what they must be "
            f"({'; '.join(failed)}). Try --enforce-eager, or a version of vLLM that docs/vllm.md names"
        )
    _log.info("SIRA decodes: K = %d, alpha = %g", len(streams.contrast), streams.config.alpha)


def _apart(left: Tensor, right: Tensor) -> float:
    """Return the distance of two vectors, as a share of the first one's length."""
    return float((left - right).norm() / left.norm())


@torch.inference_mode()
def _contrasted(model: Any, hidden: Tensor, streams: Streams) -> bool:
    """Check the logits of a row `[2 d]` against the paper's Eq. 4."""
    full, contrast = hidden[None].chunk(2, dim=-1)
    plain = super(TwoStreamModel, model).compute_logits
    found = model.compute_logits(hidden[None])
    z_full = plain(full.contiguous())
    z_cf = plain(contrast.contiguous())
    if found is None:  # another process has them
        return True
    alpha = streams.config.alpha
    expected = (1 + alpha) * z_full.float() - alpha * z_cf.float()
    kept = found.isfinite() & expected.isfinite()
    return _apart(expected[kept], found[kept]) <= 1e-3


@torch.inference_mode()
def _last(model: Any, streams: Streams, groups: Any, *, image: bool = True, cuts: Iterable[int] = ()) -> Tensor:
    """Run a prompt of `ROWS` random tokens in the first blocks of the cache: its last row in both streams, `[2 d]`.

    Args:
        model: with two streams.
        streams: of the model.
        groups: those of the full stream's layers.
        image: whether there are image tokens.
        cuts: where a step ends, in addition to those that vLLM makes.
    """
    config = streams.vllm_config.model_config
    ids = torch.arange(ROWS).mul(7919).add(13).remainder(config.get_vocab_size()).to(streams.device)
    shown = np.zeros(ROWS, dtype=bool)
    shown[IMAGE] = image
    streams.requests.put(0, shown, streams.config.alpha)
    axes = config.mrope_num_dims if config.uses_mrope else 0  # of a row's position; 0: a number
    last = torch.empty(0)
    start = 0
    for end in sorted({*cuts, *range(streams.most, ROWS, streams.most), ROWS}):
        metadata, slots = _prepared(streams, groups, start, end)
        place = torch.arange(start, end, device=streams.device)
        positions = place.expand(axes, -1) if axes else place
        embedded = model.embed_input_ids(ids[start:end])
        with set_forward_context(metadata, streams.vllm_config, num_tokens=end - start, slot_mapping=slots):
            last = model(None, positions, None, embedded)[-1]
        start = end
    streams.alpha = None
    return last.float()


def _prepared(streams: Streams, groups: Any, start: int, end: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the metadata and the slots of all layers for rows `start` to `end` of the prompt, in slot 0."""
    device = streams.device
    caches = streams.caches
    place = torch.arange(start, end, device=device)
    tables = []
    slots = []
    first = 1  # block 0 is no one's
    by_name: dict[str, Tensor] = {}
    for group in caches.kv_cache_groups:
        size = group.kv_cache_spec.block_size
        after = first + 1 + (ROWS - 1) // size
        tables.append(torch.arange(first, after, dtype=torch.int32, device=device)[None])
        first = after  # layers of another group may lie in the same memory
        slots.append(tables[-1][0, place // size].long() * size + place % size)
        by_name.update(dict.fromkeys(group.layer_names, slots[-1]))
    starts = np.array([0, end - start], dtype=np.int32)
    prefilling = np.array([end < ROWS])
    metadata = build_attn_metadata(
        attn_groups=groups,
        num_reqs=1,
        num_tokens=end - start,
        query_start_loc_gpu=torch.from_numpy(starts).to(device),
        query_start_loc_cpu=torch.from_numpy(starts),
        max_query_len=end - start,
        seq_lens=torch.tensor([end], dtype=torch.int32, device=device),
        max_seq_len=end,
        block_tables=tables,
        slot_mappings=slots,
        kv_cache_config=caches,
        seq_lens_cpu_upper_bound=torch.tensor([end], dtype=torch.int32),
        is_prefilling=torch.from_numpy(prefilling),
    )
    slot = np.array([0])
    computed = np.array([start])
    step = plan(starts, computed, slot, streams.requests, prefilling, end - start)
    return metadata | streams.prepare(step, tables, slot, computed), by_name
