"""Prompts of different lengths, with pictures of different sizes, for batches of tiny models."""

from __future__ import annotations

import torch

from tests.support import tiny


def llava_prompts() -> list[dict[str, torch.Tensor]]:
    """Different lengths and places; the last one holds two images with text between them."""
    two = torch.cat([tiny.prompt(before=3, after=4, seed=3), tiny.prompt(before=2, after=1, seed=4)], dim=1)
    prompts = [tiny.prompt(before=5, after=9, seed=1), tiny.prompt(before=0, after=2, seed=2), two]
    pixels = [tiny.pixels(1 + (index == 2), 3, 32, 32, seed=index + 1) for index in range(3)]
    return [tiny.with_mask(ids, pixel_values=shown) for ids, shown in zip(prompts, pixels, strict=True)]


def family_prompts(name: str, case: tiny.Tiny) -> list[dict[str, torch.Tensor]]:
    """Three prompts of a family: other text, other lengths, other pictures, and for Qwen pictures of three sizes."""
    if name == "LLaVA-1.5":
        return llava_prompts()
    prompts = []
    if name.startswith("Qwen"):
        shapes = [((1, 8, 8), 16, 5, 9), ((1, 6, 16), 24, 2, 4), ((1, 4, 4), 4, 7, 2)]
        for index, (grid, *counts) in enumerate(shapes):
            prompts.append(tiny.qwen_inputs(tiny.prompt(*counts, seed=index), grid, seed=index))
        return prompts
    for index, (before, after) in enumerate([(5, 9), (0, 3), (14, 2)]):
        ids = tiny.prompt(int(case.image.sum()), before, after, seed=index)
        kinds = {kind: (ids == tiny.IMAGE).long() for kind in case.grown}
        pixels = tiny.pixels(*case.inputs["pixel_values"].shape, seed=index)
        prompts.append({**case.inputs, **tiny.with_mask(ids, pixel_values=pixels, **kinds)})
    return prompts
