"""`attach` says so where the checkpoint's own generation settings pick other tokens than greedy decoding."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig

from sira_cli import GenerationSettingsWarning, SiraConfig, attach
from sira_cli.core import reference
from sira_cli.methods import attaching
from tests.support import tiny

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def case(monkeypatch):
    attaching._warn_once.cache_clear()
    return tiny.qwen("2.5")


QWEN2_5 = {"do_sample": True, "repetition_penalty": 1.05, "temperature": 0.000001}  # as the hub's files have them
QWEN3 = {"do_sample": True, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.0, "temperature": 0.7}
QWEN2 = {"do_sample": True, "temperature": 0.01, "top_k": 1, "top_p": 0.001}  # one token is left


@pytest.mark.parametrize(
    ("own", "named", "arguments"),
    [
        (
            QWEN2_5,
            "do_sample=True, repetition_penalty=1.05, temperature=1e-06",
            "do_sample=False, repetition_penalty=1.0",
        ),
        (QWEN3, "do_sample=True, temperature=0.7, top_k=20, top_p=0.8", "do_sample=False"),
        ({"min_length": 5}, "min_length=5", "min_length=0"),
        (QWEN2, "", ""),
        ({"eos_token_id": [1, 2], "max_length": 50}, "", ""),
    ],
)
def test_settings_that_change_greedy_decoding_are_named_once(case, own, named, arguments):
    case.model.generation_config = GenerationConfig(**own)
    if named:
        text = f"sets {named}, and `generate` obeys it. For the greedy text of the method pass {arguments}"
        with pytest.warns(GenerationSettingsWarning, match=f"{re.escape(text)}$") as caught, attach(case.model):
            pass
        assert [Path(warning.filename) for warning in caught] == [Path(__file__)]
    with warnings.catch_warnings():  # other filters, and still not again
        warnings.simplefilter("error")
        with attach(case.model):
            pass


def test_readmes_example_is_algorithm_1_whatever_the_checkpoint_brings(case):
    """The arguments are those that stand in README."""
    (call,) = re.findall(r"model\.generate\(\*\*inputs, (.*), max_new_tokens=64\)", README.read_text())
    own = {"do_sample": True, "repetition_penalty": 1.5, "temperature": 0.000001}
    case.model.generation_config = GenerationConfig(**own, pad_token_id=0)
    expected = reference.decode(case, 3, 0.5, 8).tokens

    def decode(**arguments: object) -> list[int]:
        with attach(case.model, SiraConfig(k=3, alpha=0.5)):
            torch.manual_seed(0)
            settings = {"suppress_tokens": tiny.SUPPRESS, "eos_token_id": None, "max_new_tokens": 8}
            output = case.model.generate(**case.inputs, **settings, **arguments)
        return output[0, case.inputs["input_ids"].shape[1] :].tolist()

    with pytest.warns(GenerationSettingsWarning):
        assert decode(**eval(f"dict({call})")) == expected
    assert decode() != expected
