"""Layers whose texts leave more or less behind than columns of their own: recurrent states, shared keys."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

from sira_cli.core.cache import cut_back
from sira_cli.core.config import SiraConfig
from sira_cli.core.fork import attach
from sira_cli.core.many_k import next_token
from sira_cli.core.prefix import ImagePrefix
from sira_cli.errors import UnsupportedModelError
from sira_cli.methods import METHODS
from tests.support import reference, tiny
from tests.support.decoding import case_of
from tests.support.helpers import generate, generate_sira, left_pad
from tests.support.prompts import family_prompts

NAMES = ("Qwen3.5", "LFM2-VL", "Gemma 4 E")


@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize("name", NAMES)
def test_a_left_padded_batch_equals_its_single_runs(name: str, k: int):
    """Padding decays no state, and fillers of the CF stream do not either."""
    model = case_of(name).model
    singles = family_prompts(name, case_of(name), 3)
    batch, batch_steps = generate_sira(model, left_pad(singles), SiraConfig(k=k))
    for row, single in enumerate(singles):
        tokens, steps = generate_sira(model, single, SiraConfig(k=k))
        assert batch[row].tolist() == tokens[0].tolist()
        for one, other in zip(batch_steps, steps, strict=True):
            torch.testing.assert_close(one.full[row], other.full[0], atol=1e-4, rtol=0)
            torch.testing.assert_close(one.cf[row], other.cf[0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_static_caches_are_refused(name: str):
    case = case_of(name)
    with pytest.raises(UnsupportedModelError, match=tiny.NO_COLUMNS[name]), attach(case.model, SiraConfig(k=3)):
        generate(case.model, case.inputs, cache_implementation="static")


@pytest.mark.parametrize("method", ["opera", "sid"])
@pytest.mark.parametrize("name", NAMES)
def test_methods_that_need_columns_are_refused(name: str, method: str):
    with pytest.raises(UnsupportedModelError, match=f"cannot be used with method {method}: every layer"):
        METHODS[method].check_model(case_of(name).model, SiraConfig())


@pytest.mark.parametrize("name", NAMES)
def test_many_values_of_k_in_one_pass(name: str):
    case = case_of(name)
    found = next_token(case.model, SiraConfig(), case.inputs, [1, 2, 4, 5])
    for k, logits in found.cf.items():
        expected = reference.counterfactual(case.model, case.inputs, case.image, k)
        torch.testing.assert_close(logits[0], expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_many_values_of_k_in_a_padded_batch(name: str):
    singles = family_prompts(name, case_of(name), 3)
    found = next_token(case_of(name).model, SiraConfig(), left_pad(singles), [1, 5])
    for row, single in enumerate(singles):
        image = single["input_ids"] == tiny.IMAGE
        for k, logits in found.cf.items():
            expected = reference.counterfactual(case_of(name).model, single, image, k)
            torch.testing.assert_close(logits[row], expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_tails_after_one_picture(name: str):
    """A state that several texts go on from is copied for each."""
    case = case_of(name)
    first = int(case.image[0].nonzero().max()) + 1
    tails = [[5, 6, 7], [8], [9, 10]]
    found = ImagePrefix(case.model, case.inputs, first).last_logits(tails)
    for tail, logits in zip(tails, found, strict=True):
        inputs = {
            name: value[:, :first] if value.shape == case.inputs["input_ids"].shape else value
            for name, value in case.inputs.items()
        }
        for token in tail:
            inputs = reference.extend(inputs, token, case.grown)
        with torch.no_grad():
            expected = case.model(**inputs, use_cache=False).logits[0, -1].float()
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def test_a_state_has_no_columns_to_cut_back_to():
    case = case_of("Qwen3.5")
    cache = DynamicCache(config=case.model.config.get_text_config(decoder=True))
    with attach(case.model, SiraConfig(k=3)):
        generate(case.model, case.inputs, past_key_values=cache)
    assert cut_back(cache, torch.tensor([0]), 20) is None
