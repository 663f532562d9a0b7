"""The rows of the counterfactual (CF) stream, their positions, and which of them may be seen."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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

    def rows_before(self, q: int) -> int:
        """Return the number of rows of the full stream before its newest q."""
        return self.full_rows - q

    def first_column(self, kv: int) -> int:
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
