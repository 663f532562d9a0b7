"""`vaf`: attention to the image raised in middle layers (ClearSight, Yin et al. 2025, arXiv:2503.13107)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sira_cli.core.config import SiraConfig
from sira_cli.errors import UnsupportedModelError
from sira_cli.methods.base import Inputs, Method, like_layers
from sira_cli.methods.settings import setting

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from sira_cli.core.arguments import Args, Kwargs

MIDDLE = (9, 15)  # the layers 9 to 14 of LLaVA-1.5-7B's 32


@dataclass(frozen=True)
class Vaf(Method):
    """Scores of attention multiplied in middle layers, before the softmax, in every row after the image.

    Scores of image tokens are multiplied by `enhance`, those of the tokens before the image by `suppress`
    (ustc-hyin/ClearSight, visaug/inference). A score is linear in its key, so keys are multiplied.
    """

    name = "vaf"
    enhance: float = setting(1.15, "factor on attention scores of image tokens", low=0)
    suppress: float = setting(0.95, "factor on attention scores of the tokens before the image", low=0)

    def check_model(self, model: Any, config: SiraConfig) -> None:
        """Check that each layer attends to columns of its own."""
        from sira_cli.core.families import check_columns

        check_columns(model, "method vaf")

    @contextmanager
    def attach(self, model: Any, config: SiraConfig, prompts: Tensor, branch: Inputs) -> Iterator[None]:
        """Let middle layers attend with other keys, and find the image when a prompt arrives."""
        from sira_cli.core.attention import attend_by
        from sira_cli.core.families import find_backbone
        from sira_cli.core.hooks import attached_hooks

        self.check_model(model, config)
        backbone = find_backbone(model)
        prompt = _Prompt(config.image_tokens.resolve(model.config).find)
        mixers = backbone.mixers
        middle = [mixers[number].module for number in like_layers(MIDDLE, len(mixers))]
        with attached_hooks(model, backbone.norm) as handles:
            handles.append(model.register_forward_pre_hook(prompt.follow, with_kwargs=True))
            handles.append(attend_by(middle, lambda module, attend: functools.partial(self._attend, attend, prompt)))
            yield

    def _attend(
        self,
        attend: Callable[..., Any],
        prompt: _Prompt,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        **kwargs: Any,
    ) -> tuple[Tensor, Any]:
        """Attend as the module does, with multiplied keys in the rows after the image."""
        import torch

        if key.device not in prompt.factors:  # the layers of a pass share them
            prompt.factors[key.device] = self._factors(prompt).to(key)
        factors = prompt.factors[key.device][:, :, -key.shape[2] :]  # a sliding window has the newest only
        scaled = key * factors  # [B, H, kv, D]
        changed, weights = attend(module, query, scaled, value, mask, **kwargs)  # [B, q, H, D]
        if query.shape[2] == 1:
            return changed, weights
        plain, weights = attend(module, query, key, value, mask, **kwargs)
        after = prompt.after[:, :, None, None].to(plain.device)  # [B, q, 1, 1]
        return torch.where(after, changed, plain), weights

    def _factors(self, prompt: _Prompt) -> Tensor:
        """Return the factor of each token so far, float32 `[B, 1, S + new, 1]`."""
        import torch
        from torch.nn import functional as F

        factors = torch.ones(prompt.image.shape)  # [B, S]
        factors[prompt.image] = self.enhance
        factors[prompt.before] = self.suppress
        return F.pad(factors, (0, prompt.new), value=1.0)[:, None, :, None]


@dataclass
class _Prompt:
    """Where the image is in the prompts of this pass and of the passes before it."""

    find: Callable[[Tensor], Tensor]  # [B, S] ids -> bool [B, S]
    image: Tensor = field(init=False)  # bool [B, S], on the CPU
    before: Tensor = field(init=False)  # bool [B, S]: tokens before the first image token
    after: Tensor = field(init=False)  # bool [B, S]: tokens after the last one
    new: int = 0  # tokens after the prompt
    factors: dict[Any, Tensor] = field(default_factory=dict)  # of this pass, [B, 1, S + new, 1], by device

    def follow(self, model: Any, args: Args, kwargs: Kwargs) -> None:
        """Read a prompt, or count a new token; a hook before the model."""
        from sira_cli.core.arguments import cache_of

        ids = kwargs.get("input_ids", args[0] if args else None)
        if ids is None:
            raise UnsupportedModelError("method vaf finds the image in the prompt's ids: give input_ids")
        self.factors.clear()
        cache = cache_of(args, kwargs)
        if cache is None or not cache.get_seq_length():
            self.image = self.find(ids.cpu())
            seen = self.image.cumsum(dim=1)
            self.before = seen == 0
            self.after = (seen == seen[:, -1:]) & ~self.image & (seen > 0)
            self.new = 0
        elif ids.shape[1] == 1:
            self.new += 1
        else:
            raise UnsupportedModelError(
                f"{ids.shape[1]} new tokens arrived on a filled cache: method vaf does not follow chunked prefill, "
                "assisted generation and continued conversations"
            )
