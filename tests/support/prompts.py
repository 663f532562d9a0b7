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


def family_prompts(name: str, case: tiny.Tiny, count: int) -> list[dict[str, torch.Tensor]]:
    """Prompts of one family: other text, other lengths, other pictures, and of other sizes where it has several."""
    prompts = []
    for index in range(count):
        before, after = [(5, 9), (0, 3), (14, 2), (3, 17), (7, 5)][index % 5]
        inputs = dict(case.inputs)
        shape = inputs["pixel_values"].shape
        images = int(case.image.sum())
        if name.startswith("Qwen"):
            images, grid = [(16, (1, 8, 8)), (24, (1, 6, 16)), (4, (1, 4, 4))][index % 3]
            prompts.append(tiny.qwen_inputs(tiny.prompt(images, before + 1, after, seed=index), grid, seed=index))
            continue
        if name.startswith("PaliGemma"):
            before = 0
        inputs["pixel_values"] = tiny.pixels(*shape, seed=index)
        if "image_sizes" in inputs:  # smaller pictures are padded
            full = shape[-1] if name != "LLaVA-NeXT" else 64
            height, width = [(full, full), (full // 2, full), (full, full // 2)][index % 3]
            inputs["image_sizes"] = torch.tensor([[height, width]])
            if name == "LLaVA-NeXT":
                images = sum(
                    len(each)
                    for each in case.model.model.get_image_features(
                        inputs["pixel_values"], inputs["image_sizes"]
                    ).pooler_output
                )
            else:
                side = 8 * getattr(case.model.config, "spatial_merge_size", 1)
                images = (height // side) * (width // side)
        ids = tiny.prompt(images, before, after, seed=index)
        inputs |= {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if "mm_token_type_ids" in inputs:
            inputs["mm_token_type_ids"] = (ids == tiny.IMAGE).long()
        if "token_type_ids" in inputs:
            inputs["token_type_ids"] = (ids == tiny.IMAGE).long() if name == "Gemma 3" else torch.zeros_like(ids)
        prompts.append(inputs)
    return prompts
