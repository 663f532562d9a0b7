"""Choosing among given answers: their probabilities in all three views, by teacher forcing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sira_cli.core.forcing import score
from sira_cli.core.forward_pass import VIEWS
from sira_cli.errors import SettingsError
from sira_cli.methods import require
from sira_cli.methods.base import Ability
from sira_cli.models.model import AnsweringModel
from sira_cli.models.texts import Answer


def choose(lvlm: AnsweringModel, inputs: Any, choices: Sequence[str]) -> list[Answer]:
    """Pick the likeliest given answer to each row of prepared inputs, under the contrast (greedy: the full stream)."""
    require(lvlm.decoder, Ability.TRACES, "choosing among given answers")
    inputs = lvlm.to_device(inputs)
    image_tokens, prompt_tokens = lvlm.lengths(inputs)
    tokens = [lvlm.vocabulary.encode_after(inputs["input_ids"][0].tolist(), choice) for choice in choices]
    if len(choices) < 2 or not all(tokens):
        raise SettingsError(f"choices {', '.join(choices)!r}: expected two or more answers, such as Yes,No")
    if len({*map(tuple, tokens)}) < len(tokens):
        raise SettingsError(f"choices {', '.join(choices)!r}: two of them are the same tokens; give each answer once")
    sums = torch.stack([torch.stack(_logprobs(lvlm, inputs, ids)) for ids in tokens])  # [C, 3, B]
    shares = sums.softmax(dim=0)
    best = sums[:, 2].argmax(dim=0).tolist()
    return [
        Answer(
            text=choices[best[row]],
            finish_reason="stop",
            image_tokens=image_tokens[row],
            prompt_tokens=prompt_tokens[row],
            output_tokens=len(tokens[best[row]]),
            choices=[
                {
                    "choice": choice,
                    "logprob": dict(zip(VIEWS, sums[number, :, row].tolist(), strict=True)),
                    "probability": dict(zip(VIEWS, shares[number, :, row].tolist(), strict=True)),
                }
                for number, choice in enumerate(choices)
            ],
        )
        for row in range(len(image_tokens))
    ]


def _logprobs(lvlm: AnsweringModel, inputs: Any, tokens: list[int]) -> list[torch.Tensor]:
    """Return the log probability of one text after each of B prompts, `[B]` in each of the three views."""
    steps = list(
        zip(tokens, score(lvlm.model, lvlm.both_streams, inputs, [tokens] * len(inputs["input_ids"])), strict=True)
    )
    return [
        sum((getattr(step, view).log_softmax(dim=-1)[:, token] for token, step in steps), torch.zeros(()))
        for view in VIEWS
    ]
