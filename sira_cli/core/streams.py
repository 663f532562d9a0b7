"""The rows of both streams: of a request, and of a late layer's cache; and the logits of a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from sira_cli.errors import UnsupportedModelError


@dataclass
class StreamRows:
    """The rows of both streams of one request. All K late layers and all steps share this object."""

    rows: Tensor  # [B, T] positions of the prompt's rows in the CF stream
    live: Tensor | None  # [B, T] False at fillers, unseen rows that pad a prompt with fewer text tokens; None: none
    prompt: int  # S, rows of the full stream in the prompt
    steps: int = 0  # decoding steps so far; each adds one row to both streams

    @property
    def full_rows(self) -> int:
        """Rows of the full stream so far."""
        return self.prompt + self.steps

    @property
    def cf_rows(self) -> int:
        """Rows of the CF stream so far."""
        return self.rows.shape[1] + self.steps

    def cut_back(self, texts: Tensor, columns: int) -> StreamRows:
        """Return some of the B texts, cut to `columns` rows of the full stream (at least the prompt's text)."""
        index, missing = texts.to(self.rows.device), max(0, self.prompt - columns)
        kept = self.rows.shape[1] - missing  # a prompt ends with text: its last rows are those of both streams
        live = None if self.live is None else self.live[index, :kept]
        prompt = self.prompt - missing
        return StreamRows(self.rows[index, :kept], live, prompt, columns - prompt)

    def newest(self) -> Tensor:
        """Return the position of the newest row, `[B, 1]`."""
        return self.rows.new_full((len(self.rows), 1), self.full_rows - 1)

    def first_column(self, kv: int) -> int:
        """Return the position of the first of the model's kv mask columns: 0, unless a sliding window has moved on."""
        return max(self.full_rows - kv, 0)

    def positions(self) -> Tensor:
        """Return the position of each row of the CF stream, `[B, T + steps]`."""
        new = torch.arange(self.prompt, self.full_rows, device=self.rows.device)
        return torch.cat([self.rows, new.expand(len(self.rows), -1)], dim=1)

    def seen(self, visible: Tensor | None = None) -> Tensor | None:
        """Return which rows of the CF stream may be seen, `[B, T + steps]`; None: all of them."""
        visible = self.live if visible is None else visible
        if visible is None:
            return None
        return torch.cat([visible, visible.new_ones(len(visible), self.steps)], dim=1)


class LateRows(DynamicLayer):
    """Mixin of all late layers with keys and values; it precedes the full stream's layer among the base classes."""

    is_croppable = False
    cf: DynamicLayer  # the CF stream's layer

    def reset(self) -> None:
        """Empty both streams."""
        super().reset()
        self.cf.reset()

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Let both streams follow the beams."""
        super().reorder_cache(beam_idx)
        self.cf.reorder_cache(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row of both streams."""
        super().batch_repeat_interleave(repeats)
        self.cf.batch_repeat_interleave(repeats)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows of both streams."""
        super().batch_select_indices(indices)
        self.cf.batch_select_indices(indices)

    def crop(self, tokens_to_remove: int) -> None:
        """Refuse: the streams have different lengths."""
        raise UnsupportedModelError(
            "the cache of two streams cannot be cropped: assisted generation is not supported, leave out "
            "assistant_model and prompt_lookup_num_tokens"
        )


VIEWS = ("full", "cf", "contrast")  # the logits of a Step


@dataclass(frozen=True)
class Step:
    """The logits of one decoding step, float32 `[B, V]` each (B counts beams and returned sequences).

    `contrast` = (1 + alpha) full - alpha cf (paper, Eq. 4), before the plausibility cut-off if one is set.
    """

    full: Tensor
    cf: Tensor
    contrast: Tensor


OnStep = Callable[[Step], None]
