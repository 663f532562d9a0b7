"""Teacher forcing under both streams: one prefill scores a whole given text.

    [ prompt | y_1 ... y_N-1 ]  ->  last N rows of each stream  ->  Norm, W_out  ->  z_full, z_cf of y_1 ... y_N

The forced tokens are text rows, so both streams hold them. The output head is applied to a few rows at a time: with a
vocabulary of 150,000 all logits of a long text would need more memory than the model's cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sira_cli.core.config import SiraConfig
from sira_cli.core.fork import Fork, attached
from sira_cli.core.forward_pass import Step
from sira_cli.core.rules import contrast
from sira_cli.core.upstream import next_inputs
from sira_cli.errors import UnsupportedModelError

ROWS = 16  # rows of each stream that go through the head at once


@torch.no_grad()
def score(model: nn.Module, config: SiraConfig, inputs: Any, texts: Sequence[Sequence[int]]) -> Iterator[Step]:
    """Yield the logits of both streams at every token of given texts.

    Args:
        model: as for `attach`.
        config: settings of SIRA.
        inputs: the processor's output for B pictures and prompts, left-padded, on the model's device.
        texts: B texts of at least one token id each; N is the length of the longest.

    Yields:
        N times the logits `[B, V]` that decide a token. The ends of the texts are aligned: text b takes part in the
        last `len(texts[b])` steps.

    Raises:
        ValueError: a text has no tokens, or there is not one text per prompt.
        UnsupportedModelError: the model does something unknown after its head.
        SiraError: as `attach`.
    """
    longest = max(map(len, texts))
    if len(texts) != len(inputs["input_ids"]) or min(map(len, texts)) == 0:
        raise ValueError(f"expected {len(inputs['input_ids'])} texts with tokens, one per prompt")
    rows: list[Tensor] = []
    steps: list[Step] = []
    with attached(Fork(model, config, steps.append, last_rows=longest)) as streams:
        keep_rows = streams.norm.register_forward_hook(lambda norm, args, output: rows.append(output))
        try:
            model(**followed(model, inputs, [text[:-1] for text in texts]), use_cache=False, logits_to_keep=1)
        finally:
            keep_rows.remove()
    (normed,), (last,) = rows, steps  # [2B, N, d]
    device = last.full.device  # that of the inputs; the head may be on another
    head = _head(model, normed[:, -1:], torch.cat([last.full, last.cf])[:, None])
    for start in range(0, longest, ROWS):
        z_full, z_cf = head(normed[:, start : start + ROWS]).to(device).chunk(2)  # [B, ROWS, V]
        z_cd = contrast(z_full, z_cf, config.alpha)
        for row in range(z_full.shape[1]):
            yield Step(z_full[:, row], z_cf[:, row], z_cd[:, row])


def followed(model: Any, inputs: Any, texts: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """Append the tokens of a text to each prompt, as one left-padded batch."""
    ids: Tensor = inputs["input_ids"]  # [B, S]
    longest = max(map(len, texts))  # N
    extended: dict[str, Tensor] = {**inputs, "attention_mask": inputs.get("attention_mask", torch.ones_like(ids))}
    for _ in range(longest):  # by the model's own rule, token by token: families differ in token types
        extended = next_inputs(model, {}, extended)
    per_token = [name for name, value in inputs.items() if value.shape == ids.shape]
    extended["input_ids"] = torch.cat([ids, ids.new_zeros(len(ids), longest)], dim=1)  # [B, S + N]
    for name in {*per_token, "attention_mask"}:
        tensor = extended[name].clone()
        for row, text in enumerate(texts):
            missing = longest - len(text)
            tensor[row] = tensor[row].roll(missing)
            tensor[row, :missing] = 0  # padding
            if name == "input_ids" and text:
                tensor[row, -len(text) :] = tensor.new_tensor(text)
        extended[name] = tensor
    return extended


def _head(model: Any, normed: Tensor, theirs: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the head of a model after its norm, `[2B, n, d]` -> float32 `[2B, n, V]`, as found by its own logits.

    It is a linear head, with a soft cap or without: PaliGemma 2 leaves the cap of its config out until transformers
    5.22.
    """
    linear = model.get_output_embeddings()
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None) or math.inf

    def plain(rows: Tensor) -> Tensor:
        logits: Tensor = linear(rows).float()
        return logits

    def capped(rows: Tensor) -> Tensor:
        return cap * torch.tanh(plain(rows) / cap)

    heads = (plain,) if math.isinf(cap) else (capped, plain)
    differences = [float((head(normed).to(theirs.device) - theirs).abs().max()) for head in heads]
    if min(differences) > 0.02 * float(theirs.abs().max()) + 1e-3:
        raise UnsupportedModelError(
            "the model does more after its final norm than a linear head and a soft cap: "
            "texts cannot be forced on it; trace generated texts instead"
        )
    return heads[differences.index(min(differences))]
