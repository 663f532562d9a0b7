"""One prefill for many values of K: the full stream does not depend on K, so it runs once.

    layers 0..L-1     [ x_1 ........... x_S ]           the full stream, as without a fork
    before layer b    [ x_t for t in text ]             for each K a CF stream begins here, b = L - K
    layers b..L-1     n streams of `[B, T, d]`          all CF streams that have begun, in one more call per layer
    after layer L-1   last row of each stream -> Norm -> W_out -> z_full, and z_cf of each K

A CF stream holds text only (see `sira_cli.core.fork`): it costs little compared with hundreds of image tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sira_cli.core.arguments import mask_name
from sira_cli.core.config import SiraConfig
from sira_cli.core.families import ROW_ARGUMENTS
from sira_cli.core.fork import Fork, attached
from sira_cli.core.hooks import Removable
from sira_cli.core.masks import cf_mask, has_rows, take_rows
from sira_cli.core.temperature import scaled_by_column


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
    """Return both streams' logits after B prompts, as `attach` would give them for each K.

    Args:
        model: as for `attach`.
        config: its image-token rule is used; K, alpha and beta are ignored.
        inputs: the processor's output for B pictures and prompts, left-padded, on the model's device.
        ks: values of K, at least one.

    Raises:
        UnsupportedModelError, SettingsError, ImageTokenError: as `attach`.
    """
    with attached(_ForkPerK(model, config, ks)) as fork:
        model(**inputs, use_cache=False, logits_to_keep=1)
    z_full, *z_cf = fork.logits
    return NextToken(z_full, dict(zip(fork.ks, z_cf, strict=True)))


class _ForkPerK(Fork):
    """A CF stream for each of several K, for a prompt without a cache.

    Attributes:
        ks: values of K, largest first: the order in which their streams begin.
        logits: `[B, V]` of the full stream, then of each K's CF stream.
    """

    logits: tuple[Tensor, ...]
    _cf: Tensor  # [n B, T, d], the CF streams that have begun

    def __init__(self, model: nn.Module, config: SiraConfig, ks: Collection[int]) -> None:
        super().__init__(model, dataclasses.replace(config, k=max(ks), k_fraction=None))
        self.ks = sorted(set(ks), reverse=True)
        self._shared_keys: dict[str, Any] = {}  # for the CF streams that have begun, by kind of layer
        self._cf_columns: Tensor | None = None  # [n B, T] while a layer runs the CF streams

    def hooks(self) -> Iterator[Removable]:
        """Run the full stream unchanged, and after each late layer the CF streams through the same layer."""
        yield self.model.register_forward_pre_hook(self.begin, with_kwargs=True)
        yield from scaled_by_column([mixer.module for mixer in self._mixers], self.columns)
        for k, layer in zip(range(self.k, 0, -1), self.late_layers, strict=True):
            yield layer.register_forward_hook(partial(self._run_cf, k), with_kwargs=True)
        yield self.norm.register_forward_pre_hook(self.join)
        yield self.model.register_forward_hook(self._keep_logits)

    def _run_cf(self, k: int, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """After the full stream's layer L - k: run the CF streams through it; one of them may begin here."""
        now = self.running()
        rows = now.cf_rows
        assert rows is not None  # this pass is a prompt
        if k in self.ks:
            begun = take_rows(args[0], rows)  # [B, T, d]
            self._cf = begun if k == self.k else torch.cat([self._cf.to(begun.device), begun])
            self._share_keys(kwargs.get("shared_kv_states") or {}, rows)
        n = len(self._cf) // len(rows)

        def text_rows(part: Any) -> Any:
            """Take all CF streams' rows of an argument with a row per token: `[B or 1, S, ...]` -> `[n B, T, ...]`."""
            if isinstance(part, tuple):
                return tuple(map(text_rows, part))
            return torch.cat([take_rows(part, rows)] * n) if has_rows(part, len(rows), now.q) else part

        streams = now.prompt_streams()
        recurrent = self._mixers[self.k - k].recurrent
        name = mask_name(layer, kwargs)
        mask = streams.live if recurrent else cf_mask(kwargs[name], streams, rows)  # [B, T] or [B, 1, T, T]
        changed = {
            name: None if mask is None else torch.cat([mask] * n).to(self._cf.device),
            **{name: text_rows(kwargs[name]) for name in ROW_ARGUMENTS if name in kwargs},
        }
        if "shared_kv_states" in kwargs:
            changed["shared_kv_states"] = self._shared_keys
        more = map(text_rows, args[1:])
        self._cf_columns = torch.cat([rows] * n)
        found = layer.forward(self._cf, *more, **{**kwargs, **changed})  # a call would come back to this hook
        self._cf, self._cf_columns = found[0] if isinstance(found, tuple) else found, None

    def columns(self) -> Tensor:
        """Return the column of each row of the running layer, for the CF streams or the full one."""
        return torch.arange(self.running().q)[None] if self._cf_columns is None else self._cf_columns

    def _share_keys(self, full: Mapping[str, tuple[Tensor, Tensor]], rows: Tensor) -> None:
        """Give a new stream the text columns of the keys that shared layers have stored so far."""
        for kind, stored in full.items():
            new = [take_rows(each.transpose(1, 2), rows).transpose(1, 2) for each in stored]  # [B, H, T, D]
            old = self._shared_keys.get(kind)
            self._shared_keys[kind] = tuple(new) if old is None else tuple(map(torch.cat, zip(old, new, strict=True)))

    def join(self, norm: nn.Module, args: tuple[Any, ...]) -> Any:
        """Before the final norm: keep the last row of every stream, stacked along the batch."""
        full = args[0][:, -1:]  # [B, 1, d]
        return (torch.cat([full, self._cf[:, -1:].to(full.device)]), *args[1:])  # [(1 + n) B, 1, d]

    def _keep_logits(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """After the model: split the logits by stream."""
        self.end()
        self.logits = output.logits[:, -1].float().chunk(1 + len(self.ks))
