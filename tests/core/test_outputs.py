"""What `generate` and the model return besides tokens and logits is that of the full stream, in the user's shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sira_cli import attach as attach_method
from sira_cli.core.config import SiraConfig
from sira_cli.core.families import find_backbone
from sira_cli.core.fork import attach
from sira_cli.errors import UnsupportedModelError
from tests.support import census, tiny
from tests.support.helpers import case_of, family_prompts, generate, left_pad

KINDS = sorted({"granite4_vision", "dots3_note", "mistral4"} & census.HERE)
STATES = {"output_hidden_states": True, "return_dict_in_generate": True}


def written(model: Any, inputs: dict, **settings: Any) -> Any:
    """The output of `generate`, tokens alike with and without a fork."""
    given = {"do_sample": False, "max_new_tokens": 3, "eos_token_id": None, "suppress_tokens": tiny.SUPPRESS}
    return model.generate(**inputs, **given | STATES | settings)


def equal(found: Any, expected: Any) -> None:
    """Nested tuples of tensors, the same in shape and value; padding has finite numbers, too."""
    assert isinstance(found, type(expected))
    if not isinstance(expected, tuple):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        return
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        equal(one, other)


def without_contrast(case: tiny.Tiny, k: int) -> Any:
    backbone = find_backbone(case.model)
    largest = len(backbone.decoder_layers) - backbone.first_boundary
    return attach(case.model, SiraConfig(k=min(k, largest), alpha=0.0))


@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize("name", [*tiny.REPRESENTATIVES, *KINDS])
def test_hidden_states_of_all_layers_are_those_of_plain_generate(name: str, k: int):
    case = case_of(name)
    expected = written(case.model, case.inputs)
    with without_contrast(case, k):
        found = written(case.model, case.inputs)
    assert torch.equal(found.sequences, expected.sequences)
    equal(found.hidden_states, expected.hidden_states)


@pytest.mark.parametrize("settings", [{}, {"num_beams": 2}], ids=str)
@pytest.mark.parametrize("name", ["LLaVA-1.5", "Qwen2.5-VL", "Gemma 3", "PaliGemma"])
def test_hidden_states_in_a_padded_batch(name: str, settings: dict):
    case = case_of(name)
    batch = left_pad(family_prompts(name, case))
    expected = written(case.model, batch, **settings)
    with without_contrast(case, 3):
        found = written(case.model, batch, **settings)
    equal(found.hidden_states, expected.hidden_states)


@pytest.mark.parametrize("name", ["LLaVA-1.5", "Gemma 4 E"])
def test_hidden_states_of_a_contrast_are_still_the_full_streams(name: str):
    """Those of the prompt: later tokens are others."""
    case = case_of(name)
    expected = written(case.model, case.inputs, max_new_tokens=1)
    with attach(case.model, SiraConfig(k=3, alpha=2.0)):
        found = written(case.model, case.inputs, max_new_tokens=1)
    equal(found.hidden_states, expected.hidden_states)


@pytest.mark.parametrize("name", ["LLaVA-1.5", "Qwen2.5-VL", "Gemma 4 E"])
def test_attentions_are_those_of_plain_generate(name: str, monkeypatch: pytest.MonkeyPatch):
    case = case_of(name)
    monkeypatch.setattr(find_backbone(case.model).decoder.config, "_attn_implementation", "eager")
    expected = written(case.model, case.inputs, output_attentions=True)
    with without_contrast(case, 3):
        found = written(case.model, case.inputs, output_attentions=True)
    assert found.attentions[0][-1].shape[-2] == case.image.shape[1]
    equal(found.attentions, expected.attentions)


@pytest.mark.parametrize("asked", [True, [-1], None], ids=["argument", "one layer", "config"])
def test_a_plain_forward_returns_hidden_states_of_all_rows(asked: Any, monkeypatch: pytest.MonkeyPatch):
    case = case_of("Qwen2.5-VL")
    more = {} if asked is None else {"output_hidden_states": asked}
    if asked is None:
        monkeypatch.setattr(case.model.config.get_text_config(), "output_hidden_states", True)
    with torch.no_grad():
        expected = case.model(**case.inputs, **more).hidden_states
        with without_contrast(case, 3):
            found = case.model(**case.inputs, **more).hidden_states
    assert expected[-1].shape == (*case.image.shape, tiny.TEXT["hidden_size"])
    equal(found, expected)


# --- what is of no use with logits of one row


@pytest.mark.parametrize("method", ["sira", "dola", "vcd"])
def test_labels_are_refused(method: str):
    case = case_of("LLaVA-1.5")
    with attach_method(case.model, method=method, inputs=case.inputs):
        with pytest.raises(UnsupportedModelError, match=r"called with labels.* leave out labels"):
            case.model(**case.inputs, labels=case.inputs["input_ids"])
        generate(case.model, case.inputs)


@pytest.mark.parametrize("where", ["argument", "config"])
def test_a_loss_over_experts_is_refused(where: str, monkeypatch: pytest.MonkeyPatch):
    """Its rows would be those of both streams: some types end in an error of torch, others return a wrong number."""
    case = case_of("Qwen3.5 MoE")
    more = {"output_router_logits": True} if where == "argument" else {}
    if where == "config":
        monkeypatch.setattr(case.model.config.get_text_config(), "output_router_logits", True)
    message = "experts of all rows.* set output_router_logits=False"
    with attach(case.model), pytest.raises(UnsupportedModelError, match=message):
        case.model(**case.inputs, **more)
