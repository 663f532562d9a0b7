"""`vcd`: a contrast with a noised picture (Leng et al. 2024, arXiv:2311.16922)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from sira_cli.errors import UnsupportedModelError
from sira_cli.methods.base import CutContrast, Inputs, PromptBatch
from sira_cli.methods.prompts import pictures_of
from sira_cli.methods.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

STEPS = 1000
# The inputs that show a picture: in high resolution, and as Fuyu and Video-LLaVA had them until transformers 5.20.
PIXELS = ("pixel_values", "high_res_pixel_values", "image_patches", "pixel_values_images")
_MARKS = {"pixel_attention_mask", "image_position_ids"}  # inputs that tell a picture's patches from padding


@dataclass(frozen=True)
class Vcd(CutContrast):
    """(1 + alpha) z - alpha z' with APC; z' from the picture under `noise_step` steps of diffusion noise.

    Its authors' script for POPE uses a beta of 0.2.
    """

    name = "vcd"
    uses_seed = True
    noise_step: int = setting(500, "steps of diffusion noise on the picture", low=0, high=STEPS - 1)

    def branch_inputs(self, batch: PromptBatch) -> dict[str, Tensor]:
        """Return the same prompts with noised pictures."""
        inputs = batch.inputs
        tokens = batch.image_tokens.sum(dim=1)
        if "pixel_values_videos" in inputs:  # under `sira_cli.attach`
            raise UnsupportedModelError("method vcd adds noise to pictures, not to videos")
        counts = [len(pictures_of(shown)) for shown in batch.images]
        branch = dict(inputs)
        if branch.keys().isdisjoint(PIXELS):
            raise UnsupportedModelError(f"method vcd finds no picture among the inputs {', '.join(inputs)}")
        vision = getattr(batch.maker.model.config, "vision_config", None)  # Chameleon, Emu3 and Fuyu have none
        copies = getattr(vision, "temporal_patch_size", 1)
        for number, name in enumerate(PIXELS):
            if name in inputs:
                pictures = {**inputs, "pixel_values": inputs[name]}
                seeds = [seed ^ number << 40 for seed in batch.seeds]  # each input has noise of its own
                branch[name] = noised(pictures, tokens, copies, self.noise_step, seeds, counts)
        return branch


def signal_share(step: int) -> float:
    """Return the product of 1 - beta_i over i = 0..step; beta_i rises like a sigmoid from 1e-5 to 5e-3."""
    share = 1.0
    for i in range(step + 1):
        beta = (5e-3 - 1e-5) / (1 + math.exp(6 - 12 * i / (STEPS - 1))) + 1e-5
        share *= 1 - beta
    return share


def noised(
    inputs: Inputs,
    image_tokens: Tensor,
    copies: int,
    step: int,
    seeds: Sequence[int],
    counts: Sequence[int] = (),
) -> Tensor:
    """Return x' = sqrt(a) x + sqrt(1 - a) e of normalised pixels x, in float32; a = `signal_share(step)`.

    Args:
        inputs: the processor's output for B prompts; their pixels are in `pixel_values`. Padding is unchanged.
        image_tokens: `[B]`, number of image tokens of each prompt.
        copies: of a frame in Qwen's patches (temporal_patch_size), which get one e.
        step: number of steps of noise, from 0.
        seeds: of each prompt, from which its pictures draw their noise e in order, independent of the batch.
        counts: number of each prompt's pictures; default: one.

    Returns:
        pixels in the shape of `pixel_values`.

    Raises:
        UnsupportedModelError: which pixels belong to which picture cannot be told.
    """
    import torch

    pixels = inputs["pixel_values"].float()
    if "image_position_ids" in inputs:  # Gemma 4 expects values from 0 to 1, and normalises them itself
        pixels = 2 * pixels - 1
    mixed = pixels.clone()
    share = signal_share(step)
    counts = counts or [1] * len(seeds)
    pictures = list(_pictures(inputs, pixels, image_tokens.tolist(), sum(counts)))
    if len(pictures) == sum(counts):
        unassigned = iter(pictures)
        pictures = [list(chain.from_iterable(islice(unassigned, count))) for count in counts]  # of each prompt
    elif len(pictures) != len(seeds):
        raise _unclear()
    for parts, seed in zip(pictures, seeds, strict=True):
        generator = torch.Generator().manual_seed(seed)
        for part in parts:
            x = pixels[part]
            if "image_grid_thw" in inputs and x.ndim == 2:  # [patches, 3 * copies * side * side]
                e = torch.randn(len(x), 3, 1, x.shape[1] // (3 * copies), generator=generator)
                e = e.expand(-1, -1, copies, -1).reshape(x.shape)
            else:
                e = torch.randn(x.shape, generator=generator)
            mixed[part] = math.sqrt(share) * x + math.sqrt(1 - share) * e
    return (mixed + 1) / 2 if "image_position_ids" in inputs else mixed


def _pictures(inputs: Inputs, pixels: Tensor, image_tokens: list[int], count: int) -> Iterator[list[Any]]:
    """Yield the place of each of `count` pictures, or of each prompt's, in `pixels`: indices of parts, not padding."""
    if "image_grid_thw" in inputs:  # rows of patches, one picture after the other
        yield from _following(inputs["image_grid_thw"].prod(dim=-1).tolist())
    elif "image_num_crops" in inputs:  # [crops, patches, values], one picture after the other (Molmo2)
        yield from _following(inputs["image_num_crops"].tolist())
    elif "target_sizes" in inputs:  # [1, 3, side, patches * side], one slice after the other (MiniCPM-V)
        side = pixels.shape[2]
        ends = [0, *(side * inputs["target_sizes"].prod(dim=-1).cumsum(0)).tolist()]
        for part in _in_proportion(pixels.shape[3], image_tokens):
            if not {part.start, part.stop} <= {*ends}:
                raise _unclear()
            yield [(slice(None), slice(None), slice(None), part)]
    elif pixels.ndim == 2 or (pixels.ndim == 3 and _MARKS.isdisjoint(inputs)):  # patches of all pictures (Fuyu)
        if count == 1:
            yield [slice(None)]
        elif pixels.ndim == 3 and len(pixels) == count:
            yield from ([row] for row in range(count))
        else:
            yield from ([part] for part in _in_proportion(len(pixels), image_tokens))
    elif pixels.ndim == 3:  # [pictures or their tiles, patches, values], padded at the end
        mask = inputs.get("pixel_attention_mask")
        valid = (inputs["image_position_ids"] >= 0).all(dim=-1) if mask is None else mask.bool()  # [rows, patches]
        per_token = int(valid.sum()) // sum(image_tokens)
        row = 0
        for tokens in image_tokens:
            parts = []
            left = tokens * per_token
            while left > 0:
                parts.append((row, valid[row]))
                left -= int(valid[row].sum())
                row += 1
            yield parts
    elif pixels.ndim == 5:  # [pictures or prompts, tiles, 3, H, W]
        for row in range(len(pixels)):
            tiles = [tile for tile in range(pixels.shape[1]) if bool(pixels[row, tile].any())]
            yield [_unpadded(inputs.get("pixel_attention_mask"), row, tile) for tile in tiles]
    elif len(pixels) == count:  # [pictures, 3, H, W], in the upper left corner where sizes differ
        sizes = inputs.get("image_sizes")
        for row in range(len(pixels)):
            height, width = pixels.shape[2:] if sizes is None else sizes[row].tolist()
            yield [(row, slice(None), slice(height), slice(width))]
    else:  # [tiles of all pictures, 3, H, W], each as many tokens
        for part in _in_proportion(len(pixels), image_tokens):
            yield [(tile,) for tile in range(part.start, part.stop)]


def _unpadded(mask: Tensor | None, row: int, tile: int) -> tuple[Any, ...]:
    """Return the place of a tile, without the padding to the largest of the batch (Idefics 2), below and to the right.

    The mask `[pictures or prompts, tiles, H, W]` is not 0 at pixels of the picture. None, or a mask of whole tiles
    (Granite Docling): all are.
    """
    if mask is None or mask.ndim != 4:
        return row, tile
    valid = mask[row, tile].bool()  # [H, W]
    height = int(valid.any(dim=1).sum())
    width = int(valid.any(dim=0).sum())
    return row, tile, slice(None), slice(height), slice(width)


def _following(numbers: Sequence[int]) -> Iterator[list[Any]]:
    """Yield the rows of each picture, one picture after the other."""
    start = 0
    for number in numbers:
        yield [slice(start, start + number)]
        start += number


def _in_proportion(total: int, image_tokens: Sequence[int]) -> Iterator[slice]:
    """Yield each prompt's share of `total` parts, as many per image token in all prompts."""
    start = 0
    for tokens in image_tokens:
        count, rest = divmod(tokens * total, sum(image_tokens))
        if rest:
            raise _unclear()
        yield slice(start, start + count)
        start += count


def _unclear() -> UnsupportedModelError:
    return UnsupportedModelError("method vcd cannot tell which pixels belong to which picture of a batch")
