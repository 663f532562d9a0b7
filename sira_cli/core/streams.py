"""The rows of the counterfactual (CF) stream, their positions, and which of them may be seen.

`Streams` describes a cache that grows by a row per decoding step. `StaticStreams` describes a static one, which has all
rows from the start: a compiled decoding step may read no number or shape that changes from step to step. `RowStreams`
describes one whose rows come and go, each with its own length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass
class Streams:
    """The rows of both streams of one request. All K late layers and all steps share this object.

    Attributes:
        rows: `[B, T]` positions of the prompt's rows in the CF stream.
        live: `[B, T]` False at fillers: unseen rows that pad a prompt with fewer text tokens. None: no fillers.
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
        """Return some of the B texts, cut to `columns` rows of the full stream (at least the prompt's text)."""
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
            visible: `[B, T]` visible rows of the prompt; default: all but the fillers.
        """
        visible = self.live if visible is None else visible
        if visible is None:
            return None
        return torch.cat([visible, visible.new_ones(len(visible), self.steps)], dim=1)


class StaticStreams:
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
        """Take in the rows of a prompt; the slots of new tokens follow them."""
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
        """Return the position of each slot, `[B, N]`; the model's mask hides those of future tokens."""
        return self._positions

    def seen(self, visible: Tensor | None = None) -> Tensor:
        """Return which slots may be seen once they are filled, `[B, N]`; only growing caches take `visible`."""
        assert visible is None
        return self._live

    def rows_before(self, q: int) -> Tensor:
        """Return the number of rows of the full stream before its newest q, `[B, 1]`."""
        return self._newest + 1 - q

    def first_column(self, kv: int) -> Tensor:
        """Return the position of the first of the model's kv mask columns, `[B, 1]`: 0 until a window is full."""
        return (self._newest + 1 - kv).clamp(min=0)


class RowStream:
    """The content of one stream's rows when texts come and go: each row begins at column 0 and has its own length.

    Attributes:
        fixed: whether every step looks at all R rows and C columns, as a compiled step must.
        lengths: number of columns of each row in use; the rows in use are the first ones.
        newest: `[R, 1]` the column of each row's newest token.
        positions: `[R, C]` each column's column in the full stream.
        live: `[R, C]` False at padding and fillers, which are never seen.
    """

    def __init__(self, device: torch.device, fixed: bool) -> None:
        """Begin without rows.

        Args:
            device: device of the tensors.
            fixed: as above.
        """
        self.fixed = fixed
        self.lengths: list[int] = []
        self.newest = torch.zeros(0, 1, dtype=torch.long, device=device)
        self.positions = torch.zeros(0, 0, dtype=torch.long, device=device)
        self.live = torch.zeros(0, 0, dtype=torch.bool, device=device)

    @property
    def room(self) -> tuple[int, int]:
        """Number of allocated rows and columns, R and C."""
        return self.live.shape[0], self.live.shape[1]

    @property
    def rows(self) -> int:
        """Number of rows that a step looks at, B."""
        return self.room[0] if self.fixed else len(self.lengths)

    @property
    def columns(self) -> int:
        """Number of columns that a step looks at, N."""
        return self.room[1] if self.fixed else max(self.lengths, default=0)

    def make_room(self, rows: int, columns: int) -> None:
        """Grow to this number of rows and columns."""
        new_rows, new_columns = rows - self.room[0], columns - self.room[1]
        behind = torch.arange(1, new_columns + 1, device=self.newest.device)
        last = self.positions[:, -1:] if self.room[1] else self.newest - 1
        self.positions = F.pad(torch.cat([self.positions, last + behind], dim=1), (0, 0, 0, new_rows))
        self.live = F.pad(self.live, (0, new_columns, 0, new_rows), value=True)
        self.newest = F.pad(self.newest, (0, 0, 0, new_rows))
        if self.fixed:
            for each in (self.positions, self.live, self.newest):
                torch._dynamo.mark_static_address(each)  # as `StaticStreams` does

    def place(self, positions: Tensor, live: Tensor | bool, full_rows: int) -> slice:
        """Append the rows of a prompt, and return their places.

        Args:
            positions, live: `[G, T]`; `live` True: all are.
            full_rows: number of columns of their full stream.
        """
        group, text = positions.shape
        places = slice(len(self.lengths), len(self.lengths) + group)
        self.positions[places, :text] = positions
        self.positions[places, text:] = torch.arange(self.room[1] - text, device=positions.device) + full_rows
        self.live[places] = True
        self.live[places, :text] = live
        self.newest[places] = text - 1
        self.lengths += [text] * group
        return places

    def count(self) -> None:
        """Count one more token in each row in use."""
        self.newest[: len(self.lengths)] += 1
        self.lengths = [length + 1 for length in self.lengths]

    def keep(self, rows: Sequence[int], places: Tensor, sources: Tensor) -> None:
        """Keep some rows, in this order; those at `places` come from `sources`."""
        self.lengths = [self.lengths[row] for row in rows]
        for each in (self.newest, self.positions, self.live):
            each[places] = each[sources]


class RowStreams:
    """The rows of both streams, for the fork during a decoding step.

    Attributes:
        full, cf: the streams.
    """

    def __init__(self, full: RowStream, cf: RowStream) -> None:
        self.full, self.cf = full, cf

    def count(self) -> None:
        """Do nothing: the caller has counted the step already, outside of the compiled graph."""

    def newest(self) -> Tensor:
        """Return the position of each row's newest token, `[B, 1]`."""
        return self.full.newest[: self.full.rows]

    def positions(self) -> Tensor:
        """Return the position of each column of the CF stream, `[B, N]`; the full mask hides future ones."""
        return self.cf.positions[: self.cf.rows, : self.cf.columns]

    def seen(self, visible: Tensor | None = None) -> Tensor:
        """Return which columns of the CF stream may be seen, `[B, N]`; only growing caches take `visible`."""
        assert visible is None
        return self.cf.live[: self.cf.rows, : self.cf.columns]

    def rows_before(self, q: int) -> Tensor:
        """Return the number of rows of the full stream before its newest q, `[B, 1]`."""
        return self.newest() + 1 - q

    def first_column(self, kv: int) -> int:
        """Return the position of the first of the model's kv mask columns: its masks have all columns."""
        return 0


AnyStreams = Streams | StaticStreams | RowStreams
