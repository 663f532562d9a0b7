"""`greedy`: the model as it is."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sira_cli.core.config import SiraConfig
from sira_cli.methods.base import Method

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Greedy(Method):
    """z. With word scores the preset's K says where the CF stream forks, which has no part in the choice."""

    name = "greedy"
    from_preset = ("k", "k_fraction")

    def attach(
        self, model: Any, config: SiraConfig, prompts: Tensor, branch: Mapping[str, Tensor]
    ) -> AbstractContextManager[Any]:
        """Nothing is attached."""
        return nullcontext()
