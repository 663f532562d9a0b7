"""One prefill for every K equals a fork for each of them, on every family."""

from __future__ import annotations

import pytest
import torch

from sira_cli.config import SiraConfig
from sira_cli.errors import AttachError, ImageTokenError, SettingsError
from sira_cli.fork import attach
from sira_cli.sweep.forks import next_token
from tests import reference, tiny
from tests.helpers import generate_sira, hooks
from tests.test_identities import llava_prompts, qwen_prompts


def test_equals_a_fork_for_each_k_and_algorithm_1(family: tiny.Tiny):
    found = next_token(family.model, SiraConfig(), family.inputs, family.boundaries)
    assert set(found.cf) == set(family.boundaries)
    apart = []
    for k, z_cf in found.cf.items():
        _, (step,) = generate_sira(family.model, family.inputs, SiraConfig(k=k), max_new_tokens=1)
        torch.testing.assert_close(found.full, step.full, atol=1e-4, rtol=0)
        torch.testing.assert_close(z_cf, step.cf, atol=1e-4, rtol=0)
        expected = reference.counterfactual(family.model, family.inputs, family.image, k)
        torch.testing.assert_close(z_cf[0], expected, atol=1e-4, rtol=0)
        apart.append(z_cf)
    assert all((one - other).abs().max() > 0.01 for one, other in zip(apart, apart[1:], strict=False))
