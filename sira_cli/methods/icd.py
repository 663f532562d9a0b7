"""`icd`: a contrast with a disturbing instruction (Wang et al. 2024, arXiv:2403.18715)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sira_cli.methods.base import CutContrast, PromptBatch
from sira_cli.methods.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

# One of the five disturbances that the authors published.
ROLE = "You are a confused objects detector to provide a fuzzy overview or impression of the image."


@dataclass(frozen=True)
class Icd(CutContrast):
    """(1 + alpha) z - alpha z' with APC; z' from the same picture and question, with a disturbing instruction."""

    name = "icd"
    # the system message, instead of the template's own; before the prompt if the template has no system message
    role: str = setting(ROLE, "instruction of the contrast stream")

    def branch_inputs(self, batch: PromptBatch) -> dict[str, Tensor]:
        """Return the inputs of the same pictures and prompts under the instruction `role`."""
        return dict(batch.maker.chat_inputs(batch.images, batch.prompts, system=self.role))
