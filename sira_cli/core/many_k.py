"""One prefill for every K: the full stream does not depend on K, so it runs once.

    layers 0..L-1     [ x_1 ........... x_S ]           the full stream, as without a fork
    before layer b    [ x_t for t in text ]             for each K a CF stream begins here, b = L - K
    layers b..L-1     n streams of `[B, T, d]`          all CF streams that have begun, in one more call a layer
    after layer L-1   last row of each stream -> Norm -> W_out -> z_full, z_cf of each K

A CF stream holds text only (see `sira_cli.core.fork`): beside the hundreds of image tokens it costs little.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sira_cli.core.cache import Streams
from sira_cli.core.config import SiraConfig
from sira_cli.core.fork import Fork
from sira_cli.core.hooks import Removable, attached_hooks
from sira_cli.core.masks import cf_mask, take_rows


@dataclass(frozen=True)
class NextToken:
    """Logits of the token that follows a prompt, float32 `[B, V]` each.

    Attributes:
        full: z_full.
        cf: z_cf by K.
    """

    full: Tensor
    cf: dict[int, Tensor]


@torch.no_grad()
def next_token(model: nn.Module, config: SiraConfig, inputs: Mapping[str, Any], ks: Collection[int]) -> NextToken:
    """Both streams' logits after B prompts, as one `attach` for each K would give them.

    Args:
        model: as for `attach`.
        config: decides the image tokens; its K, alpha and beta play no part.
        inputs: what the processor makes of B pictures and prompts, left-padded, on the model's device.
        ks: values of K, at least one.

    Raises:
        UnsupportedModelError, SettingsError, ImageTokenError: as `attach`.
    """
    forks = _Forks(model, config, ks)
    with attached_hooks(forks._norm) as handles:
        forks._hook(model, handles)
        model(**inputs, use_cache=False, logits_to_keep=1)
    z_full, *z_cf = forks.logits
    return NextToken(z_full, dict(zip(forks.ks, z_cf, strict=True)))


class _Forks(Fork):
    """A fork for each of several K, for a prompt without a cache.

    Attributes:
        ks: values of K in the order in which their streams begin.
        logits: `[B, V]` of the full stream, then of each K's CF stream.
    """

    logits: tuple[Tensor, ...]
    _cf: Tensor  # [n B, T, d], the CF streams that have begun

    def __init__(self, model: nn.Module, config: SiraConfig, ks: Collection[int]) -> None:
        super().__init__(model, dataclasses.replace(config, k=max(ks), k_fraction=None), None)
        self.ks = sorted(set(ks), reverse=True)

    def _hook(self, model: nn.Module, handles: list[Removable]) -> None:
        handles.append(model.register_forward_pre_hook(self._begin, with_kwargs=True))
        for k, layer in zip(range(self.k, 0, -1), self._late_layers, strict=True):
            handles.append(layer.register_forward_hook(partial(self._run_cf, k), with_kwargs=True))
        handles.append(self._norm.register_forward_pre_hook(self._join))
        handles.append(model.register_forward_hook(self._keep_logits))

    def _run_cf(self, k: int, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """After the full stream's layer L - k: the same layer for the CF streams, one of which may begin here."""
        now = self._running()
        rows = now.cf_rows
        assert rows is not None  # a prompt
        if k in self.ks:
            begun = take_rows(args[0], rows)  # [B, T, d]
            self._cf = begun if k == self.k else torch.cat([self._cf.to(begun.device), begun])
        now.streams = Streams(rows, None if now.live is None or bool(now.live.all()) else now.live, now.q)
        n = len(self._cf) // len(rows)
        mask = cf_mask(kwargs["attention_mask"], now.streams, rows)  # [B, 1, T, T]
        rotary = (take_rows(part, rows).repeat(n, 1, 1) for part in kwargs["position_embeddings"])
        changed = {
            "attention_mask": None if mask is None else mask.repeat(n, 1, 1, 1).to(self._cf.device),
            "position_embeddings": tuple(rotary),
        }
        self._cf = layer.forward(self._cf, **{**kwargs, **changed})  # not by calling it, which would come back here

    def _join(self, norm: nn.Module, args: tuple[Any, ...]) -> Any:
        """Before the final norm: the last row of every stream, stacked along the batch."""
        full = args[0][:, -1:]  # [B, 1, d]
        return (torch.cat([full, self._cf[:, -1:].to(full.device)]), *args[1:])  # [(1 + n) B, 1, d]

    def _keep_logits(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """After the model."""
        self._pass = None
        self.logits = output.logits[:, -1].float().chunk(1 + len(self.ks))
