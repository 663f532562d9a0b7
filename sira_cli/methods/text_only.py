"""`text-only`: a contrast with the prompt without its image, as a control for SIRA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sira_cli.core.rules import contrast
from sira_cli.methods.base import TwoPasses

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from sira_cli.models.lvlm import Lvlm


@dataclass(frozen=True)
class TextOnly(TwoPasses):
    """SIRA's rule, (1 + alpha) z - alpha z', with z' of a model that never saw the image.

    The image's placeholders are deleted and the positions behind them close up. Markers around them are
    text, as for SIRA, and stay.
    """

    name = "text-only"
    alpha: float = 0.5

    def branch_inputs(
        self, lvlm: Lvlm, images: Sequence[Image.Image], prompts: Sequence[str], inputs: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """The prompts without image tokens."""
        return without_image(inputs, lvlm.find_image(inputs["input_ids"]))

    def rule(self, z: Tensor, z_contrast: Tensor, step: int) -> Tensor:
        """SIRA's, without a cut-off."""
        return contrast(z, z_contrast, self.alpha)


def without_image(inputs: Mapping[str, Tensor], image: Tensor) -> dict[str, Tensor]:
    """The prompts without the positions `image [B, S]`, left-padded anew; what belongs to the picture is left out."""
    from sira_cli.core.masks import text_rows

    ids = inputs["input_ids"]  # [B, S]
    rows, live = text_rows(image, inputs["attention_mask"].bool())  # [B, T], [B, T]
    per_token = {name: value.gather(1, rows) for name, value in inputs.items() if value.shape == ids.shape}
    return {**per_token, "attention_mask": live.to(inputs["attention_mask"].dtype)}
