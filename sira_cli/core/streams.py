"""Which rows the counterfactual (CF) stream holds, at which positions, and which of them may be seen.

`Streams` describes a cache that grows by a row per decoding step. `Slots` describes a static one, whose rows are all
there from the start: a compiled decoding step may read no number or shape that changes from step to step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass
class Streams:
    """The rows of both streams of one request. All K late layers and all steps share this object.

    Attributes:
        rows: `[B, T]` positions of the prompt's rows that go on in the CF stream.
        live: `[B, T]` False at fillers: rows that only pad a prompt with fewer text tokens, and that nothing sees.
            None: there are no fillers.
        prompt: S, rows of the full stream in the prompt.
        steps: decoding steps so far; each adds one row to both streams.
    """

    rows: Tensor
    live: Tensor | None
    prompt: int
    steps: int = 0

    @property
    def full_rows(self) -> int:
        """Rows of the full stream so far."""
        return self.prompt + self.steps

    @property
    def cf_rows(self) -> int:
        """Rows of the CF stream so far."""
        return self.rows.shape[1] + self.steps

    def count(self) -> None:
        """Count one more decoding step."""
        self.steps += 1

    def cut_back(self, texts: Tensor, columns: int) -> Streams:
        """Return some of the B texts as they were when the full stream had so many rows, the prompt's text at least."""
        index, missing = texts.to(self.rows.device), max(0, self.prompt - columns)
        kept = self.rows.shape[1] - missing  # a prompt ends with text: its last rows are those of both streams
        live = None if self.live is None else self.live[index, :kept]
        prompt = self.prompt - missing
        return Streams(self.rows[index, :kept], live, prompt, columns - prompt)

    def newest(self) -> Tensor:
        """Return the position of the newest row, `[B, 1]`."""
        return self.rows.new_full((len(self.rows), 1), self.full_rows - 1)

    def rows_before(self, q: int) -> int | Tensor:
        """Return the number of rows of the full stream before its newest q."""
        return self.full_rows - q

    def first_column(self, kv: int) -> int | Tensor:
        """Return the position of the first of the model's kv mask columns: 0, unless a sliding window has moved on."""
        return max(self.full_rows - kv, 0)

    def positions(self) -> Tensor:
        """Return the position of each row of the CF stream, `[B, T + steps]`."""
        new = torch.arange(self.prompt, self.full_rows, device=self.rows.device)
        return torch.cat([self.rows, new.expand(len(self.rows), -1)], dim=1)

    def seen(self, visible: Tensor | None = None) -> Tensor | None:
        """Return which rows of the CF stream may be seen, `[B, T + steps]`; None: all of them.

        Args:
            visible: `[B, T]` which of the prompt's rows; default: all but the fillers.
        """
        visible = self.live if visible is None else visible
        if visible is None:
            return None
        return torch.cat([visible, visible.new_ones(len(visible), self.steps)], dim=1)

    def join(self, other: Streams) -> None:
        """Let the rows of other requests join these, all padded on the left; all that is there becomes the prompt."""
        full, cf = max(self.full_rows, other.full_rows), max(self.cf_rows, other.cf_rows)
        padded = [each._padded(full, cf) for each in (self, other)]
        self.rows, self.live = (torch.cat(parts) for parts in zip(*padded, strict=True))
        self.prompt, self.steps = full, 0

    def keep(self, chosen: Tensor, unused: int) -> int:
        """Keep some requests, without columns that none of them uses; all that is there becomes the prompt.

        Args:
            chosen: `[R]` the requests, by number.
            unused: first columns of the full stream that go.

        Returns:
            How many first columns of the CF stream go.
        """
        rows, live = self._padded(self.full_rows, self.cf_rows)
        rows, live = rows[chosen], live[chosen]
        unused_cf = int(live.any(dim=0).int().argmax())
        self.prompt, self.steps = self.full_rows - unused, 0
        self.rows, self.live = (rows[:, unused_cf:] - unused).clamp(min=0), live[:, unused_cf:]
        return unused_cf

    def _padded(self, full: int, cf: int) -> tuple[Tensor, Tensor]:
        """Return positions and liveness of all rows so far, `[B, cf]`, among so many columns of the full stream."""
        rows, live = self.positions(), self.seen()
        live = torch.ones_like(rows, dtype=torch.bool) if live is None else live
        more = (cf - self.cf_rows, 0)
        return F.pad(rows + full - self.full_rows, more), F.pad(live, more)


class Slots:
    """The N rows of a static CF cache, during decoding steps.

    Attributes:
        shape: B, N.
        prompt: the streams of the prompt while it runs, None afterwards.
    """

    def __init__(self, batch: int, rows: int, device: torch.device) -> None:
        self.shape = batch, rows
        self.prompt: Streams | None = None
        self._positions = torch.zeros(batch, rows, dtype=torch.long, device=device)  # [B, N]
        self._live = torch.zeros(batch, rows, dtype=torch.bool, device=device)  # [B, N]
        self._newest = torch.zeros(batch, 1, dtype=torch.long, device=device)  # [B, 1]
        for each in (self._positions, self._live, self._newest):
            torch._dynamo.mark_static_address(each)  # as `StaticLayer` does: a CUDA graph writes to the same place

    def begin(self, streams: Streams) -> None:
        """Take in the rows of a prompt; the slots of new tokens lie behind them."""
        text = streams.rows.shape[1]  # T
        self.prompt = streams
        self._positions[:, :text] = streams.rows
        self._positions[:, text:] = torch.arange(self.shape[1] - text, device=streams.rows.device) + streams.prompt
        self._live.fill_(True)
        if streams.live is not None:
            self._live[:, :text] = streams.live
        self._newest.fill_(streams.prompt - 1)

    def count(self) -> None:
        """Count one more decoding step."""
        self.prompt = None
        self._newest.add_(1)

    def newest(self) -> Tensor:
        """Return the position of the newest row, `[B, 1]`."""
        return self._newest

    def positions(self) -> Tensor:
        """Return the position of each slot, `[B, N]`; the model's mask hides those of tokens to come."""
        return self._positions

    def seen(self, visible: Tensor | None = None) -> Tensor:
        """Return which slots may be seen once their position has come, `[B, N]`; only growing caches take `visible`."""
        assert visible is None
        return self._live

    def rows_before(self, q: int) -> Tensor:
        """Return the number of rows of the full stream before its newest q, `[B, 1]`."""
        return self._newest + 1 - q

    def first_column(self, kv: int) -> Tensor:
        """Return the position of the first of the model's kv mask columns, `[B, 1]`: 0 until a window is full."""
        return (self._newest + 1 - kv).clamp(min=0)
