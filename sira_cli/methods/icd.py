"""`icd`: a contrast with a disturbing instruction (Wang et al. 2024, arXiv:2403.18715)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sira_cli.core.rules import contrast, plausible
from sira_cli.methods.base import TwoPasses

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from sira_cli.models.lvlm import Lvlm

# One of the five that were published.
ROLE = "You are a confused objects detector to provide a fuzzy overview or impression of the image."


@dataclass(frozen=True)
class Icd(TwoPasses):
    """(1 + alpha) z - alpha z' with APC; z' of the same picture and question, asked of a confused model.

    Args:
        alpha: contrast strength.
        beta: plausibility cut-off.
        role: what the contrast stream is told to be: as the system's message where the chat template has
            such, in place of its default one, else in front of the prompt.
    """

    name = "icd"
    alpha: float = 1.0
    beta: float = 0.1
    role: str = ROLE

    def branch_inputs(
        self, lvlm: Lvlm, images: Sequence[Image.Image], prompts: Sequence[str], inputs: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """The same pictures and prompts with the role."""
        from sira_cli.models.processors import chat_inputs

        return dict(chat_inputs(lvlm.processor, lvlm.model.config.model_type, images, prompts, system=self.role))

    def rule(self, z: Tensor, z_contrast: Tensor, step: int) -> Tensor:
        """The rule of VCD."""
        return plausible(contrast(z, z_contrast, self.alpha), z, self.beta)
