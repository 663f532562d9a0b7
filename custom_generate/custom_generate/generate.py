"""SIRA decoding for `model.generate(..., custom_generate=...)`; all of it is in the package sira-cli."""

from __future__ import annotations

from typing import Any

from sira_cli import SettingsError, SiraConfig, attach


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
        AttachError: another thread generates with the same model: one after the other, or together as one batch.
        SettingsError: k, alpha or beta is out of range, or an argument is unknown.
        UnsupportedModelError: the model or the way of generating cannot be followed exactly.
        ImageTokenError: the prompt has no picture.
    """
    with attach(model, SiraConfig(k=k, alpha=alpha, beta=beta)):
        try:
            return model.generate(**arguments)
        except ValueError as error:
            if "`model_kwargs` are not used" not in str(error):
                raise
            raise SettingsError(f"{error}: the settings of SIRA are k, alpha and beta") from error
