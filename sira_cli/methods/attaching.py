"""`sira_cli.attach`: decode a model of one's own with any method, inside plain `generate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sira_cli.core import fork
from sira_cli.core.config import SiraConfig
from sira_cli.errors import SettingsError
from sira_cli.methods import find, require
from sira_cli.methods.base import Ability, Method, TwoPasses

if TYPE_CHECKING:
    from sira_cli.core.forward_pass import OnStep
    from sira_cli.methods.prompts import Prompt, Shown


@contextmanager
def attach(
    model: Any,
    config: SiraConfig | None = None,
    *,
    method: str | Method = "sira",
    inputs: Mapping[str, Tensor] | None = None,
    seed: int = 0,
    on_step: OnStep | None = None,
    **settings: Any,
) -> Iterator[Any]:
    """Decode `model` with a method inside this context: every `model.generate(...)` picks by its rule.

    Only hooks are used; at the end, also after an error, the model is as before. What SIRA does in detail, and what
    else it raises, stands at `sira_cli.core.fork.attach`.

    Args:
        model: a Hugging Face LVLM with `sdpa` or `eager` attention.
        config: K, alpha and the image tokens of SIRA; default K = L / 2, alpha = 0.5.
        method: a name of `sira_cli.methods.METHODS`, or a method.
        inputs: what the processor made of the prompts that `generate` will get, B in number; for methods whose
            contrast stream is a pass of its own (`vcd`, `text-only`, `m3id`).
        seed: of the noise, for `vcd`.
        on_step: called once per generated token with the logits of both streams; for `sira` and `greedy`.
        **settings: of the method, such as noise_step; K and alpha of SIRA belong to `config`.

    Yields:
        What the method decodes with; for SIRA the `Fork`.

    Raises:
        SettingsError: the method has no such setting, or needs `inputs` or a processor.
        UnsupportedModelError: the model, its cache or the way of generating cannot be followed exactly.
        AttachError: the model is attached already.
    """
    decoder = (find(method) if isinstance(method, str) else method).with_values(**settings)
    config = config or SiraConfig()
    if type(decoder).attach is Method.attach:
        raise SettingsError(f"method {decoder.name} has a search of its own: use `load` instead of `attach`")
    context: AbstractContextManager[Any]
    if on_step is not None:
        require(decoder, Ability.TRACES, "on_step")
        context = fork.attach(model, decoder.fork_config(config), on_step=on_step)
    elif isinstance(decoder, TwoPasses):
        if inputs is None:
            raise SettingsError(f"method {decoder.name} prepares its contrast stream from the prompts: give `inputs`")
        maker = _ModelAlone(model, config)
        seeds = [seed + row for row in range(len(inputs["input_ids"]))]
        branch = decoder.branch_inputs(maker, [], [], inputs, seeds)
        context = decoder.attach(model, config, inputs["input_ids"], branch)
    else:
        prompts = torch.empty(0) if inputs is None else inputs["input_ids"]
        context = decoder.attach(model, config, prompts, {})
    with context as decoding:
        yield decoding


class _ModelAlone:
    """A `PromptMaker` that has no processor."""

    def __init__(self, model: Any, config: SiraConfig) -> None:
        self.model = model
        self.find_image = config.image_tokens.resolve(model.config).find

    def chat_inputs(
        self, images: Sequence[Shown], prompts: Sequence[Prompt], *, system: str = ""
    ) -> Mapping[str, Tensor]:
        """Refuse: only a processor can word a prompt anew."""
        raise SettingsError(
            "this method words the prompt anew, which needs the processor: use `load` instead of `attach`"
        )
