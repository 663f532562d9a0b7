"""VTI's directions (Liu et al. 2025, arXiv:2410.15778), from pictures with a true and a hallucinated caption.

    text    hidden states of all layers at a caption's last token: of the true one minus those of the hallucinated one
    image   hidden states of all layers of the image tower, for each of its tokens: the mean of those of TRIALS masked
            versions of the picture, minus those of the picture

A direction is the mean over pictures plus the first principal component, a unit vector (shengliu66/VTI). Only the
differences between layers of its parts matter: each layer's part is stored as a unit vector. The tower is unchanged
while texts are measured, as in the order of the published README; its script steers the tower first.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from sira_cli._version import __version__
from sira_cli.analysis.experiment import Events, Units, check_finite, run_stage
from sira_cli.core.passes import followed
from sira_cli.errors import DataError, PictureError
from sira_cli.methods.calibrated import Calibration, Origin
from sira_cli.methods.vti import IMAGE, TEXT, find_tower
from sira_cli.models.model import LoadedModel
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.rows import read_rows, text_of
from sira_cli.pictures.sources import located
from sira_cli.run.events import StageStarted
from sira_cli.run.items import Batch, Task
from sira_cli.run.lvlm import Lvlm
from sira_cli.run.records import hash_of

PICTURES = 70  # as in the README's command
FEWEST = 3  # two pictures leave the component's sign open
MASKED = 0.99  # share of patches that are masked
TRIALS = 50  # masked versions of a picture
TOGETHER = 10  # versions that go through the tower together
SEED = 42  # of the choice of pictures and of the masks


class CaptionPair(NamedTuple):
    """A picture with a prompt, a true caption and a hallucinated one."""

    picture: Picture
    prompt: str
    true: str
    hallucinated: str


@dataclass(frozen=True)
class CaptionPairs:
    """Pictures with pairs of captions, and their source as JSON values."""

    pairs: Sequence[CaptionPair]
    made_from: Mapping[str, Any] = field(default_factory=dict)


class Shift(NamedTuple):
    """Differences of hidden states for one picture, on the CPU."""

    text: Tensor  # float32 [L + 1, d]: the embedding, each layer's output; the last one is normed
    image: Tensor | None  # [layers + 1, tokens, d] in the model's precision; None without a tower to steer
    image_sha256: str  # of the picture's file


def read_pairs(path: Path, folder: Path, count: int = PICTURES) -> CaptionPairs:
    """Draw pairs from a file in the authors' form: rows with `image`, `question`, `value` and `h_value`.

    Raises:
        DataError: a row lacks one of these, or the file has too few rows.
    """
    pairs = []
    for where, row in read_rows(path):
        pair = CaptionPair(
            located(str(folder / text_of(where, row, "image"))),
            prompt=text_of(where, row, "question"),
            true=text_of(where, row, "value"),
            hallucinated=text_of(where, row, "h_value"),
        )
        pairs.append(pair)
    if len(pairs) < FEWEST:
        raise DataError(f"{path}: expected {FEWEST} pictures or more with two captions, got {len(pairs)}")
    drawn = random.Random(SEED).sample(pairs, min(count, len(pairs)))
    return CaptionPairs(drawn, {"file": path.name})


@dataclass(frozen=True)
class MeasuredShifts(Task[Shift]):
    """The shift of hidden states for each picture."""

    pairs: Mapping[str, CaptionPair]  # by id
    masks: Mapping[str, Tensor]  # bool [trials, patches] by id; empty without a tower to steer

    @override
    def skips_thought(self) -> bool:
        """Return True: captions follow the prompt."""
        return True

    @torch.no_grad()
    def answers(self, lvlm: LoadedModel, batch: Batch[Shift], on_text: Any = None) -> list[Shift]:
        """Return the shifts of each picture."""
        inputs = lvlm.to_device(batch.inputs)
        pairs = [self.pairs[item.id] for item in batch.items]
        true = last_states(lvlm, inputs, [pair.true for pair in pairs])
        hallucinated = last_states(lvlm, inputs, [pair.hallucinated for pair in pairs])
        shifts = []
        for row, item in enumerate(batch.items):
            text = true[row] - hallucinated[row]
            check_finite(text, item.picture.label)
            image = None
            if item.id in self.masks:
                image = image_shift(find_tower(lvlm.model), inputs["pixel_values"][row], self.masks[item.id])
                check_finite(image, item.picture.label)
            shifts.append(Shift(text, image, item.sha256))
        return shifts


def last_states(lvlm: LoadedModel, inputs: Any, texts: Sequence[str]) -> Tensor:
    """Return the hidden states at the last token of a text after each prompt, float32 `[B, L + 1, d]`, on the CPU."""
    tokens = list(map(lvlm.vocabulary.encode_after, inputs["input_ids"].tolist(), texts))
    given = followed(lvlm.model, inputs, tokens)  # the ends of the texts are aligned
    output = lvlm.model(**given, use_cache=False, logits_to_keep=1, output_hidden_states=True)
    return torch.stack([states[:, -1].float().cpu() for states in output.hidden_states], dim=1)


def image_shift(tower: Any, pixels: Tensor, masks: Tensor) -> Tensor:
    """Return the mean hidden states of masked versions of a picture minus its own, `[layers + 1, tokens, d]`.

    Args:
        tower: the CLIP tower.
        pixels: the picture, `[3, H, W]`.
        masks: the masked patches of each version, row by row, bool `[trials, patches]`.
    """

    def states(versions: Tensor) -> Tensor:
        hidden = tower(versions, output_hidden_states=True).hidden_states
        return torch.stack([each.float() for each in hidden])  # [layers + 1, n, tokens, d]

    clean = states(pixels[None])[:, 0]
    total = torch.zeros_like(clean)
    for start in range(0, len(masks), TOGETHER):
        versions = masked(pixels, masks[start : start + TOGETHER], tower.config.patch_size)
        total += states(versions).sum(dim=1)
    return (total / len(masks) - clean).to(pixels.dtype).cpu()


def masked(pixels: Tensor, masks: Tensor, patch: int) -> Tensor:
    """Return versions of a picture `[3, H, W]` with the picture's mean colour in masked patches, `[n, 3, H, W]`."""
    _, height, width = pixels.shape
    hidden = masks.view(-1, 1, height // patch, width // patch).to(pixels.device)
    hidden = hidden.repeat_interleave(patch, dim=2).repeat_interleave(patch, dim=3)  # [n, 1, H, W]
    mean = pixels.mean(dim=(1, 2), keepdim=True)  # [3, 1, 1]
    return torch.where(hidden, mean, pixels)


def draw_masks(patches: int, pictures: int) -> list[Tensor]:
    """Draw the masked patches of TRIALS versions of each picture, bool `[trials, patches]` each."""
    generator = torch.Generator().manual_seed(SEED)
    drawn = []
    for _ in range(pictures):
        masks = torch.zeros(TRIALS, patches, dtype=torch.bool)
        for mask in masks:
            order = torch.randperm(patches, generator=generator)
            mask[order[: int(MASKED * patches)]] = True
        drawn.append(masks)
    return drawn


def measure(lvlm: Lvlm, pairs: Sequence[CaptionPair], units: Units[Shift], batch_size: int = 1) -> Events:
    """Measure every picture, keep its shift in `units` by its number, and yield events."""
    lvlm.check_prompts((pair.prompt, pair.picture.label) for pair in pairs)
    named = {str(number): pair for number, pair in enumerate(pairs)}
    tower = find_tower(lvlm.model)
    masks: dict[str, Tensor] = {}
    if tower is not None:
        patches = (tower.config.image_size // tower.config.patch_size) ** 2
        masks = dict(zip(named, draw_masks(patches, len(pairs)), strict=True))
    pictures = [pair.picture.known(prompt=pair.prompt, id=name) for name, pair in named.items()]
    yield StageStarted("pictures", len(pairs))
    yield from run_stage(lvlm, MeasuredShifts(named, masks), pictures, units, batch_size)


def calibrate(lvlm: Lvlm, source: CaptionPairs, units: Units[Shift]) -> Calibration:
    """Return the calibration that `measure` found.

    Raises:
        PictureError: fewer than FEWEST pictures could be measured.
    """
    numbers = sorted(units, key=int)
    if len(numbers) < FEWEST:
        raise PictureError(f"no directions: {len(numbers)} pictures could be measured, of at least {FEWEST}")
    pairs = [source.pairs[int(number)] for number in numbers]
    shifts = [units[number] for number in numbers]
    made_from = {
        "pictures": len(shifts),
        "pictures_sha256": hash_of(pictures=sorted(shift.image_sha256 for shift in shifts)),
        "captions_sha256": hash_of(captions=[pair[1:] for pair in pairs]),
        "dtype": lvlm.dtype,
        "quantization": lvlm.quantization,
        **source.made_from,
    }
    tensors = {TEXT: text_directions(torch.stack([shift.text for shift in shifts]))}
    images = [shift.image for shift in shifts if shift.image is not None]
    if images:
        made_from |= {"masked": MASKED, "trials": TRIALS, "seed": SEED}
        tensors[IMAGE] = image_directions(images)
    stored = {name: F.normalize(tensor, dim=-1).half() for name, tensor in tensors.items()}
    return Calibration(Origin("vti", lvlm.preset.model, lvlm.revision, made_from, __version__), stored)


def text_directions(shifts: Tensor) -> Tensor:
    """Return the directions of decoder layers, `[L, d]`, from shifts `[n, L + 1, d]`: the embedding's is left out."""
    return direction(shifts.flatten(1)).view(shifts.shape[1:])[1:]


def image_directions(shifts: Sequence[Tensor]) -> Tensor:
    """Return the directions of the tower's layers and tokens, `[layers, tokens, d]`, from n of `[layers + 1, ...]`.

    As in the published code, which reshapes `[layers + 1, tokens, d]` to `[tokens, (layers + 1) d]`, a component is of
    layers + 1 rows that follow each other, token by token and layer by layer, not of one token in all layers.
    """
    layers, tokens, width = shifts[0].shape
    groups = [shift.reshape(tokens, layers * width) for shift in shifts]
    directions = []
    for number in range(tokens):
        rows = torch.stack([group[number] for group in groups])
        directions.append(direction(rows.float()))
    return torch.stack(directions).view(layers, tokens, width)[1:]


def direction(rows: Tensor) -> Tensor:
    """Return the mean of rows `[n, D]` plus their first principal component, a unit vector.

    Its sign is that with which the row of largest weight has a positive one.
    """
    mean = rows.double().mean(dim=0)
    apart = rows.double() - mean
    _, vectors = torch.linalg.eigh(apart @ apart.T)
    weights = vectors[:, -1]  # [n], of the largest singular value
    component = F.normalize(weights @ apart, dim=0)
    sign = weights[weights.abs().argmax()].sign()
    found: Tensor = mean + sign * component
    return found.float()


def summary(calibration: Calibration) -> Iterator[str]:
    """Yield the number of pictures and what is steered."""
    pictures = calibration.origin.made_from["pictures"]
    layers = len(calibration.tensors[TEXT])
    yield f"{pictures} pictures with a true and a hallucinated caption: directions of {layers} decoder layers"
    if IMAGE in calibration.tensors:
        layers, tokens, _ = calibration.tensors[IMAGE].shape
        yield f"and of {tokens} tokens in {layers} layers of the image tower"
    else:
        yield "the image tower is not steered: its tokens have no fixed places"
