"""`sira`: late layers that see no image beside those that do (`sira_cli.core.fork`), the default."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sira_cli.core.config import SiraConfig
from sira_cli.methods.base import Method

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Sira(Method):
    """(1 + alpha) z - alpha z', z' of late layers that see no image. Its settings are the preset's."""

    name = "sira"
    from_preset = ("k", "k_fraction", "alpha", "beta")

    def attach(
        self, model: Any, config: SiraConfig, prompts: Tensor, branch: Mapping[str, Tensor]
    ) -> AbstractContextManager[Any]:
        """As `sira_cli.attach`."""
        from sira_cli.core.fork import attach

        return attach(model, config)
