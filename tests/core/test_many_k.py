"""One prefill for every K: equals a fork for each of them and Algorithm 1, on every family."""

from __future__ import annotations

import itertools

import pytest
import torch

from sira_cli.core import reference
from sira_cli.core.config import SiraConfig
from sira_cli.core.fork import attach
from sira_cli.core.passes import next_token
from sira_cli.errors import AttachError, ImageTokenError, SettingsError
from tests.support import tiny
from tests.support.helpers import generate_sira, hooks, left_pad
from tests.support.prompts import llava_prompts, qwen_prompts


def test_equals_algorithm_1_at_every_k(family: tiny.Tiny):
    found = next_token(family.model, SiraConfig(), family.inputs, family.boundaries)
    plain = family.model(**family.inputs, use_cache=False).logits[:, -1]
    torch.testing.assert_close(found.full, plain, atol=1e-5, rtol=0)
    assert set(found.cf) == set(family.boundaries)
    for k, z_cf in found.cf.items():
        expected = reference.counterfactual(family.model, family.inputs, family.image, k)
        torch.testing.assert_close(z_cf[0], expected, atol=1e-4, rtol=0)
    streams = [found.full, *found.cf.values()]
    assert all((one - other).abs().max() > 0.01 for one, other in itertools.pairwise(streams))


@pytest.mark.parametrize(
    ("make", "prompts"),
    [
        (tiny.llava, llava_prompts),
        (lambda: tiny.llava("eager"), llava_prompts),
        (lambda: tiny.qwen("2.5"), qwen_prompts),
    ],
    ids=["llava", "llava-eager", "qwen2.5-vl"],
)
def test_a_left_padded_batch_equals_a_fork_for_each_k_and_row(make, prompts):
    model, singles = make().model, prompts()
    found = next_token(model, SiraConfig(), left_pad(singles), [2, 5, 3, 2])
    assert list(found.cf) == [5, 3, 2]
    for k, z_cf in found.cf.items():
        for row, single in enumerate(singles):
            _, (step,) = generate_sira(model, single, SiraConfig(k=k), max_new_tokens=1)
            torch.testing.assert_close(found.full[row], step.full[0], atol=1e-5, rtol=0)
            torch.testing.assert_close(z_cf[row], step.cf[0], atol=1e-5, rtol=0)


def test_nothing_stays_on_the_model(llava: tiny.Tiny):
    llava.model(**llava.inputs)  # transformers puts hooks of its own on, once
    before = hooks(llava.model)
    next_token(llava.model, SiraConfig(), llava.inputs, [3])
    text = {name: llava.inputs[name][:, -5:] for name in ("input_ids", "attention_mask")}
    with pytest.raises(ImageTokenError):
        next_token(llava.model, SiraConfig(), text, [3])
    assert hooks(llava.model) == before


def test_what_a_fork_refuses(llava: tiny.Tiny):
    with pytest.raises(SettingsError, match=r"k = 6 is out of range"):
        next_token(llava.model, SiraConfig(), llava.inputs, [1, 6])
    with attach(llava.model), pytest.raises(AttachError):
        next_token(llava.model, SiraConfig(), llava.inputs, [1])
    qwen3 = tiny.FAMILIES["Qwen3-VL"]()
    with pytest.raises(SettingsError, match="DeepStack"):
        next_token(qwen3.model, SiraConfig(), qwen3.inputs, [1, 5])
