"""`pai`: attention to the image raised, and a contrast with the text alone (Liu et al. 2024, arXiv:2407.21771)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sira_cli.core.config import SiraConfig
from sira_cli.core.rules import plausible
from sira_cli.methods.base import Inputs
from sira_cli.methods.settings import setting
from sira_cli.methods.text_only import WithoutImage

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Pai(WithoutImage):
    """gamma (log p - log p') + log p' with APC; p' from the prompt without its image.

    In the passes of p, the newest row's attention scores a of image tokens become a + raise |a|, before the softmax, in
    every layer from `first_layer` on (LALBJ/PAI, attention.py and CFG.py).
    """

    name = "pai"
    raised: float = setting(0.2, "share by which attention scores of image tokens are raised", low=0)
    first_layer: int = setting(2, "first layer whose attention is raised", low=0)
    gamma: float = setting(1.1, "strength of the contrast with the text alone; 1: none", low=0)
    beta: float = setting(0.1, "plausibility cut-off", low=0, high=1, above_low=True)

    def rule(self, z: Tensor, z_contrast: Tensor, step: int) -> Tensor:
        """Contrast log-probabilities, then cut off."""
        log_p = z.log_softmax(dim=-1)
        log_q = z_contrast.log_softmax(dim=-1)
        return plausible(self.gamma * (log_p - log_q) + log_q, log_p, self.beta)

    def check_model(self, model: Any, config: SiraConfig) -> None:
        """Check that each layer attends to columns of its own."""
        from sira_cli.core.families import check_columns

        check_columns(model, "method pai")

    @contextmanager
    def attach(self, model: Any, config: SiraConfig, prompts: Tensor, branch: Inputs) -> Iterator[Any]:
        """Run a second pass, and raise attention in the first."""
        from sira_cli.core.attention import attend_by
        from sira_cli.core.families import find_backbone
        from sira_cli.methods.second_pass import second_pass

        self.check_model(model, config)
        image = config.image_tokens.resolve(model.config).find(prompts)  # [B, S]
        modules = [mixer.module for mixer in find_backbone(model).mixers[self.first_layer :]]
        with second_pass(model, prompts, branch, self.rule) as passes:
            raised = attend_by(modules, lambda module, attend: functools.partial(self._attend, attend, image, passes))
            try:
                yield passes
            finally:
                raised.remove()

    def _attend(
        self,
        attend: Any,
        image: Tensor,
        passes: Any,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        **kwargs: Any,
    ) -> tuple[Tensor, Any]:
        """Attend as the module does, but for the last row `[B, H, 1, D]` of a first pass."""
        import torch
        from torch.nn import functional as F

        if passes.is_second or query.shape[2] not in (1, image.shape[1]):  # the second pass refuses other rows
            return attend(module, query, key, value, mask, **kwargs)  # type: ignore[no-any-return]
        last = query[:, :, -1:]
        columns = key.shape[2]
        keys = key.repeat_interleave(last.shape[1] // key.shape[1], dim=1)  # [B, H, kv, D]
        scaling = kwargs.get("scaling") or last.shape[-1] ** -0.5
        scores = (last @ keys.mT).float() * scaling  # [B, H, 1, kv]
        cap = kwargs.get("softcap")
        if cap:
            scores = cap * torch.tanh(scores / cap)
        new = passes.steps if query.shape[2] == 1 else 0  # tokens after the prompt
        seen = F.pad(image, (0, new))[:, -columns:].to(scores.device)  # [B, kv]; a window has the newest only
        bias = (self.raised * scores.abs() * seen[:, None, None]).to(query.dtype)
        if mask is not None:
            rows = mask[:, :, -1:, -columns:]
            if rows.dtype == torch.bool:
                rows = torch.zeros_like(bias).masked_fill(~rows, torch.finfo(bias.dtype).min)
            bias = bias + rows
        raised, weights = attend(module, last, key, value, bias, **kwargs)  # [B, 1, H, D]
        if query.shape[2] == 1:
            return raised, weights
        output, weights = attend(module, query, key, value, mask, **kwargs)  # [B, q, H, D]
        return torch.cat([output[:, :-1], raised], dim=1), weights
