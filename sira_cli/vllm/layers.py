"""How late layers run two streams: a `Kind` for each class of vLLM's layers that keep something of earlier tokens.

Another class is one more file with a subclass of `Kind`, and one more entry of `kinds.KINDS`.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention import Attention
from vllm.utils.torch_utils import direct_register_custom_op

from sira_cli.vllm.plugin import CACHES


class Kind:
    """One class of layers.

    A layer of the full stream stays as it is, and gets a twin: a copy under another name with a cache of its own, which
    vLLM makes because the twin stands in `static_forward_context`. The twin sees the text rows only. Its metadata is
    made by its own backend's builder of these rows: the request's block table in the twin's cache group, the number of
    rows in this step (`query_start_loc`) and in the cache (`seq_lens`), `slot_mapping` where the j-th text row of a
    request lies in the request's slot j, and `is_prefilling`. So a cache by rows (attention) and a state per request
    (linear layers, convolutions) need nothing else.

    Attributes:
        takes: the class.
    """

    takes: type[Any]

    def unfit(self, layer: Any, *, late: bool, config: Any) -> str:
        """Say what about a layer cannot be followed; empty: nothing.

        Args:
            layer: of the class `takes`.
            late: whether it runs two streams; a layer below the fork runs as ever.
            config: the model's, as vLLM has it.
        """
        raise NotImplementedError

    def twin(self, layer: Any, name: str) -> Any:
        """Return the contrast stream's layer, which knows itself by `name`."""
        raise NotImplementedError

    def join(
        self,
        streams: Any,
        layer: Any,
        twin: Any,
        parent: nn.Module,
        key: str,
    ) -> None:
        """Make `parent`, which calls the layer as its submodule `key`, run both: rows `[N + M, ...]` in and out.

        Args:
            streams: `Streams`; in each forward `streams.n` is N, and `streams.live` is M without padding.
            layer: of the full stream; its `__dict__["sira"]` must be something with `streams`, where operators find it.
            twin: of the contrast stream.
            parent: the module that calls the layer.
            key: the layer's name there.
        """
        raise NotImplementedError


class FullAttention(Kind):
    """Causal attention to all keys: "text only" is the same over the text rows, which lie together without a gap."""

    takes = Attention

    def unfit(self, layer: Any, *, late: bool, config: Any) -> str:
        """Refuse other attention, and other caches."""
        if type(layer) is not Attention:
            return f"is {type(layer).__name__}, not attention to all keys"
        if layer.kv_sharing_target_layer_name is not None:
            return "shares the keys of another layer"
        if getattr(layer.impl, "alibi_slopes", None) is not None:
            return "has biases of positions (ALiBi)"
        if layer.kv_cache_dtype not in CACHES:
            return f"has a cache in {layer.kv_cache_dtype}"
        return self._unseen(layer, late, config)

    def _unseen(self, layer: Any, late: bool, config: Any) -> str:
        """Refuse windows that end before a text does, and image tokens that do not see all of their picture."""
        window = layer.sliding_window
        if late and window is not None and window < config.max_model_len:  # over positions, not over text rows
            return f"has a sliding window after the fork: give --max-model-len {window} at most"
        if config.is_mm_prefix_lm and not layer.attn_backend.supports_mm_prefix():
            backend = layer.attn_backend.get_name()
            return f"attends in both directions between image tokens, which {backend} cannot: try TRITON_ATTN"
        return ""

    def twin(self, layer: Any, name: str) -> Any:
        """Return a copy with an implementation and a cache of its own."""
        twin = copy.copy(layer)
        twin.impl = copy.copy(layer.impl)
        twin.layer_name = name
        twin.kv_cache = torch.tensor([])
        return twin

    def join(
        self,
        streams: Any,
        layer: Any,
        twin: Any,
        parent: nn.Module,
        key: str,
    ) -> None:
        """Put a module that runs both in the layer's place."""
        layer.use_direct_call = twin.use_direct_call = True  # an operator of ours is around them already
        parent._modules[key] = TwoStreams(streams, layer, twin)


class TwoStreams(nn.Module):
    """Attention of one late layer in both streams, in the place of the layer's own."""

    def __init__(self, streams: Any, full: Any, contrast: Any) -> None:
        super().__init__()
        self.streams = streams
        self.full = full
        self.contrast = contrast
        self.layer_name = full.layer_name
        self.width = full.num_heads * full.head_size_v
        full.__dict__["sira"] = self  # where the operators find it; not one of its submodules

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend: rows `[N + M, ...]` of both streams -> `[N + M, heads * size]`."""
        output = query.new_empty(query.shape[0], self.width)
        torch.ops.vllm.sira_two_streams(query, key, value, output, self.layer_name)
        return output

    def attend(self, query: Tensor, key: Tensor, value: Tensor, output: Tensor) -> None:
        """Do what `forward` says, where the compiler does not look."""
        n = self.streams.n
        end = n + self.streams.live
        output[:n] = self.full(query[:n], key[:n], value[:n])
        if end == n:
            return
        text = query[n:end], key[n:end], value[n:end]
        name = self.contrast.layer_name
        if name in self.streams.copies:
            self.contrast(*text)  # what is copied may be of requests in this step
            self.streams.copy(name)
        output[n:end] = self.contrast(*text)


def joined(name: str) -> Any:
    """Find the object that `Kind.join` left at a layer of the full stream."""
    return get_forward_context().no_compile_layers[name].__dict__["sira"]


def _two_streams(query: Tensor, key: Tensor, value: Tensor, output: Tensor, layer_name: str) -> None:
    joined(layer_name).attend(query, key, value, output)


direct_register_custom_op("sira_two_streams", _two_streams, mutates_args=["output"], fake_impl=lambda *rows: None)
