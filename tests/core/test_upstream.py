"""Private names of transformers: they are there, do what we need, and stand in one module."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import transformers as hf
from packaging.version import Version
from transformers import GenerationConfig, GenerationMixin, PreTrainedConfig, cache_utils
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaDecoderLayer, LlamaForCausalLM

from sira_cli.core import arguments, upstream
from tests.support import tiny
from tests.support.helpers import left_pad
from tests.support.prompts import llava_prompts

SOURCE = Path(upstream.__file__)
# Each private name, and what has it.
PRIVATE = {
    "_prepare_position_ids_for_generation": GenerationMixin,
    "_update_model_kwargs_for_generation": GenerationMixin,
    "_supports_logits_to_keep": GenerationMixin,
    "_attn_implementation": PreTrainedConfig(),
    "_eos_token_tensor": None,  # set by `generate`
    "_pad_token_tensor": None,
}

# What our layers of a cache read, set and override, by the class that has it.
FIELDS = {
    "DynamicLayer": (
        *("keys", "values", "is_initialized", "get_seq_length", "lazy_initialization", "update", "reset"),
        *("reorder_cache", "batch_repeat_interleave", "batch_select_indices", "crop", "is_croppable"),
    ),
    "DynamicSlidingWindowLayer": ("sliding_window", "cumulative_length"),
    "DynamicIndexedLayer": ("indexer_keys", "update_indexer"),
    "LinearAttentionLayer": (
        *("conv_states", "recurrent_states", "number_of_states", "reorder_cache"),
        *("update_conv_state", "update_recurrent_state", "lazy_initialization"),
    ),
    "DynamicCache": ("layers", "offloading", "get_seq_length", "batch_repeat_interleave", "update", "reset"),
    "DummyLayer": (),
}
# Arguments that we pass to `generate`'s parts and to modules, or read there by name.
ARGUMENTS = {
    GenerationMixin.generate: ("inputs", "generation_config", "assistant_model", "custom_generate", "kwargs"),
    LlamaForCausalLM.forward: ("input_ids", "attention_mask", "position_ids", "use_cache", "logits_to_keep"),
    LlamaDecoderLayer.forward: ("hidden_states", "attention_mask", "position_ids", "position_embeddings"),
    LlamaAttention.forward: ("hidden_states", "attention_mask", "position_embeddings"),
}


@pytest.fixture(scope="module")
def case():
    return tiny.llava()


@pytest.fixture(scope="module")
def padded(case):
    """Two prompts of different lengths, left-padded."""
    return left_pad(llava_prompts()[:2])


@pytest.mark.parametrize("name", [name for name, owner in PRIVATE.items() if owner is not None])
def test_transformers_has_the_name(name):
    owner = PRIVATE[name]
    assert hasattr(owner, name), f"transformers {hf.__version__} has no {name} any more: see sira_cli/core/upstream.py"


@pytest.mark.parametrize("name", FIELDS)
def test_layers_of_a_cache_have_their_fields(name):
    if name == "DummyLayer" and not hasattr(cache_utils, name):
        assert Version(hf.__version__) < Version("5.23")
        return
    layer = getattr(cache_utils, name)(*[4] * (name == "DynamicSlidingWindowLayer"))
    missing = [field for field in FIELDS[name] if not hasattr(layer, field)]
    assert missing == [], f"transformers {hf.__version__}: see sira_cli/core/cache.py and what it imports"


@pytest.mark.parametrize("function", ARGUMENTS, ids=lambda function: function.__qualname__)
def test_functions_have_the_arguments_that_we_name(function):
    parameters = arguments.parameters(function)
    assert [name for name in ARGUMENTS[function] if name not in parameters] == []
    assert function.__name__ != "forward" or arguments.CACHE in parameters


def test_no_other_module_uses_one():
    assert {*re.findall(r"(?:model|config)\.(_\w+)", SOURCE.read_text(encoding="utf-8"))} == PRIVATE.keys()
    for path in SOURCE.parents[1].rglob("*.py"):
        used = [name for name in PRIVATE if name in path.read_text()]
        assert used == [] or path == SOURCE, f"{path}: {used} belong into sira_cli/core/upstream.py"


def test_positions_count_from_the_first_token_that_is_no_padding(case, padded):
    mask = padded["attention_mask"]
    found = upstream.position_ids(case.model, padded["input_ids"], dict(padded))
    assert not mask.all()
    for row, live in zip(found, mask, strict=True):
        assert row[live.bool()].tolist() == list(range(int(live.sum())))


def test_the_inputs_of_the_next_token_have_one_more_column(case, padded):
    kinds = torch.zeros_like(padded["input_ids"])
    found = upstream.next_inputs(
        case.model, {}, {"attention_mask": padded["attention_mask"], "token_type_ids": kinds, "position_ids": kinds + 4}
    )
    columns = padded["input_ids"].shape[1] + 1
    assert {name: value.shape[1] for name, value in found.items()} == dict.fromkeys(found, columns)
    assert found["attention_mask"][:, -1].tolist() == [1, 1]
    assert found["position_ids"][:, -1].tolist() == [5, 5]


def test_the_last_logits_are_those_of_all_rows(case, padded):
    only = upstream.last_logits_only(case.model)
    assert only == {"logits_to_keep": 1}
    with torch.no_grad():
        last, whole = (case.model(**padded, **more).logits for more in (only, {}))
    assert last.shape[1] == 1
    torch.testing.assert_close(last[:, -1], whole[:, -1])


def test_attention_changes_between_two_calls(padded):
    model = tiny.llava("sdpa").model
    config, weights = model.get_decoder().config, []
    hook = (
        model.get_decoder()
        .layers[0]
        .self_attn.register_forward_hook(lambda layer, args, output: weights.append(output[1]))
    )
    for name in ("sdpa", "eager", "sdpa"):
        upstream.set_attention(config, name)
        assert upstream.attention_of(config) == name
        with torch.no_grad():
            model(**padded)
    hook.remove()
    assert [each is not None for each in weights] == [False, True, False]  # only eager attention returns any


@pytest.mark.parametrize(("ends", "pad"), [(3, None), ([3, 5], 7), (None, 7)])
def test_end_and_padding_tokens_are_those_that_generate_found(case, padded, ends, pad, monkeypatch):
    found = []

    def look(model, input_ids, *, generation_config, **rest):
        found.append(upstream.end_and_pad(generation_config))
        return input_ids

    config = GenerationConfig(max_new_tokens=2, eos_token_id=ends, pad_token_id=pad)
    monkeypatch.setattr(case.model, "generation_config", config)
    case.model.generate(**padded, custom_generate=look)
    ((found_ends, found_pad),) = found
    assert found_ends == ([] if ends is None else [ends] if isinstance(ends, int) else ends)
    assert int(found_pad) == (3 if pad is None else pad)
