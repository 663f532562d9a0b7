"""Two streams in vLLM's own model class.

Below b the streams are equal (paper, Section 3.1), and layers run as ever. Layer b and all later ones see one longer
batch, `[N rows of the full stream | M text rows of the contrast stream]`. The text model gets embeddings of N rows and
positions of N + M, so the compiler knows both numbers, and vLLM compiles it as ever. What tells the streams apart
lies in two operators that the compiler does not look into:

- `sira_fork` adds the contrast stream's rows to what layer b takes;
- `sira_two_streams` is attention from b on. The contrast stream has a cache of its own in the same blocks. It holds
  text rows only: the j-th text row of a request lies in the request's slot j. So "text only" is ordinary causal
  attention over the rows that lie there, without a mask.
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
        most: rows that vLLM schedules at once.
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

    def __init__(self, config: SiraConfig, most: int, full: str, contrast: list[str], graphs: bool = False) -> None:
        self.config, self.most, self.full, self.contrast, self.graphs = config, most, full, contrast, graphs
        self.builder: Any = None
        self.requests: dict[int, Row] = {}
        self.image: Tensor | None = None
        self.n = 0
        self.rows, self.live = torch.zeros(0, dtype=torch.long), 0
        self._positions = torch.zeros(0)  # of both streams, where a graph reads them
        self._text_rows = torch.zeros(0, dtype=torch.long)  # of each running request, at its first block

    def ready(self, builder: Any, blocks: int, device: torch.device, requests: dict[int, Row]) -> None:
        """Take what is known once vLLM has made its cache."""
        self.builder, self.requests = builder, requests
        self._text_rows = torch.zeros(blocks, dtype=torch.long, device=device)

    def begin(self, n: int, device: torch.device) -> int:
        """Find the text rows of a forward of `n` rows, and tell vLLM where the contrast stream attends to.

        Returns:
            How many of the rows to run: vLLM measures memory, and compiles, with more than it schedules.
        """
        context = get_forward_context()
        image, self.image = self.image, None
        if not context.attn_metadata or self.builder is None:
            self.n = self.live = min(n, self.most)
            self.rows = torch.arange(self.n, device=device)
            return self.n
        self.n = n
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
        return n

    def replays(self, context: Any) -> bool:
        """Return whether the running forward replays a CUDA graph, which was captured with 2 N rows."""
        return self.graphs and context.cudagraph_runtime_mode.name != "NONE"

    def positions(self, full: Tensor) -> Tensor:
        """Return the positions of both streams, `[..., N + M]`, of the full stream's `[..., N]`."""
        both = torch.cat([full, full[..., self.rows]], dim=-1)
        if not self.graphs:
            return both
        if not len(self._positions):  # a graph reads its inputs where they lay when it was captured
            self._positions = both.new_zeros(*both.shape[:-1], 2 * self.most)
        return self._positions[..., : both.shape[-1]].copy_(both)

    def fork(self, full: Tensor, both: Tensor) -> None:
        """Put rows `[N, ...]` of the full stream, and those of the contrast stream after them, into `[N + M, ...]`."""
        both[: self.n] = full
        torch.index_select(full, 0, self.rows, out=both[self.n :])

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
    """Attention of one late layer in both streams, in the place of the layer's own."""

    def __init__(self, streams: Streams, full: Any, contrast: Any) -> None:
        super().__init__()
        self.streams, self.full, self.contrast = streams, full, contrast
        self.layer_name, self.width = full.layer_name, full.num_heads * full.head_size_v
        full.__dict__["sira"] = self  # where the operators find it; not one of its submodules

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend: rows `[N + M, ...]` of both streams -> `[N + M, heads * size]`."""
        output = query.new_empty(query.shape[0], self.width)
        torch.ops.vllm.sira_two_streams(query, key, value, output, self.layer_name)
        return output

    def attend(self, query: Tensor, key: Tensor, value: Tensor, output: Tensor) -> None:
        """Do what `forward` says, where the compiler does not look."""
        n, m = self.streams.n, self.streams.live
        output[:n] = self.full(query[:n], key[:n], value[:n])
        if m:
            output[n : n + m] = self.contrast(*(rows[n : n + m] for rows in (query, key, value)))


def _layer(name: str) -> TwoStreams:
    found: TwoStreams = get_forward_context().no_compile_layers[name].__dict__["sira"]
    return found


def _two_streams(query: Tensor, key: Tensor, value: Tensor, output: Tensor, layer_name: str) -> None:
    _layer(layer_name).attend(query, key, value, output)


def _fork(full: Tensor, both: Tensor, layer_name: str) -> None:
    _layer(layer_name).streams.fork(full, both)


for _name, _operator, _written in (("two_streams", _two_streams, "output"), ("fork", _fork, "both")):
    direct_register_custom_op(f"sira_{_name}", _operator, mutates_args=[_written], fake_impl=lambda *rows: None)


class Layer:
    """Mixed into the classes of the layers up to b: positions are whole numbers in `[..., N + M]`, all else is rows."""

    fork: str  # the name of b's attention; empty: a layer below b

    def forward(self, *args: Any, **named: Any) -> Any:
        """Give a layer below b the positions of the full stream, and layer b the rows of both streams."""
        tensors = [value for value in (*args, *named.values()) if isinstance(value, Tensor)]
        n = next(value.shape[0] for value in tensors if value.is_floating_point())
        total = next(value.shape[-1] for value in tensors if not value.is_floating_point())

        def fitting(value: Any) -> Any:
            if not isinstance(value, Tensor) or value.is_floating_point() != bool(self.fork):
                return value
            if not self.fork:
                return value[..., :n]
            both = value.new_empty(total, *value.shape[1:])
            torch.ops.vllm.sira_fork(value, both, self.fork)
            return both

        run: Any = super().forward  # type: ignore[misc]
        return run(*map(fitting, args), **{name: fitting(value) for name, value in named.items()})


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
        input_ids: Any,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Any = None,
        **more: Any,
    ) -> Tensor:
        """Run both streams: positions `[N]` or `[3, N]` -> the last hidden states of both, `[N, 2 d]`.

        Raises:
            UnsupportedModelError: vLLM gives the model something else, of which the second stream's rows are not known.
        """
        if more:
            raise UnsupportedModelError(f"SIRA cannot decode exactly with a model that takes {', '.join(more)} in vLLM")
        if inputs_embeds is None:
            inputs_embeds = self.embed_input_ids(input_ids)
        rows, streams = inputs_embeds.shape[0], self.sira
        n = streams.begin(rows, inputs_embeds.device)
        ids = None if input_ids is None else input_ids[:n]
        both = streams.positions(positions[..., :n])
        hidden: Tensor = super().forward(ids, both, None, inputs_embeds[:n])  # type: ignore[misc]  # [N + M, d]
        width = hidden.shape[-1]
        found = hidden.new_zeros(rows, 2 * width)  # image rows have no contrast: no token is decoded from them
        found[:n, :width] = hidden[:n]
        found[streams.rows[: streams.live], width:] = hidden[n : n + streams.live]
        return found

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
    places: dict[str, tuple[nn.Module, nn.Module, str]] = {}  # of attention: its layer, its parent, its name there
    for stack in model.modules():
        for layer in stack if isinstance(stack, nn.ModuleList) else ():
            for module in layer.modules():
                for key, child in module._modules.items():
                    if child is not None and type(child) is Attention:
                        places[str(child.layer_name)] = layer, module, key
    caching = {name: layer for name, layer in own.items() if hasattr(layer, "get_kv_cache_spec")}
    names = sorted(caching, key=extract_layer_index)
    late = names[len(names) - config.layers_after_fork(len(names)) :] if len(names) > 1 else []
    if refused := "; ".join(_unfit(model, names, caching, places, late)):
        raise UnsupportedModelError(
            f"SIRA cannot decode {type(model).__name__} exactly: {refused}. "
            "Run it in process (`sira caption`), or take another model"
        )
    graphs = vllm_config.compilation_config.cudagraph_mode.name == "PIECEWISE"
    most = vllm_config.scheduler_config.max_num_scheduled_tokens
    streams = Streams(config, most, late[0], [*map(_named, late)], graphs)
    for name in names:
        layer, module, key = places[name]
        if name in late:
            full = caching[name]
            full.use_direct_call = True  # an operator of ours is around it already
            own_contrast = copy.copy(full)
            own_contrast.impl = copy.copy(full.impl)
            own_contrast.layer_name, own_contrast.kv_cache = _named(name), torch.tensor([])
            layers[own_contrast.layer_name] = own_contrast  # so vLLM makes a cache for it
            module._modules[key] = TwoStreams(streams, full, own_contrast)
        if name not in late[1:]:
            layer.__class__ = type(f"Sira{type(layer).__name__}", (Layer, type(layer)), {})
            layer.__dict__["fork"] = name if name == late[0] else ""
    model.__class__ = type(f"Sira{type(model).__name__}", (TwoStreamModel, type(model)), {})
    model.__dict__["sira"] = streams
    return streams


def _named(name: str) -> str:
    """Return the contrast stream's name of a layer."""
    return f"{name}_contrast"


def _unfit(model: Any, names: list[str], layers: dict[str, Any], places: Any, late: list[str]) -> list[str]:
    """Say which layers cannot run two streams, by their first one of each kind."""
    found: dict[str, str] = {}
    if (levels := getattr(model, "deepstack_num_level", 0)) > len(names) - len(late):
        found[f"adds features of pictures in {levels} layers: k must be at most {len(names) - levels}"] = "the model"
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
        elif name not in places:
            found.setdefault("is called in a way that is not known", name)
    if len(names) < 2 or len({extract_layer_index(name) for name in names}) < len(names):
        found.setdefault("has no layers, or layers with several attentions", "the model")
    return [f"{name} {what}" for what, name in found.items()]
