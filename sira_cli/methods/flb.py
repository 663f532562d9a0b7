"""`flb`: First Logit Boosting, the first token's logits added to every later one (Ha et al. 2026, arXiv:2604.00455)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sira_cli.core.config import SiraConfig
from sira_cli.core.rules import plausible
from sira_cli.errors import UnsupportedModelError
from sira_cli.methods.base import Ability, Inputs, Method
from sira_cli.methods.settings import setting

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Flb(Method):
    """z_t + gamma (1 - exp(-growth t)) z_0, then APC; t = 0 at the first new token, as in its authors' code."""

    name = "flb"
    abilities = frozenset({Ability.BATCHES, Ability.SAMPLING})
    gamma: float = setting(0.3, "largest weight of the first token's logits", low=0)
    growth: float = setting(0.05, "growth of that weight from token to token", low=0)
    beta: float = setting(0.1, "plausibility cut-off", low=0, high=1, above_low=True)

    @contextmanager
    def attach(self, model: Any, config: SiraConfig, prompts: Tensor, branch: Inputs) -> Iterator[None]:
        """Put a hook after the model, which keeps the first logits of the running prompts."""
        from sira_cli.core.arguments import cache_of
        from sira_cli.core.families import find_backbone
        from sira_cli.core.hooks import attached_hooks

        first: list[Tensor] = []  # [B, V] of the running prompts
        prompt = 0  # columns

        def boost(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            nonlocal prompt
            cache = cache_of(args, kwargs)
            if cache is None:
                raise UnsupportedModelError(
                    "method flb needs a cache, to tell a prompt from a step: leave out use_cache=False"
                )
            z, columns = output.logits[:, -1].float(), int(cache.get_seq_length())  # [B, V]
            if columns == (args[0] if args else kwargs["input_ids"]).shape[1]:  # nothing came before these rows
                first[:], prompt = [z], columns
            weight = self.gamma * (1 - math.exp(-self.growth * (columns - prompt)))
            output.logits = plausible(z + weight * first[0], z, self.beta)[:, None]  # [B, 1, V]
            return output

        with attached_hooks(model, find_backbone(model).norm) as handles:
            handles.append(model.register_forward_hook(boost, with_kwargs=True))
            yield
