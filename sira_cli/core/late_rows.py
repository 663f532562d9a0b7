"""Caches of late layers: changes that transformers makes to the full stream's rows also reach the CF stream's."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from sira_cli.errors import UnsupportedModelError


class LateRows(DynamicLayer):
    """Mixin of all late layers with keys and values; it precedes the full stream's layer among the base classes.

    Attributes:
        cf: the CF stream's layer.
    """

    is_croppable = False
    cf: DynamicLayer

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
        """Refuse: the streams have different lengths.

        Raises:
            UnsupportedModelError: always.
        """
        raise UnsupportedModelError(
            "the cache of two streams cannot be cropped: assisted generation is not supported, leave out "
            "assistant_model and prompt_lookup_num_tokens"
        )
