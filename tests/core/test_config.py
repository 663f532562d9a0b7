from __future__ import annotations

import pytest

from sira_cli.core.config import SiraConfig
from sira_cli.errors import SettingsError


@pytest.mark.parametrize(
    ("config", "layers", "k"),
    [
        (SiraConfig(), 28, 14),  # the paper: K = 14 of 28 on Qwen2.5-VL-7B
        (SiraConfig(), 32, 16),  # and 16 of 32 on LLaVA-1.5-7B
        (SiraConfig(k=1), 28, 1),
        (SiraConfig(k=27), 28, 27),
        (SiraConfig(k_fraction=0.25), 30, 7),
        (SiraConfig(k_fraction=0.01), 30, 1),
        (SiraConfig(), 5, 2),
    ],
)
def test_layers_after_the_fork(config: SiraConfig, layers: int, k: int):
    assert config.layers_after_fork(layers) == k


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 0}, "k must be a whole number of layers, at least 1; got 0"),
        ({"k": 2.0}, "got 2.0"),
        ({"k": True}, "got True"),
        ({"k": 3, "k_fraction": 0.5}, "k or k_fraction, not both"),
        ({"k_fraction": 1.0}, "k_fraction must be between 0 and 1, ends excluded; got 1.0"),
        ({"alpha": -0.1}, "alpha must be 0 or more; got -0.1"),
        ({"alpha": float("nan")}, "alpha must be a number 0 or more; got nan"),
        ({"alpha": 10**400}, "alpha must be a number 0 or more"),
        ({"alpha": "0.5"}, "got '0.5'"),
        ({"beta": 1.1}, "beta must be between 0 and 1; got 1.1"),
        ({"beta": 0}, "beta must be above 0; leave it out"),
        ({"image_tokens": 5}, "image_tokens must be an ImageTokens rule; got 5"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(SettingsError, match=message):
        SiraConfig(**settings)


@pytest.mark.parametrize("layers", [28, 14])
def test_k_out_of_range_names_the_range(layers: int):
    with pytest.raises(SettingsError, match=rf"L = {layers} decoder layers, so k must be 1..{layers - 1} "):
        SiraConfig(k=28).layers_after_fork(layers)
