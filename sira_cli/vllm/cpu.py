"""SIRA in vLLM's builds for CPUs. Those without Triton have model runner V1, which is told of a step here."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from vllm.v1.worker.cpu_worker import CPUWorker as TheirCPUWorker

import sira_cli.vllm.loader  # noqa: F401  # so the load format is known
from sira_cli.vllm.check import check
from sira_cli.vllm.requests import RequestRowsV1, alpha_of
from sira_cli.vllm.step import image_tokens, plan
from sira_cli.vllm.streams import Streams


class CPUWorker(TheirCPUWorker):  # type: ignore[misc]  # vLLM is not installed where types are checked
    """Adds the contrast stream's metadata to those of runner V1."""

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        """Take the caches, and try both streams in them."""
        super().initialize_from_config(kv_cache_config)
        if self.use_v2_model_runner:  # where the model's state does it
            return
        runner = self.model_runner
        streams: Streams = runner.get_model().sira
        streams.ready(runner.kv_cache_config)
        check(runner.get_model(), streams)
        for processor in runner.input_batch.logitsprocs.all:
            if isinstance(processor, RequestRowsV1):
                processor.streams = streams
                runner.sampler.forward = functools.partial(processor.sample, runner.sampler.forward)
        runner._build_attention_metadata = functools.partial(_metadata, runner, runner._build_attention_metadata)


def _metadata(runner: Any, build: Any, *args: Any, **named: Any) -> Any:
    """Build the metadata of all layers: the runner's, and the contrast stream's with them."""
    found, more = build(*args, **named)
    streams: Streams = runner.get_model().sira
    batch = runner.input_batch
    count = named["num_reqs"]
    slots = None
    if named.get("num_scheduled_tokens") is not None:  # it is no warm-up
        slots = np.arange(count)
        for index, name in enumerate(batch.req_ids):
            request = runner.requests[name]
            image = image_tokens(feature.mm_position for feature in request.mm_features)
            streams.requests.put(index, image, alpha_of(request.sampling_params, streams.config.alpha))
    computed = batch.num_computed_tokens_cpu[:count]
    step = plan(
        runner.query_start_loc.np[: count + 1],
        computed,
        slots,
        streams.requests,
        computed < batch.num_prompt_tokens[:count],
        named.get("num_tokens_padded") or named["num_tokens"],
    )
    groups = range(len(runner.kv_cache_config.kv_cache_groups))
    tables = [batch.block_table[group].get_device_tensor(count) for group in groups]
    return found | streams.prepare(step, tables, slots, computed), more
