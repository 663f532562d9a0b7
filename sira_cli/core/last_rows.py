"""The last layer of a prompt: every row gets a key and a value there, but only those that decide a token go further.

k_proj, v_proj                   all rows of both streams: the cache needs them
q_proj, attention, o_proj, MLP   the last rows of each stream; the others become zeros, which nothing reads

Layers that share the keys of earlier ones write none, so there only the last row of each stream runs at all, as Gemma 4
has it without a fork. Without a cache all rows stay: nothing else holds the CF stream's keys then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sira_cli.core.families import ROW_ARGUMENTS
from sira_cli.core.forward_pass import Pass
from sira_cli.core.hooks import Removable


@dataclass(frozen=True)
class LastRows:
    """The last rows of both streams among the packed rows of a prompt.

    Attributes:
        q: rows of the full stream, which come first.
        cf: rows of the CF stream.
        count: how many last ones of each.
    """

    q: int
    cf: int
    count: int

    def take(self, rows: Tensor) -> Tensor:
        """Take those of the full stream, then those of the CF stream: `[B, q + T, ...]` -> `[B, 2 count, ...]`."""
        return torch.cat([rows[:, self.q - self.count : self.q], rows[:, -self.count :]], dim=1)

    def put_back(self, taken: Tensor) -> Tensor:
        """Put them where they were, among zeros: `[B, 2 count, ...]` -> `[B, q + T, ...]`."""
        rows = taken.new_zeros(len(taken), self.q + self.cf, *taken.shape[2:])
        rows[:, self.q - self.count : self.q] = taken[:, : self.count]
        rows[:, -self.count :] = taken[:, self.count :]
        return rows


def last_row_inputs(now: Pass, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Return a decoder layer's arguments with the last row of what has one per row of a prompt, but hidden states."""
    mask = kwargs["attention_mask"]  # [B or 1, H, q, kv]
    rows = {name: now.last(kwargs[name]) for name in ROW_ARGUMENTS if name in kwargs}
    rows["attention_mask"] = mask if mask is None else now.once(mask, lambda: mask[:, :, -1:])
    return (args[0], *map(now.last, args[1:])), {**kwargs, **rows}


def last_rows_only(modules: Sequence[nn.Module], last: Callable[[], LastRows | None]) -> Iterator[Removable]:
    """Run only the last rows through modules that treat each row by itself; yield what removes each hook.

    Args:
        modules: each takes hidden states `[B, q + T, d]` alone, and returns one tensor of as many rows.
        last: returns the last rows of the pass under way; None: all rows are needed.
    """

    def take(module: nn.Module, args: tuple[Any, ...]) -> tuple[Tensor] | None:
        rows = last()
        return None if rows is None else (rows.take(args[0]),)

    def put_back(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        rows = last()
        return None if rows is None else rows.put_back(output)

    for module in modules:
        yield module.register_forward_pre_hook(take)
        yield module.register_forward_hook(put_back)
