"""SIRA in vLLM's model runner V2: what the runner asks of a model's state."""

from __future__ import annotations

from typing import Any

from sira_cli.vllm.check import check
from sira_cli.vllm.requests import RequestRows, ScoringSampler, alpha_of
from sira_cli.vllm.step import image_tokens, plan, plan_graph
from sira_cli.vllm.streams import Streams


class TwoStreamState:
    """Mixed into the class of the model's state that vLLM would take."""

    model: Any

    @property
    def streams(self) -> Streams:
        """Those of the model."""
        found: Streams = self.model.sira
        return found

    def initialize_kv_cache(self, kv_cache_config: Any, block_tables: Any) -> None:
        """Take the caches, and try both streams in them."""
        super().initialize_kv_cache(kv_cache_config, block_tables)  # type: ignore[misc]
        caching = self.streams.vllm_config.cache_config.enable_prefix_caching
        self.streams.ready(kv_cache_config, block_tables.input_block_tables if caching else ())
        check(self.model, self.streams)

    def custom_sampler(self, sampler: Any) -> Any:
        """Let our processor of logits know the streams, and score what is sampled."""
        for processor in sampler.logits_processors:
            if isinstance(processor, RequestRows):
                processor.streams = self.streams
                sampler.sira = processor
                sampler.__class__ = type("SiraSampler", (ScoringSampler, type(sampler)), {})
        return super().custom_sampler(sampler)  # type: ignore[misc]

    def add_request(self, req_index: int, new_req_data: Any) -> None:
        """Keep which of the request's tokens are image tokens, and its alpha."""
        super().add_request(req_index, new_req_data)  # type: ignore[misc]
        image = image_tokens(feature.mm_position for feature in new_req_data.mm_features)
        alpha = alpha_of(new_req_data.sampling_params, self.streams.config.alpha)
        self.streams.requests.put(req_index, image, alpha, new_req_data.num_computed_tokens)

    def prepare_attn(
        self, batch: Any, mode: Any, block_tables: Any, *more: Any, for_capture: bool = False, **named: Any
    ) -> dict[str, Any]:
        """Return the metadata of all layers, those of the contrast stream among them."""
        whole: Any = super().prepare_attn  # type: ignore[misc]
        found: dict[str, Any] = whole(batch, mode, block_tables, *more, for_capture=for_capture, **named)
        computed = batch.num_computed_tokens_np
        prefilling = batch.is_prefilling_np
        slots = batch.idx_mapping_np if batch.prefill_len_np.any() else None  # vLLM warms up without prompts
        requests = self.streams.requests
        graph = for_capture or mode.name == "FULL"
        if graph:
            step = plan_graph(computed, slots, requests, batch.num_reqs_after_padding)
        else:
            starts = batch.query_start_loc_np[: batch.num_reqs + 1]
            step = plan(starts, computed, slots, requests, prefilling, batch.num_tokens_after_padding)
        return found | self.streams.prepare(step, block_tables, slots, computed, graph=graph, capture=for_capture)
