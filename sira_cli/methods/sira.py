"""`sira`: a contrast with late layers that cannot see the image (`sira_cli.core.fork`), the default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sira_cli.core.config import SiraConfig
from sira_cli.methods.base import Ability, Decoding, Inputs, Method

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Sira(Method):
    """(1 + alpha) z - alpha z', z' from late layers that see no image. Its settings are the preset's."""

    name = "sira"
    abilities = frozenset(Ability)
    rewinds = True
    from_preset = ("k", "k_fraction", "alpha", "beta")

    def contrast_strength(self, config: SiraConfig) -> float:
        """Return the preset's alpha."""
        return config.alpha

    def fork_config(self, config: SiraConfig) -> SiraConfig:
        """Return the preset's settings."""
        return config

    def attach(self, model: Any, config: SiraConfig, prompts: Tensor, branch: Inputs) -> Decoding:
        """Fork as `sira_cli.attach` does."""
        from sira_cli.core.fork import attach

        return attach(model, config)
