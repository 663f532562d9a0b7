"""vLLM's workers, which give the model that they load two streams, and refuse to serve when these are not there."""

from __future__ import annotations

import functools
import logging
from typing import Any

import torch
from torch import Tensor
from vllm.forward_context import set_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.worker.gpu_worker import Worker as GPUWorker

from sira_cli.errors import UnsupportedModelError
from sira_cli.vllm.plugin import KEY, SETTINGS, config_of
from sira_cli.vllm.requests import RequestRows
from sira_cli.vllm.streams import FIELDS, Streams, TwoStreamModel, install

_log = logging.getLogger("vllm.sira")  # vLLM shows it with its own

IMAGE = slice(6, 14)  # of the rows of the prompt that is tried
ROWS, CUT = 24, 10


class _TwoStreamWorker:
    """Mixed into a worker class of vLLM."""

    vllm_config: Any
    model_runner: Any
    device: torch.device
    _streams: Streams

    def load_model(self, **options: Any) -> None:
        """Load the model, and give it two streams."""
        super().load_model(**options)  # type: ignore[misc]
        settings = self.vllm_config.additional_config[KEY]
        config = config_of({name: settings[name] for name in SETTINGS})
        self._streams = install(self.model_runner.get_model(), self.vllm_config, config)

    def compile_or_warm_up_model(self) -> Any:
        """Warm up as vLLM does, and try both streams."""
        result = super().compile_or_warm_up_model()  # type: ignore[misc]
        runner, streams = self.model_runner, self._streams
        groups = [group for some in runner.attn_groups for group in some if streams.contrast[0] in group.layer_names]
        if len(groups) != 1 or not {streams.full, *streams.contrast} <= set(groups[0].layer_names):
            raise UnsupportedModelError("SIRA cannot decode exactly: the model's layers have caches of several kinds")
        theirs = groups[0].get_metadata_builder()
        builder = type(theirs)(theirs.kv_cache_spec, streams.contrast, self.vllm_config, self.device)
        processors = [p for p in runner.input_batch.logitsprocs.all if isinstance(p, RequestRows)]
        cache = runner.kv_cache_config
        block = cache.kv_cache_groups[groups[0].kv_cache_group_id].kv_cache_spec.block_size
        blocks = cache.num_blocks * block // builder.kv_cache_spec.block_size  # attention may see smaller ones
        streams.ready(builder, blocks, self.device, processors[0].rows)
        check(runner, streams, theirs)
        _log.info("SIRA decodes: K = %d, alpha = %g", len(streams.contrast), streams.config.alpha)
        return result


def check(runner: Any, streams: Streams, builder: Any) -> None:
    """Run a short prompt with an image in it: the streams must differ where they must, and be equal where they must.

    Raises:
        UnsupportedModelError: they do not, so the texts would not be SIRA's.
    """
    run = functools.partial(_last, runner, streams, builder)
    with_image, text_only = run([(0, ROWS)]), run([(0, ROWS)], image=False)
    cut = run([(0, CUT), (CUT, ROWS - 1), (ROWS - 1, ROWS)])
    tolerance = {torch.float32: 1e-3, torch.float16: 2e-2}.get(runner.dtype, 5e-2)
    rounding = _apart(*text_only.chunk(2))
    found = {
        "both streams are the same": _apart(*with_image.chunk(2)) > max(1e-5, 3 * rounding),
        "the streams differ without an image": rounding <= tolerance,
        "a prompt in pieces gives something else": _apart(with_image, cut) <= tolerance,
        "its logits are not the contrast of both": _contrasted(runner, with_image, streams.config.alpha),
    }
    if failed := [what for what, holds in found.items() if not holds]:
        raise UnsupportedModelError(
            f"SIRA refuses to serve {type(runner.get_model()).__name__}: its two streams are not what they must be "
            f"({'; '.join(failed)}). Try --enforce-eager, or a version of vLLM that docs/vllm.md names"
        )


def _apart(left: Tensor, right: Tensor) -> float:
    """Return the distance of two vectors, as a share of the first one's length."""
    return float((left - right).norm() / left.norm())


@torch.inference_mode()
def _contrasted(runner: Any, hidden: Tensor, alpha: float) -> bool:
    """Check the logits of a row `[2 d]` against the paper's Eq. 4; a cut-off may have ruled some out."""
    model, hidden = runner.get_model(), hidden.to(runner.dtype)[None]
    full, contrast = hidden.chunk(2, dim=-1)
    plain = super(TwoStreamModel, model).compute_logits
    found, z_full, z_cf = model.compute_logits(hidden), plain(full.contiguous()), plain(contrast.contiguous())
    if found is None:  # another process has them
        return True
    expected = (1 + alpha) * z_full.float() - alpha * z_cf.float()
    kept = found.isfinite() & expected.isfinite()
    return _apart(expected[kept], found[kept]) <= 1e-3


@torch.inference_mode()
def _last(runner: Any, streams: Streams, builder: Any, pieces: list[tuple[int, int]], image: bool = True) -> Tensor:
    """Run a prompt of `ROWS` random tokens in the first blocks of the cache: its last row in both streams, `[2 d]`."""
    size, model = builder.kv_cache_spec.block_size, runner.get_model()
    axes = (
        3 if runner.uses_mrope else int(getattr(runner, "uses_xdrope_dim", 0) or 0)
    )  # positions of a row; 0: a number
    ids = torch.arange(ROWS).mul(7919).add(13).remainder(runner.model_config.get_vocab_size()).to(runner.device)
    table = torch.arange(1, 2 + (ROWS - 1) // size, dtype=torch.int32, device=runner.device)  # block 0 is no one's
    mask = torch.zeros(ROWS, dtype=torch.bool, device=runner.device)
    mask[IMAGE] = image
    last = torch.empty(0)
    for start, end in pieces:
        place = torch.arange(start, end, device=runner.device)
        starts = torch.tensor([0, end - start], dtype=torch.int32)
        common = CommonAttentionMetadata(
            query_start_loc=starts.to(runner.device),
            query_start_loc_cpu=starts,
            seq_lens=torch.tensor([end], dtype=torch.int32, device=runner.device),
            num_reqs=1,
            num_actual_tokens=end - start,
            max_query_len=end - start,
            max_seq_len=end,
            block_table_tensor=table[None],
            slot_mapping=table[place // size].long() * size + place % size,
        )
        metadata = builder.build(0, common)
        if missing := [name for name in FIELDS if not hasattr(metadata, name)]:
            raise UnsupportedModelError(
                f"SIRA cannot use the attention backend of {type(metadata).__name__} (it has no "
                f"{', '.join(missing)}): choose another, such as --attention-backend FLASH_ATTN"
            )
        names = runner.compilation_config.static_forward_context
        layers, slots = dict.fromkeys(names, metadata), dict.fromkeys(names, common.slot_mapping)
        embedded = model.embed_input_ids(ids[start:end])
        streams.image = mask[start:end]
        positions = place.expand(axes, -1) if axes else place
        with set_forward_context(layers, runner.vllm_config, num_tokens=end - start, slot_mapping=slots):
            last = model(None, positions, None, embedded)[-1]
    return last.float()


class Worker(_TwoStreamWorker, GPUWorker):  # type: ignore[misc]
    """On GPUs."""


def __getattr__(name: str) -> Any:
    """Make the class of CPUs, whose module only builds of vLLM for CPUs can import."""
    if name != "CPUWorker":
        raise AttributeError(name)
    from vllm.v1.worker.cpu_worker import CPUWorker

    return type(name, (_TwoStreamWorker, CPUWorker), {"__module__": __name__})
