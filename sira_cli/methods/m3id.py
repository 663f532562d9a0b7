"""`m3id`: the image's part in each token, amplified as the text grows (Favero et al. 2024, arXiv:2403.14003)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sira_cli.core.config import check_range
from sira_cli.core.rules import plausible
from sira_cli.methods.base import TwoPasses
from sira_cli.methods.text_only import without_image

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from sira_cli.models.lvlm import Lvlm

LARGEST = 80.0  # of decay t: e^88 is more than float32 holds


@dataclass(frozen=True)
class M3id(TwoPasses):
    """l + ((1 - g_t) / g_t) (l - l'), g_t = exp(-decay t), of log-softmaxes l and l' without the image; then APC.

    Args:
        decay: how fast the contrast grows from token to token; 0: never.
        beta: plausibility cut-off.
    """

    name = "m3id"
    decay: float = 0.02
    beta: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("decay of method m3id", self.decay, 0.0)

    def branch_inputs(
        self, lvlm: Lvlm, images: Sequence[Image.Image], prompts: Sequence[str], inputs: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """As `text-only`."""
        return without_image(inputs, lvlm.find_image(inputs["input_ids"]))

    def rule(self, z: Tensor, z_contrast: Tensor, step: int) -> Tensor:
        """(1 - g) / g = exp(decay t) - 1."""
        strength = math.expm1(min(self.decay * step, LARGEST))
        full, contrast = z.log_softmax(dim=-1), z_contrast.log_softmax(dim=-1)
        return plausible(full + strength * (full - contrast), z, self.beta)
