"""`sira_cli.attach`: decode your own model with any method, inside plain `generate`."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sira_cli.core import fork
from sira_cli.core.config import SiraConfig
from sira_cli.core.reusable import reusable
from sira_cli.errors import GenerationSettingsWarning, SettingsError
from sira_cli.methods import find, require
from sira_cli.methods.base import Ability, Method, PromptBatch, TwoPasses

if TYPE_CHECKING:
    from sira_cli.core.streams import OnStep
    from sira_cli.methods.prompts import Prompt, Shown

# Settings that can make `generate` pick another token than the one with the largest logit, each with its neutral value.
_GREEDY: dict[str, Any] = {"do_sample": False, "num_beams": 1, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0}
_GREEDY |= {"encoder_repetition_penalty": 1.0, "encoder_no_repeat_ngram_size": 0, "min_length": 0}
_GREEDY |= dict.fromkeys(("min_new_tokens", "guidance_scale", "penalty_alpha", "dola_layers", "bad_words_ids"))
_GREEDY |= dict.fromkeys(("sequence_bias", "suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id"))
_GREEDY |= dict.fromkeys(("forced_eos_token_id", "exponential_decay_length_penalty"))
_OF_SAMPLING = ("temperature", "top_k", "top_p", "min_p")


@reusable
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

    Only hooks are used; at the end, also after an error, the model is as before. `sira_cli.core.fork.attach`
    documents SIRA in detail, and its other errors. `generate` obeys the checkpoint's generation settings unless its
    arguments override them; where these settings pick other tokens than greedy decoding, a
    `GenerationSettingsWarning` names them, once.

    Args:
        model: a Hugging Face LVLM with `sdpa` or `eager` attention.
        config: K, alpha and the image tokens of SIRA; default K = L / 2, alpha = 0.5.
        method: a name of `sira_cli.methods.METHODS`, or a method.
        inputs: the processor's output for the B prompts that `generate` will get; for methods whose contrast stream
            is a pass of its own (`vcd`, `text-only`, `m3id`).
        seed: seed of the noise, for `vcd`; each prompt draws its own from it, as if alone.
        on_step: called once per generated token with the logits of both streams; for `sira` and `greedy`.
        **settings: settings of the method, such as noise_step; K and alpha of SIRA belong in `config`.

    Yields:
        The method's decoding object; for SIRA the `Fork`.

    Raises:
        SettingsError: the method has no such setting, or needs `inputs` or a processor.
        UnsupportedModelError: the model, its cache or the way of generating cannot be followed exactly.
        AttachError: the model is attached already.
    """
    decoder = find(method).with_values(**settings)
    config = config or SiraConfig()
    if type(decoder).attach is Method.attach:
        raise SettingsError(f"method {decoder.name} has a search of its own: use `load` instead of `attach`")
    _warn_of_settings(model)
    context: AbstractContextManager[Any]
    if on_step is not None:
        require(decoder, Ability.TRACES, "on_step")
        context = fork.attach(model, decoder.fork_config(config), on_step=on_step)
    elif isinstance(decoder, TwoPasses):
        if inputs is None:
            raise SettingsError(f"method {decoder.name} prepares its contrast stream from the prompts: give `inputs`")
        seeds = [seed] * len(inputs["input_ids"])  # a row's noise is that of its prompt alone
        branch = decoder.branch_inputs(PromptBatch(_ModelAlone(model, config), inputs, seeds))
        context = decoder.attach(model, config, inputs["input_ids"], branch)
    else:
        prompts = torch.empty(0) if inputs is None else inputs["input_ids"]
        context = decoder.attach(model, config, prompts, {})
    with context as decoding:
        yield decoding


def _warn_of_settings(model: Any) -> None:
    """Warn if the checkpoint's generation settings pick other tokens than greedy decoding."""
    obeyed_settings = obeyed(getattr(model, "generation_config", None))
    if not obeyed_settings:
        return
    settings = ", ".join(f"{name}={value!r}" for name, value in obeyed_settings.items())
    arguments = ", ".join(f"{name}={_GREEDY[name]!r}" for name in obeyed_settings if name in _GREEDY)
    _warn_once(
        f"{getattr(model, 'name_or_path', '') or type(model).__name__}: its generation_config sets {settings}, and "
        f"`generate` obeys it. For the greedy text of the method pass {arguments}"
    )


def obeyed(generation: Any) -> dict[str, Any]:
    """Return the settings that make plain `generate` pick other tokens than greedy decoding, with their values."""
    values = {name: getattr(generation, name, None) for name in (*_GREEDY, *_OF_SAMPLING)}
    named = [name for name in _GREEDY if values[name] not in (None, _GREEDY[name])]
    if values["top_k"] == 1 and "do_sample" in named:
        named.remove("do_sample")  # Qwen2-VL: one token is left to draw from, the largest
    sampling = [name for name in _OF_SAMPLING if "do_sample" in named and values[name] is not None]
    return {name: values[name] for name in (*named, *sampling)}


@functools.cache  # Python's own `once` forgets whenever the filters change, as in torch
def _warn_once(text: str) -> None:
    # The 6 levels: this, its caller, `attach`, contextlib, `Reusable`, and the line with `with attach(...)`.
    warnings.warn(text, GenerationSettingsWarning, stacklevel=6)


class _ModelAlone:
    """A `PromptMaker` that has no processor."""

    def __init__(self, model: Any, config: SiraConfig) -> None:
        self.model = model
        self.find_image = config.image_tokens.resolve(model.config).find

    def chat_inputs(
        self, images: Sequence[Shown], prompts: Sequence[Prompt], *, system: str | None = None
    ) -> Mapping[str, Tensor]:
        """Refuse: only a processor can build a new prompt."""
        raise SettingsError(
            "this method rewrites the prompt, which needs the processor: use `load` instead of `attach`"
        )
