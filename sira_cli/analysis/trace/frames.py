"""Which frame of a clip a token hangs on: its logit, less the one where the late layers do not see that frame.

A given text is forced once per frame, with a CF stream that holds all rows but the frame's.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sira_cli.core.config import SiraConfig
from sira_cli.core.forcing import score
from sira_cli.core.fork import Fork
from sira_cli.core.masks import text_rows
from sira_cli.errors import PictureSettingsError, UnsupportedModelError
from sira_cli.methods.base import PromptBatch
from sira_cli.methods.temporal import frames_of_tokens
from sira_cli.models.recording import RecordingModel
from sira_cli.pictures.clip import Still


class _WithoutFrame(Fork):
    def __init__(self, *args: Any, hidden: Tensor, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._hidden = hidden  # [1, S]

    def choose_cf_rows(self, image: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Choose all rows but those of the frame; the text comes after the prompt."""
        return text_rows(functional.pad(self._hidden, (0, image.shape[1] - self._hidden.shape[1])), valid)


def frame_deltas(
    model: Any, config: SiraConfig, inputs: Any, tokens: Sequence[int], frame: Tensor
) -> list[list[float]]:
    """Return the logit of each token, less that in late layers that miss one frame, for each frame.

    Args:
        model, config: as for `score`.
        inputs: of one prompt, on the model's device.
        tokens: N tokens of a text about it.
        frame: of each position, -1 for text, `[1, S]`.

    Returns:
        N rows with a number for each frame.
    """
    columns, frame = [], frame.to(inputs["input_ids"].device)
    for number in range(int(frame.max()) + 1):
        fork = functools.partial(_WithoutFrame, hidden=frame == number)
        steps = score(model, config, inputs, [tokens], fork)
        views = zip(tokens, steps, strict=True)
        columns.append([float(step.full[0, token] - step.cf[0, token]) for token, step in views])
    return [list(row) for row in zip(*columns, strict=True)]


def deltas_of_clip(
    lvlm: RecordingModel, shown: Still, prompt: str, inputs: Any, tokens: Sequence[int]
) -> list[list[float]] | None:
    """Return `frame_deltas` of a text about a clip; None where its frames cannot be told apart.

    Args:
        lvlm: the model.
        shown: the clip.
        prompt: that the text answers.
        inputs: of both, on the model's device.
        tokens: of the text.
    """
    try:
        frame = frames_of_tokens(PromptBatch(lvlm, inputs, [0], [shown], [prompt]))
        with torch.no_grad():
            deltas = frame_deltas(lvlm.model, lvlm.both_streams, inputs, tokens, frame)
    except (PictureSettingsError, UnsupportedModelError):
        return None
    return [[round(delta, 5) for delta in row] for row in deltas]
