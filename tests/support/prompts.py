"""Prompts of different lengths, with pictures of different sizes, for batches of tiny models."""

from __future__ import annotations

import torch

from tests.support import tiny


def llava_prompts() -> list[dict[str, torch.Tensor]]:
    """Different lengths and places; the last one holds two images with text between them."""
    prompts = [
        tiny.with_mask(tiny.prompt(before=5, after=9, seed=1), pixel_values=tiny.pixels(1, 3, 32, 32, seed=1)),
        tiny.with_mask(tiny.prompt(before=0, after=2, seed=2), pixel_values=tiny.pixels(1, 3, 32, 32, seed=2)),
    ]
    two = torch.cat([tiny.prompt(before=3, after=4, seed=3), tiny.prompt(before=2, after=1, seed=4)], dim=1)
    return [*prompts, tiny.with_mask(two, pixel_values=tiny.pixels(2, 3, 32, 32, seed=3))]


def qwen_prompts() -> list[dict[str, torch.Tensor]]:
    """Three sizes and orientations: 16, 24 and 4 image tokens."""
    shapes = [((1, 8, 8), 16, 5, 9), ((1, 6, 16), 24, 2, 4), ((1, 4, 4), 4, 7, 2)]
    return [
        tiny.qwen_inputs(tiny.prompt(images, before, after, seed=index), grid, seed=index)
        for index, (grid, images, before, after) in enumerate(shapes)
    ]


def gemma_prompts() -> list[dict[str, torch.Tensor]]:
    prompts = []
    for index, (before, after) in enumerate([(5, 9), (1, 2), (14, 3)]):
        ids = tiny.prompt(before=before, after=after, seed=index)
        pixels = tiny.pixels(1, 3, 32, 32, seed=index)
        prompts.append(tiny.with_mask(ids, pixel_values=pixels, token_type_ids=(ids == tiny.IMAGE).long()))
    return prompts
