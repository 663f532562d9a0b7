"""`text-only`: a contrast with the prompt without its image, as a control for SIRA."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sira_cli.core.rules import contrast
from sira_cli.methods.base import PromptBatch, TwoPasses
from sira_cli.methods.settings import setting

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class WithoutImage(TwoPasses):
    """A method whose second pass runs on the prompt without its image."""

    def branch_inputs(self, batch: PromptBatch) -> dict[str, Tensor]:
        """Delete the image tokens from the prompts."""
        return without_image(batch.inputs, batch.image_tokens)


@dataclass(frozen=True)
class TextOnly(WithoutImage):
    """SIRA's rule, (1 + alpha) z - alpha z', with z' from a prompt without the image.

    The image's placeholders are deleted and later positions move up. Markers around them are text, as for SIRA, and
    stay.
    """

    name = "text-only"
    alpha: float = setting(0.5, "contrast strength", low=0)

    def rule(self, z: Tensor, z_contrast: Tensor, step: int) -> Tensor:
        """Return SIRA's contrast, without a cut-off."""
        return contrast(z, z_contrast, self.alpha)


def without_image(inputs: Mapping[str, Tensor], image: Tensor) -> dict[str, Tensor]:
    """Return the prompts without the positions `image [B, S]`, left-padded again, and without the picture itself."""
    from sira_cli.core.masks import text_rows

    ids = inputs["input_ids"]  # [B, S]
    rows, live = text_rows(image, inputs["attention_mask"].bool())  # [B, T], [B, T]
    per_token = {name: value.gather(1, rows) for name, value in inputs.items() if value.shape == ids.shape}
    return {**per_token, "attention_mask": live.to(inputs["attention_mask"].dtype)}
