"""`greedy+apc`: the cut-off of contrastive methods without their contrast, as a control for sampling."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sira_cli.core.config import SiraConfig
from sira_cli.core.rules import plausible
from sira_cli.methods.base import Inputs, Method
from sira_cli.methods.settings import setting

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class GreedyApc(Method):
    """z without implausible tokens. It differs from `greedy` only with sampling, beams or logits processors."""

    name = "greedy+apc"
    rewinds = True
    beta: float = setting(0.1, "plausibility cut-off", low=0, high=1, above_low=True)

    @contextmanager
    def attach(self, model: Any, config: SiraConfig, prompts: Tensor, branch: Inputs) -> Iterator[None]:
        """Put a hook after the model."""
        from sira_cli.core.families import find_backbone
        from sira_cli.core.hooks import attached_hooks

        def cut(model: Any, args: Any, output: Any) -> Any:
            z = output.logits[:, -1].float()  # [B, V]
            output.logits = plausible(z, z, self.beta)[:, None]  # [B, 1, V]
            return output

        with attached_hooks(model, find_backbone(model).norm) as handles:
            handles.append(model.register_forward_hook(cut))
            yield
