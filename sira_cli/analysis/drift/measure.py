"""How far counterfactual references stray from the full stream: the paper's Figure 4, for any model.

The paper (Section "Alignment of the Internal Counterfactual Reference") compares the CF stream with the
model on a blurred and on a patch-shuffled picture. It prints no formula for drift; here it is, after each
decoder layer and at the last prompt position, from which the next token is predicted,

    drift(i) = 1 - cos(h_full^i, h_ref^i),  i = 1..L

and the next-token KL is KL(p_full || p_ref) in nats. Up to h^b, b = L - K, the CF stream equals the full one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from sira_cli.core.config import SiraConfig
from sira_cli.core.families import find_backbone
from sira_cli.core.fork import attach
from sira_cli.core.forward_pass import Step
from sira_cli.core.rules import kl_divergence
from sira_cli.errors import PictureError, SiraError
from sira_cli.methods import require
from sira_cli.methods.base import Ability
from sira_cli.models.inputs.processors import refusing
from sira_cli.pictures.names import one_line
from sira_cli.pictures.perturb import Perturbations, blur, shuffle_patches
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.sources import PictureSource, open_picture
from sira_cli.run.lvlm import Lvlm

REFERENCES = ("cf", "blur", "shuffle")


@dataclass(frozen=True)
class LastRow:
    """The model's values at the last prompt position: float32, on the CPU.

    Attributes:
        hidden: `[L, d]`, h^1..h^L, the outputs of the decoder layers (before the final norm).
        logits: `[V]`.
    """

    hidden: Tensor
    logits: Tensor


@dataclass(frozen=True)
class Divergence:
    """One reference against the full stream, for one picture and prompt.

    Attributes:
        drift: `[L]`, 1 - cosine similarity after each decoder layer, 0 to 2.
        kl: KL(full || reference) of the next token, in nats.
    """

    drift: tuple[float, ...]
    kl: float


def measure_drift(
    lvlm: Lvlm, source: PictureSource, prompt: str, perturbations: Perturbations | None = None
) -> dict[str, Divergence]:
    """Compare each of `REFERENCES` with the full stream, for one picture: three prefills."""
    require(lvlm.decoder, Ability.TRACES, "drift")
    how = perturbations or Perturbations()
    lvlm.check_prompt(prompt)
    picture = open_picture(source)
    name, (width, height) = one_line(picture.name), picture.image.size
    if min(width, height) < how.patches:
        raise PictureError(
            f"{name}: {width} x {height} pixels cannot be cut into {how.patches} x {how.patches} patches: ask for fewer"
        )

    def rows(image: Image.Image) -> tuple[LastRow, LastRow]:
        with refusing(picture.name):
            inputs = lvlm.prepare([image], [prompt])
        return last_rows(lvlm.model, lvlm.to_device(inputs), lvlm.sira)

    image = picture.image
    full, cf = rows(image)
    blurred, _ = rows(blur(image, how.blur))
    shuffled, _ = rows(shuffle_patches(image, how.patches, how.seed))
    found = dict(zip(REFERENCES, (diverge(full, reference) for reference in (cf, blurred, shuffled)), strict=True))
    if not all(math.isfinite(value) for each in found.values() for value in (*each.drift, each.kl)):
        raise PictureError(f"{name}: the model computes numbers out of range of {lvlm.model.dtype}: try another dtype")
    return found


def measure_each(
    lvlm: Lvlm, pictures: Iterable[Picture], prompt: str, perturbations: Perturbations | None = None
) -> Iterator[tuple[Picture, dict[str, Divergence] | PictureError]]:
    """Yield every picture with the result of `measure_drift`, or with its error; the others go on."""
    for picture in pictures:
        try:
            yield picture, measure_drift(lvlm, picture, prompt, perturbations)
        except PictureError as error:
            yield picture, error
        except SiraError:
            raise
        except Exception as error:
            reason = (str(error).splitlines() or [""])[0]
            yield picture, PictureError(f"{picture.shown}: {type(error).__name__}: {reason}")


@torch.no_grad()
def last_rows(model: nn.Module, inputs: Mapping[str, Any], config: SiraConfig) -> tuple[LastRow, LastRow]:
    """Return the last row of the full and of the CF stream, from one prefill of one prompt."""
    q = inputs["input_ids"].shape[1]
    full: list[Tensor] = []
    cf: list[Tensor] = []

    def keep(layer: nn.Module, args: tuple[Any, ...], hidden: Tensor) -> None:
        # Layers 0..b-1 give [1, q, d], so that both are the same row; the late ones [1, q + T, d] (see fork.py).
        full.append(hidden[0, q - 1].float().cpu())
        cf.append(hidden[0, -1].float().cpu())

    steps: list[Step] = []
    handles: list[torch.utils.hooks.RemovableHandle] = []
    with attach(model, config, on_step=steps.append):
        try:
            for layer in find_backbone(model).decoder_layers:
                handles.append(layer.register_forward_hook(keep))
            model(**inputs, use_cache=False)
        finally:
            for handle in handles:
                handle.remove()
    (step,) = steps
    return LastRow(torch.stack(full), step.full[0].cpu()), LastRow(torch.stack(cf), step.cf[0].cpu())


def diverge(full: LastRow, reference: LastRow) -> Divergence:
    """Return drift after every layer, and next-token KL."""
    drift = cosine_distance(full.hidden, reference.hidden)
    log_p, log_q = (row.logits.float().log_softmax(-1) for row in (full, reference))  # [V]
    return Divergence(tuple(drift.tolist()), float(kl_divergence(log_p, log_q)))


def cosine_distance(full: Tensor, reference: Tensor) -> Tensor:
    """Return 1 - cosine similarity of rows, `[L, d]`, `[L, d]` -> `[L]`, in float32.

    It is computed as half the squared distance of the rows at length 1. That is the same number, exactly 0 for equal
    rows, never negative, and small angles lose no digits.
    """
    apart = F.normalize(full.float(), dim=-1) - F.normalize(reference.float(), dim=-1)  # [L, d]
    return apart.square().sum(dim=-1) / 2
