"""Two streams in vLLM's own model class.

Below b the streams are equal (paper, Section 3.1), and layers run as ever. Layer b and all later ones see one longer
batch, `[N rows of the full stream | M text rows of the contrast stream]`. The text model gets embeddings of N rows and
positions of N + M, so the compiler knows both numbers, and vLLM compiles it as ever. What tells the streams apart
lies in operators that the compiler does not look into: `sira_fork` adds the contrast stream's rows to what layer b
takes, and late layers run by `layers.Kind`s. The contrast stream has caches of its own in the same blocks, which hold
text rows only.

Which rows these are is known on the host before the forward (`step.plan`). What the device reads lies in buffers that
do not move, so a decoding step can be a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from vllm.forward_context import get_forward_context
from vllm.model_executor.models.utils import extract_layer_index
from vllm.utils.torch_utils import async_tensor_h2d, direct_register_custom_op
from vllm.v1.attention.backend import AttentionType
from vllm.v1.kv_cache_interface import MambaSpec
from vllm.v1.worker.gpu.attn_utils import build_attn_metadata, init_attn_backend

from sira_cli.core.config import SiraConfig
from sira_cli.core.rules import contrast
from sira_cli.errors import UnsupportedModelError
from sira_cli.vllm.kinds import kind_of
from sira_cli.vllm.layers import joined
from sira_cli.vllm.prefix import own_table
from sira_cli.vllm.recurrent import one_row_each
from sira_cli.vllm.step import Numbers, Requests, Step

NOWHERE = -1  # a slot of the cache: nothing is written


class Streams:
    """Which rows of the running forward belong to which stream, and where the contrast stream's keys lie.

    Attributes:
        config: K, alpha and beta.
        contrast: names of the late layers in the contrast stream.
        most: rows that vLLM schedules at once.
        requests: the running ones, by vLLM's slots.
        n: rows of the full stream in this forward, N.
        rows: which of them the contrast stream also has `[M]`, or with padding `[N]`.
        live: M.
        alpha: of each request in the batch, `[R]` on the device; None: there are no requests, vLLM warms up.
        z: the newest logits of both streams, full and contrast, `[R, V]` each; None: nobody asks for them.
        keeps: whether anybody does: a cut-off, or a request from now on.
        copies: which blocks to copy, and to which ones, in each cache of the contrast stream: `[C]` and `[C]`.
    """

    def __init__(self, config: SiraConfig, contrast: list[str], vllm_config: Any, device: Any) -> None:
        self.config = config
        self.contrast = contrast
        self.vllm_config = vllm_config
        self.device = device
        scheduler = vllm_config.scheduler_config
        self.most: int = scheduler.max_num_scheduled_tokens
        self.requests = Requests(scheduler.max_num_seqs)
        self.n = 0
        self.live = 0
        self.rows = torch.zeros(0, dtype=torch.int64)
        self.alpha: Tensor | None = None
        self.z: tuple[Tensor, Tensor] | None = None
        self.keeps = config.beta is not None
        requests: int = scheduler.max_num_seqs
        self._row_buffer = torch.zeros(self.most, dtype=torch.int64, device=device)
        self._starts = torch.zeros(requests + 1, dtype=torch.int32, device=device)
        self._lengths = torch.zeros(requests, dtype=torch.int32, device=device)
        self._positions: Tensor | None = None  # [..., 2 * most], when it is known how many axes there are
        self.groups: list[list[Any]] = []  # of the contrast stream's layers, of each cache group
        self.caches: Any = None
        self._slots = torch.zeros(0)  # [cache groups, most]
        self._tables: list[Tensor] = []  # of each cache group; none: no prefix caching
        self.copies: dict[str, tuple[Tensor, Tensor]] = {}
        self._mappings: dict[str, Tensor] = {}  # of each layer in the contrast stream
        self._layers: dict[str, Any] = vllm_config.compilation_config.static_forward_context

    def ready(self, caches: Any, tables: Iterable[Tensor] = ()) -> None:
        """Take the caches, once they are there.

        Args:
            caches: vLLM's `KVCacheConfig`.
            tables: block tables of a batch, of each cache group, if there is prefix caching.
        """
        names = set(self.contrast)
        # The builders of these groups are our own: some keep buffers of what they built last.
        self.groups, _, _ = init_attn_backend(caches, self.vllm_config, self.device, active_layer_names=names)
        self.caches = caches
        shape = (len(caches.kv_cache_groups), self.most)
        self._slots = torch.full(shape, NOWHERE, dtype=torch.int64, device=self.device)
        self._tables = [torch.zeros_like(table) for table in tables]

    def prepare(
        self,
        step: Step,
        tables: Any,
        slots: Numbers | None,
        computed: Numbers,
        *,
        graph: bool = False,
        capture: bool = False,
    ) -> dict[str, Any]:
        """Take the next forward, and return the contrast stream's metadata by the names of its layers.

        Args:
            step: the text rows.
            tables: each cache group's block tables of the batch `[>= R, blocks]`.
            slots: of each request in the batch `[R]`; None: vLLM only warms up.
            computed: how many tokens of each are in the cache `[R]`.
            graph: whether the forward is a CUDA graph as a whole.
            capture: whether it is captured now.
        """
        self.live = 0
        self.alpha = None
        self._mappings = {}
        self.copies = {}
        if len(step.rows) > self.most:  # vLLM warms up with more rows than it schedules
            return {}
        if slots is not None:
            self.alpha = async_tensor_h2d(self.requests.alpha[slots], device=self.device)
        async_tensor_h2d(step.rows, out=self._row_buffer[: len(step.rows)])
        tables = list(tables)
        for number in range(len(self._tables)):
            tables[number] = self._own_table(number, tables[number], slots, computed)
        if graph or not step.live:  # what to copy is there, and no operator will do it
            for name in self.copies:
                self.copy(name)
            self.copies = {}
        if not step.live:
            return {}
        self.live = step.live
        request = async_tensor_h2d(step.request, device=self.device)
        place = async_tensor_h2d(step.place, device=self.device)
        for number, groups in enumerate(self.groups):
            if not groups:
                continue
            size = self.caches.kv_cache_groups[number].kv_cache_spec.block_size
            slot = self._slots[number, : step.live]
            slot.copy_(tables[number][request, place // size].long() * size + place % size)
            slot.masked_fill_(place < 0, NOWHERE)
            if step.having is not None:
                tables[number] = tables[number][async_tensor_h2d(step.having, device=self.device)]
            if isinstance(self.caches.kv_cache_groups[number].kv_cache_spec, MambaSpec):
                twins = [self._layers[name] for group in groups for name in group.layer_names]
                tables[number] = one_row_each(tables[number], step, twins)
            for group in groups:
                self._mappings.update(dict.fromkeys(group.layer_names, slot))
        return self._metadata(step, tables, capture=capture)

    def _own_table(self, number: int, table: Tensor, slots: Numbers | None, computed: Numbers) -> Tensor:
        """Return where the contrast stream's rows lie in a cache group, and note what to copy (see `prefix`)."""
        own = self._tables[number][: len(table), : table.shape[1]]
        own.copy_(table)
        if slots is None or not self.requests.shared[slots].any():
            return own
        shared = self.requests.shared[slots]
        first = self.requests.first[slots]
        size = self.caches.kv_cache_groups[number].kv_cache_spec.block_size
        whole = async_tensor_h2d(first // size, device=self.device)
        skipped = async_tensor_h2d(shared // size - first // size, device=self.device)
        own[: len(slots)] = own_table(table[: len(slots)], whole, skipped)
        begins = (computed == shared) & (shared > 0)
        cut = np.flatnonzero(begins & (first % size > 0))
        if len(cut):
            request = async_tensor_h2d(cut, device=self.device)
            block = whole[request]
            blocks = table[request, block], own[request, block]
            for group in self.groups[number]:
                self.copies.update(dict.fromkeys(group.layer_names, blocks))
        return own

    def copy(self, name: str) -> None:
        """Do what `copies` says in the cache of a layer."""
        source, target = self.copies[name]
        cache = self._layers[name].kv_cache.unflatten(0, (self.caches.num_blocks, -1))
        cache[target] = cache[source]

    def _metadata(self, step: Step, tables: list[Tensor], *, capture: bool) -> dict[str, Any]:
        count = len(step.lengths)
        starts = step.starts.astype(np.int32)
        lengths = step.lengths.astype(np.int32)
        longest = int(lengths.max())
        if capture:  # so that the graph holds at any length
            longest = self.vllm_config.model_config.max_model_len
        found: dict[str, Any] = build_attn_metadata(
            attn_groups=self.groups,
            num_reqs=count,
            num_tokens=step.live,
            query_start_loc_gpu=async_tensor_h2d(starts, out=self._starts[: count + 1]),
            query_start_loc_cpu=torch.from_numpy(starts),
            max_query_len=int(np.diff(starts).max()),
            seq_lens=async_tensor_h2d(lengths, out=self._lengths[:count]),
            max_seq_len=longest,
            block_tables=[table[:count] for table in tables],
            slot_mappings=self._slots[:, : step.live],
            kv_cache_config=self.caches,
            seq_lens_cpu_upper_bound=torch.from_numpy(lengths),
            is_prefilling=torch.from_numpy(step.prefilling),
            for_cudagraph_capture=capture,
        )
        return found

    def begin(self, n: int) -> int:
        """Begin a forward of `n` rows.

        Returns:
            How many of the rows to run: vLLM measures memory, and compiles, with more than it schedules.
        """
        context = get_forward_context()
        if not context.attn_metadata:
            self.n = self.live = min(n, self.most)
            self.rows = torch.arange(self.n, device=self.device)
            return self.n
        self.n = n
        context.slot_mapping.update(self._mappings)
        self.rows = self._row_buffer[: n if self.replays(context) else self.live]
        return n

    def replays(self, context: Any) -> bool:
        """Return whether graphs of parts of the running forward are replayed, captured with N rows in both streams."""
        return bool(context.cudagraph_runtime_mode.name == "PIECEWISE")

    def positions(self, full: Tensor) -> Tensor:
        """Return the positions of both streams, `[..., N + M]`, of the full stream's `[..., N]`."""
        if self._positions is None:  # a graph reads its inputs where they lay when it was captured
            # One row more, as vLLM has it: a slice must not be contiguous at times only, for the compiler.
            self._positions = full.new_zeros(*full.shape[:-1], 2 * self.most + 1)
        both = torch.cat([full, full[..., self.rows]], dim=-1)
        return self._positions[..., : both.shape[-1]].copy_(both)

    def fork(self, full: Tensor, both: Tensor) -> None:
        """Put rows `[N, ...]` of the full stream, and those of the contrast stream after them, into `[N + M, ...]`."""
        both[: self.n] = full
        torch.index_select(full, 0, self.rows, out=both[self.n :])


def _fork(full: Tensor, both: Tensor, layer_name: str) -> None:
    joined(layer_name).streams.fork(full, both)


direct_register_custom_op("sira_fork", _fork, mutates_args=["both"], fake_impl=lambda *rows: None)


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
            embed: Any = self.embed_input_ids  # type: ignore[attr-defined]
            inputs_embeds = embed(input_ids)
        count = inputs_embeds.shape[0]
        streams = self.sira
        n = streams.begin(count)
        ids = None if input_ids is None else input_ids[:n]
        both = streams.positions(positions[..., :n])
        hidden: Tensor = super().forward(ids, both, None, inputs_embeds[:n])  # type: ignore[misc]  # [N + M, d]
        width = hidden.shape[-1]
        found = hidden.new_zeros(count, 2 * width)  # image rows have no contrast: no token is decoded from them
        found[:n, :width] = hidden[:n]
        found[streams.rows, width:] = hidden[n:]
        return found

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """Contrast the logits of the rows to be sampled, one per request in vLLM's order: `[R, 2 d]` -> `[R, V]`."""
        compute: Any = super().compute_logits  # type: ignore[misc]
        z = compute(torch.cat(hidden_states.chunk(2, dim=-1)))  # [2 R, V]: the head's weights are read once
        if z is None:  # another process has them
            return None
        z_full, z_cf = z.float().chunk(2)  # [R, V]
        streams = self.sira
        streams.z = (z_full, z_cf) if streams.keeps else None
        alpha: Any = streams.alpha
        if alpha is None:
            alpha = torch.full(z_full.shape[:1], float(streams.config.alpha), device=z.device)
        alpha = alpha[:, None]  # [R, 1]
        decoded: Tensor = torch.where(alpha == 0, z_full, contrast(z_full, z_cf, alpha))
        return decoded


def install(model: nn.Module, vllm_config: Any, config: SiraConfig) -> Streams:
    """Give a loaded model two streams, whatever its class is, by the layers that it has.

    Raises:
        UnsupportedModelError: a layer cannot run two streams exactly.
        SettingsError: K is out of range.
    """
    layers: dict[str, Any] = vllm_config.compilation_config.static_forward_context
    caching = {}
    for name, layer in layers.items():
        kind = getattr(layer, "attn_type", AttentionType.DECODER)
        if kind == AttentionType.DECODER and hasattr(layer, "get_kv_cache_spec"):
            caching[name] = layer
    places = _places(model, caching)
    names = sorted(caching, key=extract_layer_index)
    late = []
    if len(names) > 1:
        late = names[-config.layers_after_fork(len(names)) :]
    refused = "; ".join(_unfit(model, names, caching, places, late, vllm_config.model_config))
    if refused:
        raise UnsupportedModelError(
            f"SIRA cannot decode {type(model).__name__} exactly: {refused}. "
            "Run it in process (`sira caption`), or take another model"
        )
    device = next(model.parameters()).device
    streams = Streams(config, [f"{name}_contrast" for name in late], vllm_config, device)
    for name in names:
        layer, parent, key = places[name]
        if name in late:
            kind = kind_of(caching[name])
            assert kind is not None  # or it would be refused
            twin = kind.twin(caching[name], f"{name}_contrast")
            layers[f"{name}_contrast"] = twin  # so vLLM makes a cache for it
            kind.join(streams, caching[name], twin, parent, key)
        if name not in late[1:]:
            layer.__class__ = type(f"Sira{type(layer).__name__}", (Layer, type(layer)), {})
            layer.__dict__["fork"] = name if name == late[0] else ""
    model.__class__ = type(f"Sira{type(model).__name__}", (TwoStreamModel, type(model)), {})
    model.__dict__["sira"] = streams
    return streams


Place = tuple[nn.Module, nn.Module, str]


def _places(model: nn.Module, caching: dict[str, Any]) -> dict[str, Place]:
    """Return where each layer that keeps something is: its decoder layer, its parent, and its name there."""
    names = {id(layer): name for name, layer in caching.items()}
    places: dict[str, Place] = {}
    for stack in model.modules():
        for layer in stack if isinstance(stack, nn.ModuleList) else ():
            for module in layer.modules():
                for key, child in module._modules.items():
                    if id(child) in names:
                        places[names[id(child)]] = layer, module, key
    return places


def _unfit(
    model: Any,
    names: list[str],
    layers: dict[str, Any],
    places: Any,
    late: list[str],
    config: Any,
) -> list[str]:
    """Say which layers cannot run two streams, by their first one of each kind."""
    found: dict[str, str] = {}
    levels = getattr(model, "deepstack_num_level", 0)
    if levels > len(names) - len(late):
        found[f"adds features of pictures in {levels} layers: k must be at most {len(names) - levels}"] = "the model"
    for name in names:
        layer = layers[name]
        kind = kind_of(layer)
        if kind is None:
            found.setdefault(f"is {type(layer).__name__}, not attention to all keys", name)
        elif what := kind.unfit(layer, late=name in late, config=config):
            found.setdefault(what, name)
        elif name not in places:
            found.setdefault("is called in a way that is not known", name)
    numbers = {extract_layer_index(name) for name in names}
    if len(names) < 2 or len(numbers) < len(names):
        found.setdefault("has no layers, or layers with several attentions", "the model")
    return [f"{name} {what}" for what, name in found.items()]
