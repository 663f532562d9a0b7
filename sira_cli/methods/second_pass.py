"""A contrast stream that is a second pass of the model: other inputs, the same new tokens.

    the prompt     model(own inputs)    -> z     into the cache of `generate`
                   model(branch inputs) -> z'    into the branch's own cache
    a new token    model(token)         -> z     with the model's own mask and positions
                   model(token)         -> z'    with the branch's own; `generate` gets rule(z, z', t)

The second pass runs in a hook after the first, through the model's own generation functions: its masks, positions
and token types are those of a generation from the branch's inputs alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from sira_cli.core.arguments import CACHE, Args, Kwargs, cache_of
from sira_cli.core.families import find_backbone, position_state, positions_kept
from sira_cli.core.hooks import attached_hooks
from sira_cli.core.upstream import last_logits_only, next_inputs, position_ids
from sira_cli.errors import AttachError, SettingsError, UnsupportedModelError

Rule = Callable[[Tensor, Tensor, int], Tensor]
Within = Callable[[], AbstractContextManager[None]]


@contextmanager
def second_pass(
    model: Any, prompts: Tensor, branch: Mapping[str, Tensor], rule: Rule, *, within: Within = nullcontext
) -> Iterator[SecondPass]:
    """Replace the model's logits inside this context by a rule for those of two passes.

    Args:
        model: a Hugging Face LVLM.
        prompts: `[B, S]` ids that `generate` will get.
        branch: inputs of the B contrast prompts, left-padded, on the model's device: `input_ids` and `attention_mask`
            `[B, S']`, pixels, ...
        rule: from z `[B, V]`, z' `[B, V]`, float32, and t, 1 at the first token, to the scores `[B, V]`.
        within: makes the context in which each pass of the contrast stream runs.

    Yields:
        The contrast stream: its `cache`, and its `steps` so far.

    Raises:
        SettingsError: the branch has no ids or no mask.
        UnsupportedModelError: in a pass, if the prompts are others, or several tokens come at once.
        AttachError: the model is attached already, or its cache was filled outside.
    """
    backbone = find_backbone(model)
    passes = SecondPass(model, prompts, branch, rule, within)
    with attached_hooks(model, backbone.norm) as handles:
        handles.append(model.register_forward_hook(passes._after, with_kwargs=True))
        yield passes


class SecondPass:
    """The contrast branch of B running prompts, made by `second_pass`."""

    def __init__(
        self,
        model: Any,
        prompts: Tensor,
        branch: Mapping[str, Tensor],
        rule: Rule,
        within: Within,
    ) -> None:
        if not {"input_ids", "attention_mask"} <= branch.keys():
            raise SettingsError("the contrast branch has no input_ids and attention_mask: `Lvlm.prepare` makes them")
        self.cache: DynamicCache | None = None  # keys and values of the branch, never those of the full stream
        self.steps = 0  # passes since the prompt: the t of the rule
        self._model = model
        self._prompts = prompts
        self._branch = dict(branch)
        self._rule = rule
        self._within = within
        self._position_state = position_state(model)
        self.is_second = False  # True while the second pass runs, which calls the same hook

    def _after(self, model: Any, args: Args, kwargs: Kwargs, output: Any) -> Any:
        """After the first pass: run the second, and replace the first one's logits with the rule's."""
        if self.is_second:
            return output
        if not hasattr(output, "logits"):
            raise UnsupportedModelError("the model returned a tuple: call it with return_dict=True")
        ids = kwargs.get("input_ids", args[0] if args else None)
        if ids is None:
            raise UnsupportedModelError("the model was called without input_ids: pass them instead of inputs_embeds")
        cache = cache_of(args, kwargs)
        seen = 0 if cache is None else cache.get_seq_length() - ids.shape[1]
        if seen == 0:
            check_prompts(ids, self._prompts)
        elif ids.shape[1] != 1:
            raise UnsupportedModelError(
                f"{ids.shape[1]} new tokens arrived on a cache that already holds {seen}: chunked prefill, assisted "
                "generation and continued conversations are not supported with a contrast branch"
            )
        elif self.cache is None or seen != self._prompts.shape[1] + self.steps - 1:
            raise AttachError(
                f"{CACHE} was filled outside this block, so the contrast branch does not know its tokens: "
                f"generate from the whole prompt, without {CACHE}"
            )
        self.is_second = True
        try:
            with positions_kept(self._position_state), self._within():
                z_contrast = self._prompt() if seen == 0 else self._step(ids)  # [B, V]
        finally:
            self.is_second = False
        z = output.logits[:, -1].float()  # [B, V]
        output.logits = self._rule(z, z_contrast.to(z.device), self.steps)[:, None]  # [B, 1, V]
        return output

    def _prompt(self) -> Tensor:
        """Run the branch's prompts into a new cache, and return z' `[B, V]`."""
        model = self._model
        self.cache = DynamicCache(config=model.config)
        self.steps = 0
        more: dict[str, Any] = {name: value for name, value in self._branch.items() if name != "input_ids"}
        self._ids = self._branch["input_ids"]  # [B, S']
        if "position_ids" in inspect.signature(model.forward).parameters:
            more["position_ids"] = position_ids(model, self._ids, more)
        if bool(more["attention_mask"].all()):
            del more["attention_mask"]  # as `generate` does: cheaper masks
        more |= last_logits_only(model)
        self._kwargs: dict[str, Any] = {**more, CACHE: self.cache, "use_cache": True}
        return self._forward(None)

    def _step(self, tokens: Tensor) -> Tensor:
        """Run the same new tokens `[B, 1]` through the branch, and return z' `[B, V]`."""
        self._ids = torch.cat([self._ids, tokens.to(self._ids.device)], dim=1)
        return self._forward(1)

    def _forward(self, new: int | None) -> Tensor:
        model = self._model
        inputs = model.prepare_inputs_for_generation(
            self._ids, next_sequence_length=new, is_first_iteration=new is None, **self._kwargs
        )
        output = model(**inputs, return_dict=True)
        self._kwargs = next_inputs(model, output, self._kwargs)
        self.steps += 1
        z: Tensor = output.logits[:, -1].float()
        return z


def check_prompts(ids: Tensor, prompts: Tensor) -> None:
    """Check that the model was called with the prompts that a second pass was prepared for."""
    if ids.shape != prompts.shape or not torch.equal(ids, prompts.to(ids.device)):
        raise UnsupportedModelError(
            f"the model was called with prompts {tuple(ids.shape)} that are not the {tuple(prompts.shape)} "
            "which the contrast branch was prepared for: beams, several returned sequences, use_cache=False "
            "and chunked prefill are not supported"
        )
