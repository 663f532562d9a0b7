"""Prefix caching: where the contrast stream's rows lie if a prompt begins with blocks that an earlier one has filled.

The contrast stream has its text rows in the blocks of the full stream, one after another, as if there were no image
tokens. So a block may hold rows of much later tokens, of which vLLM's hash of the block knows nothing: but rows before
the first picture lie where their tokens do. A prompt may therefore begin with blocks of others up to the end of its
first picture, with all text rows of these in the first blocks. Its own text rows go to its own blocks from the first
one on, after a copy of the block that is only partly text:

    block                    0     1     2     3   |  4     5
    tokens                 tttt  tiii  iiii  iiii  | iitt  tt      t: text, i: image
    rows of the contrast   tttt  t     -     -     | tttt  t       the first one of block 4 is copied from block 1

At least as many image tokens as copied rows are left to the prompt's own blocks, so that these have room.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sira_cli.vllm.step import Numbers


def most_shared(image: Numbers, size: int) -> int:
    """Return how many tokens of a prompt with a picture may come from blocks of earlier prompts.

    Args:
        image: which tokens are image tokens, up to the end of the last picture.
        size: tokens per block.
    """
    first = int(image.argmax())
    after = np.flatnonzero(~image[first:])
    end = first + int(after[0]) if len(after) else len(image)
    return (end - first % size) // size * size


def own_table(table: Tensor, whole: Tensor, skipped: Tensor) -> Tensor:
    """Return the blocks of each request's contrast rows, in their order: `[R, W]` of the request's blocks `[R, W]`.

    Args:
        table: the blocks of the full stream.
        whole: how many of the first ones have text only `[R]`.
        skipped: how many blocks after these hold no rows of the request `[R]`.
    """
    width = table.shape[1]
    column = torch.arange(width, device=table.device)
    later = column >= whole[:, None]  # [R, W]
    column = column + skipped[:, None] * later
    return table.gather(1, column.clamp(max=width - 1))
