"""Two streams in vLLM's own model class.

The text model sees one longer batch, `[N rows of the full stream | M text rows of the contrast stream]`, and needs to
know nothing of it, so vLLM compiles it as ever. Only attention tells the streams apart, inside one operator that the
compiler does not look into:

- below b the streams are equal (paper, Section 3.1): a row's result is that of its full row;
- from b on the contrast stream has attention of its own, with a cache of its own in the same blocks. It holds text rows
  only: the j-th text row of a request lies in the request's slot j. So "text only" is ordinary causal attention over
  the rows that lie there, without a mask.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.models.utils import extract_layer_index
from vllm.utils.torch_utils import direct_register_custom_op
from vllm.v1.attention.backend import AttentionType, CommonAttentionMetadata

from sira_cli.core.config import SiraConfig
from sira_cli.core.rules import contrast, plausible
from sira_cli.errors import UnsupportedModelError
from sira_cli.vllm.plugin import CACHES
from sira_cli.vllm.requests import Row

Metadata = Any  # of one of vLLM's attention backends
FIELDS = ("num_actual_tokens", "query_start_loc", "seq_lens", "block_table", "slot_mapping")  # that are read here


class Streams:
    """Which rows of the running forward belong to which stream, and where the contrast stream's keys lie.

    Attributes:
        config: K, alpha and beta.
        budget: rows of both streams that the model has buffers for.
        full: layer name of late attention in the full stream.
        contrast: layer names of late attention in the contrast stream.
        builder: makes the metadata of the contrast stream's attention; None until the cache is there.
        requests: the rows whose requests ask for something of their own.
        image: which rows of the next forward are image tokens `[N]`.
        n: rows of the full stream.
        rows: the text rows among them `[M]`, which the contrast stream also has; where a CUDA graph is replayed, more
            follow, so that both streams have `N` rows.
        live: how many of these are text rows.
    """

    def __init__(self, config: SiraConfig, budget: int, full: str, contrast: list[str], graphs: bool = False) -> None:
        self.config, self.budget, self.full, self.contrast, self.graphs = config, budget, full, contrast, graphs
        self.builder: Any = None
        self.requests: dict[int, Row] = {}
        self.image: Tensor | None = None
        self.n = 0
        self.rows, self.live = torch.zeros(0, dtype=torch.long), 0
        self._buffers: dict[str, Tensor] = {}
        self._text_rows = torch.zeros(0, dtype=torch.long)  # of each running request, at its first block

    def ready(self, builder: Any, blocks: int, device: torch.device, requests: dict[int, Row]) -> None:
        """Take what is known once vLLM has made its cache."""
        self.builder, self.requests = builder, requests
        self._text_rows = torch.zeros(blocks, dtype=torch.long, device=device)

    def begin(self, n: int, device: torch.device) -> None:
        """Find the text rows of a forward of `n` rows, and tell vLLM where the contrast stream attends to."""
        context = get_forward_context()
        image, self.image, self.n = self.image, None, n
        if not context.attn_metadata or self.builder is None:  # vLLM measures memory, or compiles
            several = min(n, self.budget - n) if not context.attn_metadata else 0
            self.rows, self.live = torch.arange(several, device=device), several
            return
        metadata = context.attn_metadata[self.full]
        live = metadata.num_actual_tokens
        text = torch.ones(live, dtype=torch.bool, device=device) if image is None else ~image[:live].to(device)
        self.rows = text.nonzero().squeeze(1)  # [M]
        self.live = len(self.rows)
        if self.live:
            contrast = self._metadata(metadata, text)
            for name in self.contrast:
                context.attn_metadata[name] = contrast
                context.slot_mapping[name] = contrast.slot_mapping
        if self.replays(context):
            self.rows = nn.functional.pad(self.rows, (0, n - self.live))

    def replays(self, context: Any) -> bool:
        """Return whether the running forward replays a CUDA graph, which was captured with 2 N rows."""
        return self.graphs and context.cudagraph_runtime_mode.name != "NONE"

    def pack(self, name: str, rows: Tensor, dim: int = 0) -> Tensor:
        """Return the rows of both streams, N + M along a dimension, of the full stream's N rows."""
        both = torch.cat([rows, rows.index_select(dim, self.rows)], dim)
        if not self.graphs:
            return both
        if name not in self._buffers:  # a graph reads its inputs where they lay when it was captured
            shape = list(both.shape)
            shape[dim] = self.budget
            self._buffers[name] = both.new_zeros(shape)
        return self._buffers[name].narrow(dim, 0, both.shape[dim]).copy_(both)

    def text_so_far(self, first: Tensor, fresh: Tensor) -> Tensor:
        """Return how many text rows requests have in the cache: their first blocks, and which have none, `[R]`."""
        return self._text_rows[first].masked_fill(fresh, 0)

    def _metadata(self, full: Metadata, text: Tensor) -> Metadata:
        """Return the contrast stream's metadata: for R requests, their text rows so far and in this forward."""
        starts = full.query_start_loc.long()  # [R + 1]
        before = torch.cat([starts.new_zeros(1), text.long().cumsum(0)])[starts]  # [R + 1]: text rows before a request
        counts = before.diff()  # [R]: text rows in this forward
        first = full.block_table[:, 0].long()  # [R]: names the request as long as it runs
        fresh = full.seq_lens.long() == starts.diff()  # [R]: nothing is cached: it is new, or was preempted
        so_far = self.text_so_far(first, fresh)  # [R]
        total = so_far + counts  # [R]
        self._text_rows[first] = total
        having = counts.nonzero().squeeze(1)  # requests with text rows in this forward; backends expect no others
        table, counts, so_far, total = full.block_table[having], counts[having], so_far[having], total[having]
        ends = counts.cumsum(0)  # [R]
        request = torch.repeat_interleave(torch.arange(len(counts), device=text.device), counts)  # [M]
        place = so_far[request] + torch.arange(len(request), device=text.device) - (ends - counts)[request]  # [M]
        size = self.builder.kv_cache_spec.block_size
        slots = table[request, place // size].long() * size + place % size  # [M]
        starts = torch.cat([ends.new_zeros(1), ends]).to(full.query_start_loc.dtype)
        common = CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts.to("cpu", torch.int32),
            seq_lens=total.to(full.seq_lens.dtype),
            num_reqs=len(counts),
            num_actual_tokens=len(request),
            max_query_len=int(counts.max()),
            max_seq_len=int(total.max()),
            block_table_tensor=table,
            slot_mapping=slots.to(full.slot_mapping.dtype),
        )
        return self.builder.build(0, common)


class TwoStreams(nn.Module):
    """Attention of one layer in both streams, in the place of the layer's own."""

    def __init__(self, streams: Streams, full: Any, contrast: Any | None) -> None:
        super().__init__()
        self.streams, self.full, self.contrast = streams, full, contrast
        self.layer_name, self.width = full.layer_name, full.num_heads * full.head_size_v
        full.__dict__["sira"] = self  # where the operator finds it; not one of its submodules

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend: rows `[N + M, ...]` of both streams -> `[N + M, heads * size]`."""
        output = query.new_empty(query.shape[0], self.width)
        torch.ops.vllm.sira_two_streams(query, key, value, output, self.layer_name)
        return output

    def attend(self, query: Tensor, key: Tensor, value: Tensor, output: Tensor) -> None:
        """Do what `forward` says, where the compiler does not look."""
        n, rows = self.streams.n, self.streams.rows[: self.streams.live]
        both = slice(n, n + len(rows))
        output[:n] = self.full(query[:n], key[:n], value[:n])
        if self.contrast is None:
            output[both] = output[rows]
        elif len(rows):
            output[both] = self.contrast(query[both], key[both], value[both])


def _two_streams(query: Tensor, key: Tensor, value: Tensor, output: Tensor, layer_name: str) -> None:
    get_forward_context().no_compile_layers[layer_name].__dict__["sira"].attend(query, key, value, output)


def _two_streams_fake(query: Tensor, key: Tensor, value: Tensor, output: Tensor, layer_name: str) -> None:
    return None


direct_register_custom_op("sira_two_streams", _two_streams, mutates_args=["output"], fake_impl=_two_streams_fake)


class TwoStreamModel:
    """Mixed into vLLM's class of a model by `install`."""

    sira: Streams

    def embed_input_ids(
        self, input_ids: Tensor, multimodal_embeddings: Any = None, *, is_multimodal: Any = None, **more: Any
    ) -> Tensor:
        """Do what the model's own does, and keep which rows are image tokens."""
        self.sira.image = None if is_multimodal is None else is_multimodal.clone()
        embed: Any = super().embed_input_ids  # type: ignore[misc]
        embedded: Tensor = embed(input_ids, multimodal_embeddings, is_multimodal=is_multimodal, **more)
        return embedded

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
        **more: Any,
    ) -> Tensor:
        """Run both streams: positions `[N]` or `[3, N]` -> the last hidden states of both, `[N, 2 d]`.

        Raises:
            UnsupportedModelError: vLLM gives the model something else, of which the second stream's rows are not known.
        """
        if more:
            raise UnsupportedModelError(f"SIRA cannot decode exactly with a model that takes {', '.join(more)} in vLLM")
        if inputs_embeds is None:
            assert input_ids is not None
            inputs_embeds = self.embed_input_ids(input_ids)
        n, streams = inputs_embeds.shape[0], self.sira
        streams.begin(n, inputs_embeds.device)
        packed = streams.pack("embeddings", inputs_embeds)  # [N + M, d]
        where = streams.pack("positions", positions, -1)
        ids = None if input_ids is None else streams.pack("ids", input_ids)
        hidden: Tensor = super().forward(ids, where, None, packed)  # type: ignore[misc]  # [N + M, d]
        contrast = torch.zeros_like(hidden[:n])  # image rows have none, and no token is decoded from them
        contrast[streams.rows[: streams.live]] = hidden[n : n + streams.live]
        return torch.cat([hidden[:n], contrast], dim=-1)

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """Contrast the logits of the rows to be sampled, one per request in vLLM's order: `[R, 2 d]` -> `[R, V]`."""
        compute: Any = super().compute_logits  # type: ignore[misc]
        z = compute(torch.cat(hidden_states.chunk(2, dim=-1)))  # [2 R, V]: the head's weights are read once
        if z is None:  # another process has them
            return None
        z_full, z_cf = z.float().chunk(2)  # [R, V]
        config = self.sira.config
        alpha: Any = torch.full((len(z_full), 1), float(config.alpha))
        whole = torch.zeros(len(z_full), 1, dtype=torch.bool)
        for index, row in self.sira.requests.items():
            if index < len(alpha):  # vLLM warms up with fewer
                alpha[index], whole[index] = config.alpha if row.alpha is None else row.alpha, row.whole
        alpha = alpha.to(z_full.device)  # [R, 1]
        z_cd = contrast(z_full, z_cf, alpha)
        if config.beta is not None:
            z_cd = torch.where(whole.to(z_cd.device), z_cd, plausible(z_cd, z_full, config.beta))
        decoded: Tensor = torch.where(alpha == 0, z_full, z_cd)
        return decoded


def install(model: nn.Module, vllm_config: Any, config: SiraConfig) -> Streams:
    """Give a loaded model two streams, whatever its class is, by the attention that it has.

    Raises:
        UnsupportedModelError: a layer cannot run two streams exactly.
        SettingsError: K is out of range.
    """
    layers: dict[str, Any] = vllm_config.compilation_config.static_forward_context
    own = {n: a for n, a in layers.items() if getattr(a, "attn_type", AttentionType.DECODER) == AttentionType.DECODER}
    holders: dict[str, tuple[nn.Module, str]] = {}
    for module in model.modules():
        for key, child in module._modules.items():
            if child is not None and type(child) is Attention:
                holders[str(child.layer_name)] = module, key
    caching = {name: layer for name, layer in own.items() if hasattr(layer, "get_kv_cache_spec")}
    names = sorted(caching, key=extract_layer_index)
    late = set(names[len(names) - config.layers_after_fork(len(names)) :]) if len(names) > 1 else set()
    if refused := "; ".join(_unfit(names, caching, holders, late)):
        raise UnsupportedModelError(
            f"SIRA cannot decode {type(model).__name__} exactly: {refused}. "
            "Run it in process (`sira caption`), or take another model"
        )
    budget = vllm_config.scheduler_config.max_num_batched_tokens
    graphs = vllm_config.compilation_config.cudagraph_mode.name == "PIECEWISE"
    streams = Streams(config, budget, min(late), sorted(map(_named, late)), graphs)
    for name in names:
        full, own_contrast = caching[name], None
        if name in late:
            own_contrast = copy.copy(full)
            own_contrast.impl = copy.copy(full.impl)
            own_contrast.layer_name, own_contrast.kv_cache = _named(name), torch.tensor([])
            layers[own_contrast.layer_name] = own_contrast  # so vLLM makes a cache for it
        holder, key = holders[name]
        holder._modules[key] = TwoStreams(streams, full, own_contrast)
    model.__class__ = type(f"Sira{type(model).__name__}", (TwoStreamModel, type(model)), {})
    model.__dict__["sira"] = streams
    return streams


def _named(name: str) -> str:
    """Return the contrast stream's name of a layer."""
    return f"{name}_contrast"


def _unfit(names: list[str], layers: dict[str, Any], holders: dict[str, Any], late: set[str]) -> list[str]:
    """Say which layers cannot run two streams, by their first one of each kind."""
    found: dict[str, str] = {}
    for name in names:
        layer = layers[name]
        if type(layer) is not Attention:
            found.setdefault(f"is {type(layer).__name__}, not attention to all keys", name)
        elif layer.kv_sharing_target_layer_name is not None:
            found.setdefault("shares the keys of another layer", name)
        elif layer.sliding_window is not None and name in late:
            found.setdefault("has a sliding window after the fork", name)
        elif getattr(layer.impl, "alibi_slopes", None) is not None:
            found.setdefault("has biases of positions (ALiBi)", name)
        elif layer.kv_cache_dtype not in CACHES:
            found.setdefault(f"has a cache in {layer.kv_cache_dtype}", name)
        elif name not in holders:
            found.setdefault("is called in a way that is not known", name)
    if len(names) < 2 or len({extract_layer_index(name) for name in names}) < len(names):
        found.setdefault("has no layers, or layers with several attentions", "the model")
    return [f"{name} {what}" for what, name in found.items()]
