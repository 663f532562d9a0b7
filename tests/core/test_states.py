"""Layers whose texts leave more or less behind than columns of their own: recurrent states, shared keys."""

from __future__ import annotations

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import DynamicCache

from sira_cli.core import reference
from sira_cli.core.arguments import CACHE
from sira_cli.core.cache import cut_back
from sira_cli.core.config import SiraConfig
from sira_cli.core.families import find_backbone
from sira_cli.core.fork import attach
from sira_cli.core.passes import next_token
from sira_cli.errors import AttachError, UnsupportedModelError
from sira_cli.methods import METHODS
from tests.support import tiny
from tests.support.decoding import case_of
from tests.support.helpers import generate, generate_sira, hooks, left_pad
from tests.support.prompts import family_prompts

NAMES = ("Qwen3.5", "LFM2-VL", "Gemma 4 E")


@pytest.mark.parametrize("name", [*NAMES, "Gemma 4"])
def test_a_cache_that_was_emptied_is_as_good_as_new(name: str):
    """Also for another K: its layers were of both streams, and are then of one; without a fork they are refused."""
    case = case_of(name)
    cache = DynamicCache(config=case.model.config)
    for k in (3, 5, 1):
        expected, _ = generate_sira(case.model, case.inputs, SiraConfig(k=k))
        found, _ = generate_sira(case.model, case.inputs, SiraConfig(k=k), **{CACHE: cache})
        assert torch.equal(found, expected)
        cache.reset()
    with attach(case.model, SiraConfig(k=3)):
        generate(case.model, case.inputs, **{CACHE: cache})
    with pytest.raises(AttachError, match="cannot be used outside"):
        case.model(input_ids=torch.tensor([[5]]), **{CACHE: cache})
    cache.reset()
    with pytest.raises(AttachError, match="cannot be used outside"):
        generate(case.model, case.inputs, **{CACHE: cache})


@pytest.mark.parametrize("name", ["Qwen3.5", "LFM2-VL"])
def test_a_cache_that_does_not_know_of_states_is_refused(name: str):
    case = case_of(name)
    with pytest.raises(UnsupportedModelError, match=r"DynamicCache\(config=model.config\)"), attach(case.model):
        generate(case.model, case.inputs, **{CACHE: DynamicCache()})


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("name", NAMES)
def test_an_error_in_mid_pass_leaves_nothing(name: str, steps: int):
    """In the prompt, and in a step; before and after the mixers of late layers."""
    case = case_of(name)
    expected, _ = generate_sira(case.model, case.inputs, max_new_tokens=4)
    calls, before = 0, hooks(case.model)  # transformers' own, which stay once outputs were asked for

    def fail(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls > steps:
            raise ZeroDivisionError

    for mixer in find_backbone(case.model).mixers[-2:]:
        for register in (mixer.module.register_forward_pre_hook, mixer.module.register_forward_hook):
            with attach(case.model, SiraConfig(k=3)):
                handle, calls = register(fail), 0
                with pytest.raises(ZeroDivisionError):
                    generate(case.model, case.inputs)
                handle.remove()
                assert torch.equal(generate(case.model, case.inputs, max_new_tokens=4), expected)
    assert hooks(case.model) == before


@pytest.mark.parametrize("name", NAMES)
def test_beams_in_a_padded_batch(name: str):
    case = case_of(name)
    singles = family_prompts(name, case, 3)
    beams = {"num_beams": 3, "num_return_sequences": 2}
    if name == "Qwen3.5" and Version(transformers.__version__) < Version("5.21"):
        with pytest.raises(UnsupportedModelError, match="mixes up the pictures of beams"), attach(case.model):
            generate(case.model, singles[0], **beams)
        return
    for k in (1, 5):
        with attach(case.model, SiraConfig(k=k)):
            batch = generate(case.model, left_pad(singles), **beams)
            assert torch.equal(batch, torch.cat([generate(case.model, single, **beams) for single in singles]))
            whole = generate(case.model, singles[0], use_cache=False, **beams)  # the states of no beam
            assert torch.equal(batch[:2], whole)


@pytest.mark.parametrize("method", ["opera", "sid"])
@pytest.mark.parametrize("name", NAMES)
def test_methods_that_need_columns_are_refused(name: str, method: str):
    with pytest.raises(UnsupportedModelError, match=f"cannot be used with method {method}: every layer"):
        METHODS[method].check_model(case_of(name).model, SiraConfig())


@pytest.mark.parametrize("name", NAMES)
def test_many_values_of_k_in_a_padded_batch(name: str):
    singles = family_prompts(name, case_of(name), 3)
    found = next_token(case_of(name).model, SiraConfig(), left_pad(singles), [1, 5])
    for row, single in enumerate(singles):
        image = single["input_ids"] == tiny.IMAGE
        for k, logits in found.cf.items():
            expected = reference.counterfactual(case_of(name).model, single, image, k)
            torch.testing.assert_close(logits[row], expected, atol=1e-4, rtol=0)


def test_a_state_has_no_columns_to_cut_back_to():
    case = case_of("Qwen3.5")
    cache = DynamicCache(config=case.model.config.get_text_config(decoder=True))
    with attach(case.model, SiraConfig(k=3)):
        generate(case.model, case.inputs, **{CACHE: cache})
    assert cut_back(cache, torch.tensor([0]), 20) is None
