"""`sid`: a contrast with the image tokens that matter least (Huo et al. 2025, arXiv:2408.02032)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from sira_cli.core.config import SiraConfig
from sira_cli.methods.base import Method
from sira_cli.methods.settings import setting

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Sid(Method):
    """(1 + alpha) z - alpha z' with APC; from layer 2 on z' sees only the least attended image tokens.

    Args:
        alpha: contrast strength.
        beta: plausibility cut-off.
        visible: how many image tokens the contrast stream sees; None: 50 for captions, 100 for questions, as its
            authors have it.
    """

    name = "sid"
    alpha: float = setting(0.5, "contrast strength", low=0)
    beta: float = setting(0.1, "plausibility cut-off", low=0, high=1, above_low=True)
    visible: int | None = setting(
        None, "image tokens that the contrast stream sees (none: 50, for questions 100)", kind=int, low=0, optional=True
    )

    def for_task(self, task: str) -> Self:
        """Fill in how many image tokens the authors leave visible for such texts."""
        return self if self.visible is not None else replace(self, visible=50 if task == "caption" else 100)

    def attach(
        self, model: Any, config: SiraConfig, prompts: Tensor, branch: Mapping[str, Tensor]
    ) -> AbstractContextManager[Any]:
        """Fork at layer 2 (`sira_cli.methods.sid_fork`)."""
        from sira_cli.methods.sid_fork import attach_sid

        visible = self.for_task("caption").visible
        return attach_sid(model, config.image_tokens, alpha=self.alpha, beta=self.beta, visible=visible or 0)
