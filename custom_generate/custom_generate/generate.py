"""SIRA decoding for `model.generate(..., custom_generate=...)`; all of it is in the package sira-cli."""

from __future__ import annotations

from typing import Any

from sira_cli import SiraConfig, attach


def generate(model: Any, k: int | None = None, alpha: float = 0.5, beta: float | None = None, **arguments: Any) -> Any:
    """Generate as `model.generate` does, with SIRA: every token is picked from (1 + alpha) z_full - alpha z_cf.

    Args:
        model: a Hugging Face vision-language model with `sdpa` or `eager` attention.
        k: how many of the last layers cannot see the picture in the second stream; default: half of them.
        alpha: contrast strength; 0 is plain decoding.
        beta: plausibility cut-off; default: none, as in the paper.
        **arguments: of `model.generate`.

    Returns:
        What `model.generate` returns; `scores` are those of the contrast.

    Raises:
        SettingsError: k, alpha or beta is out of range.
        UnsupportedModelError: the model or the way of generating cannot be followed exactly.
        ImageTokenError: the prompt has no picture.
    """
    with attach(model, SiraConfig(k=k, alpha=alpha, beta=beta)):
        return model.generate(**arguments)
