"""What a model returns about the rows of its late layers: the full stream's, in the shapes of a run without a fork."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from sira_cli.core.masks import Pass
from sira_cli.errors import UnsupportedModelError

OF_ALL_ROWS = ("output_hidden_states", "output_attentions")  # arguments that ask for something of every row
OF_TRAINING = "output_router_logits"


def asked(model: Any, kwargs: Mapping[str, Any], name: str) -> bool:
    """Return whether a call asks for an output: by its arguments, else by the config of the model or its text stack."""
    argument = kwargs.get(name)
    if argument is not None:
        return bool(argument)
    configs = model.config, model.config.get_text_config(decoder=True)
    return any(getattr(config, name, False) for config in configs)


def check_training(model: Any, kwargs: Mapping[str, Any]) -> None:
    """Refuse what only training asks for: losses of all rows, which would mix both streams."""
    if asked(model, kwargs, OF_TRAINING):
        raise UnsupportedModelError(
            f"{OF_TRAINING} makes the model compute a loss over the experts of all rows, which are those of two "
            f"streams inside `with attach(...)`: set {OF_TRAINING}=False, or leave the block"
        )


def show_full_stream(output: Any, now: Pass) -> None:
    """Leave only the full stream's rows in the hidden states of an output, `[B, q, d]` each, also of the last layer.

    Attention weights are the full stream's already.
    """
    states = getattr(output, "hidden_states", None)
    if states is not None:
        output.hidden_states = tuple(_of_full_stream(state, now) for state in states)


def _of_full_stream(state: Tensor | None, now: Pass) -> Tensor | None:
    """Return the full stream's part of one layer's hidden states; None stays: a layer that was not asked for."""
    if state is None:
        return None
    if state.shape[-2] == now.both_rows:  # a late layer's, or several per row [A, B, q + T, d]
        return state[..., : now.q, :]
    if len(state) == 2 * now.texts:  # of the final norm, [2B, 1, d]
        return state[: now.texts] if now.normed is None else now.normed
    return state  # of a shared layer
