"""`greedy`: the unchanged model."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sira_cli.core.config import SiraConfig
from sira_cli.methods.base import Ability, Decoding, Inputs, Method

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Greedy(Method):
    """z. In traces and word scores a CF stream forks at the preset's K; it has no part in the choice."""

    name = "greedy"
    abilities = frozenset(Ability)
    rewinds = True
    from_preset = ("k", "k_fraction")
    observes = True

    def fork_config(self, config: SiraConfig) -> SiraConfig:
        """Return the preset's settings without a contrast."""
        return replace(config, alpha=0.0)

    def attach(self, model: Any, config: SiraConfig, prompts: Tensor, branch: Inputs) -> Decoding:
        """Attach nothing."""
        return nullcontext()
