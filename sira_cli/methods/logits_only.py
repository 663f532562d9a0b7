"""Methods whose rule needs nothing but logits: those of this step, and of earlier steps of the same text."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from sira_cli.core.config import SiraConfig
from sira_cli.errors import AttachError, UnsupportedModelError
from sira_cli.methods.base import Ability, Inputs, Method

if TYPE_CHECKING:
    from torch import Tensor

    from sira_cli.core.arguments import Args, Kwargs


@dataclass(frozen=True)
class LogitsOnly(Method):
    """A hook after the model; in vLLM, a logits processor. Subclasses define the rule, and how many steps it needs."""

    abilities = frozenset({Ability.BATCHES, Ability.SAMPLING})
    first_steps: ClassVar[int | None] = None  # whose logits are kept; None: of all steps

    def rule(self, z: Tensor, earlier: Sequence[Tensor], step: int) -> Tensor:
        """Return the scores from which the next token of each text is picked, after processors and sampling.

        Args:
            z: `[B, V]` logits of this step, in float32.
            earlier: the same of the first `first_steps` steps of these texts, or of all; empty at the first token.
            step: t, number of tokens of these texts so far: 0 at the first one.

        Returns:
            `[B, V]` float32; -inf at tokens that must not be picked.
        """
        raise NotImplementedError

    @contextmanager
    def attach(self, model: Any, config: SiraConfig, prompts: Tensor, branch: Inputs) -> Iterator[None]:
        """Put a hook after the model, which keeps logits of the running prompts."""
        from sira_cli.core.families import find_backbone
        from sira_cli.core.hooks import attached_hooks

        with attached_hooks(model, find_backbone(model).norm) as handles:
            handles.append(self._hooked(model))
            yield

    def _hooked(self, model: Any) -> Any:
        from sira_cli.core.arguments import cache_of

        earlier: list[Tensor] = []  # [B, V] each, of the running prompts
        prompt = 0  # columns
        filled: weakref.ref[Any] | None = None  # the cache that it filled

        def decide(model: Any, args: Args, kwargs: Kwargs, output: Any) -> Any:
            nonlocal prompt, filled
            cache = cache_of(args, kwargs)
            if cache is None:
                raise UnsupportedModelError(
                    f"method {self.name} needs a cache, to tell a prompt from a step: leave out use_cache=False"
                )
            z = output.logits[:, -1].float()  # [B, V]
            columns = int(cache.get_seq_length())
            ids = args[0] if args else kwargs["input_ids"]
            if columns == ids.shape[1]:  # nothing came before these rows
                earlier.clear()
                prompt = columns
                filled = weakref.ref(cache)
                cache.reorder_cache = refuse_beams
            elif filled is None or filled() is not cache:
                raise AttachError("the cache was filled outside of this context: call `generate` without it, inside")
            output.logits = self.rule(z, earlier, columns - prompt)[:, None]  # [B, 1, V]
            self.keep(earlier, z)
            return output

        def refuse_beams(*args: Any) -> None:
            raise UnsupportedModelError(f"method {self.name} follows one text per row: leave out num_beams")

        return model.register_forward_hook(decide, with_kwargs=True)

    def keep(self, earlier: list[Tensor], z: Tensor) -> None:
        """Add a step's logits, if the rule needs them later."""
        if self.first_steps is None or len(earlier) < self.first_steps:
            earlier.append(z)


@dataclass(frozen=True)
class AfterSira(LogitsOnly):
    """The same rule with SIRA's z_cd in the place of z. K and alpha are the preset's."""

    from_preset = ("k", "k_fraction", "alpha")

    def contrast_strength(self, config: SiraConfig) -> float:
        """Return the preset's alpha."""
        return config.alpha

    @contextmanager
    def attach(self, model: Any, config: SiraConfig, prompts: Tensor, branch: Inputs) -> Iterator[None]:
        """Fork as `sira` does, without a cut-off of its own, and put the hook after it."""
        from sira_cli.core import fork

        with fork.attach(model, replace(config, beta=None)):
            handle = self._hooked(model)
            try:
                yield
            finally:
                handle.remove()
