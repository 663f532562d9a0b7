"""Algorithm 1 implemented directly and slowly: the reference for `sira_cli.core.fork`, also on the user's machine.

No cache and no packing: at each step the whole sequence runs twice, once unchanged and once with the
S x S mask M^cf of Eq. 2 in layers b..L-1, where rows and columns of image positions are set to a large
negative value. Layers, norm and head are the model's own. It shares no code with the fork.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sira_cli.core.arguments import Args, Kwargs


@dataclass(frozen=True)
class Prompt:
    """A model and one unpadded prompt for it."""

    model: Any
    inputs: Mapping[str, Tensor]  # input_ids [1, S], attention_mask [1, S], pixels, ...
    image: Tensor  # P_img, bool [1, S]
    grown: Mapping[str, int] = field(default_factory=dict)  # what inputs with one entry per token get for new tokens
    silent: Sequence[int] = ()  # tokens that are never generated: a generated image token would count as text


@dataclass(frozen=True)
class Reference:
    """`tokens [T]`; `full`, `cf` float32 `[T, V]`."""

    tokens: list[int]
    full: Tensor
    cf: Tensor


@torch.no_grad()
def decode(
    prompt: Prompt,
    k: int,
    alpha: float,
    steps: int,
    follow: Sequence[int] | None = None,
    beta: float | None = None,
) -> Reference:
    """Decode T = `steps` tokens with greedy Algorithm 1.

    Args:
        prompt: the model and a prompt.
        k, alpha, beta: K, the contrast strength, and the cut-off (None: none).
        steps: T.
        follow: a text of at least T - 1 tokens to follow instead of the likeliest tokens.
    """
    inputs = dict(prompt.inputs)
    image = prompt.image
    tokens: list[int] = []
    full: list[Tensor] = []
    cf: list[Tensor] = []
    for step in range(steps):
        z_full = prompt.model(**inputs, use_cache=False).logits[0, -1].float()
        z_cf = counterfactual(prompt.model, inputs, image, k)
        z_cd = (1 + alpha) * z_full - alpha * z_cf
        if beta is not None:
            z_cd[z_full < z_full.max() + math.log(beta)] = -torch.inf
        z_cd[list(prompt.silent)] = -torch.inf
        tokens.append(int(z_cd.argmax()))
        full.append(z_full)
        cf.append(z_cf)
        if step + 1 < steps:
            inputs = extend(inputs, tokens[-1] if follow is None else follow[step], prompt.grown)
            image = F.pad(image, (0, 1), value=False)  # generated tokens are text
    return Reference(tokens, torch.stack(full), torch.stack(cf))


def counterfactual(model: Any, inputs: Mapping[str, Tensor], image: Tensor, k: int) -> Tensor:
    """z_cf of the last row, `[V]`: layers b..L-1 under M^cf; image rows neither write nor read recurrent states."""

    def mask_image(layer: Any, args: Args, kwargs: Kwargs) -> Any:
        hidden = args[0]
        causal = kwargs["attention_mask"]
        size = hidden.shape[-2]
        if causal is None:
            causal = torch.ones(size, size, dtype=torch.bool, device=hidden.device).tril()[None, None]
        if causal.dtype == torch.bool:
            causal = torch.where(causal, 0.0, torch.finfo(hidden.dtype).min).to(hidden.dtype)
        here = image.to(causal.device)
        blocked = here[:, None, :, None] | here[:, None, None, :]  # rows q and columns k in P_img
        masked = causal.masked_fill(blocked, torch.finfo(hidden.dtype).min)
        return args, {**kwargs, "attention_mask": masked}

    text = (~image[0]).nonzero().flatten()  # [T]

    def take_text(state: Any, args: Args, kwargs: Kwargs) -> Any:
        hidden = kwargs["hidden_states"]
        return args, {**kwargs, "hidden_states": hidden[:, text.to(hidden.device)]}

    def put_back(state: Any, args: Args, output: Tensor) -> Tensor:
        rows = output.new_zeros(1, image.shape[1], output.shape[2])
        rows[:, text.to(rows.device)] = output  # image rows get nothing from the state, and nothing reads them
        return rows

    decoder = model.get_decoder()
    layers = decoder.layers if hasattr(decoder, "layers") else decoder.model.layers
    handles: list[Any] = []
    try:
        for layer in layers[len(layers) - k :]:
            state = getattr(layer, "linear_attn", None) or getattr(layer, "conv", None)
            if state is None:
                handles.append(layer.register_forward_pre_hook(mask_image, with_kwargs=True))
            else:
                handles.append(state.register_forward_pre_hook(take_text, with_kwargs=True))
                handles.append(state.register_forward_hook(put_back))
        logits: Tensor = model(**inputs, use_cache=False).logits
    finally:
        for handle in handles:
            handle.remove()
    return logits[0, -1].float()


def extend(inputs: Mapping[str, Tensor], token: int, grown: Mapping[str, int]) -> dict[str, Tensor]:
    """Return the same inputs with one more generated token."""
    longer = dict(inputs)
    longer["input_ids"] = F.pad(inputs["input_ids"], (0, 1), value=token)
    longer["attention_mask"] = F.pad(inputs["attention_mask"], (0, 1), value=1)
    for name, value in grown.items():
        longer[name] = F.pad(inputs[name], (0, 1), value=value)
    return longer
