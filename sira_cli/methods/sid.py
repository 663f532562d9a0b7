"""`sid`: a contrast with the image tokens that matter least (Huo et al. 2025, arXiv:2408.02032)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from sira_cli.core.config import SiraConfig
from sira_cli.errors import SettingsError
from sira_cli.methods.base import Method

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Sid(Method):
    """(1 + alpha) z - alpha z' with APC; z' sees, from layer 2 on, only the least attended image tokens.

    Args:
        alpha: contrast strength.
        beta: plausibility cut-off.
        visible: how many image tokens the contrast stream sees; None: 50 for captions, 100 for questions.
    """

    name = "sid"
    alpha: float = 0.5
    beta: float = 0.1
    visible: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        count = self.visible
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 0):
            raise SettingsError(f"visible of method sid must be a number of image tokens; got {count!r}")

    def for_task(self, task: str) -> Self:
        """With as many visible image tokens as the authors leave for such texts."""
        return self if self.visible is not None else replace(self, visible=50 if task == "caption" else 100)

    def attach(
        self, model: Any, config: SiraConfig, prompts: Tensor, branch: Mapping[str, Tensor]
    ) -> AbstractContextManager[Any]:
        """A fork at layer 2 (`sira_cli.methods.sid_fork`)."""
        from sira_cli.methods.sid_fork import attach_sid

        visible = self.for_task("caption").visible
        return attach_sid(model, config.image_tokens, alpha=self.alpha, beta=self.beta, visible=visible or 0)
