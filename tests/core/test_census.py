"""Every image-text-to-text type of transformers is exact, refused with the reason, or said not to be settled."""

from __future__ import annotations

import contextlib
import warnings

import pytest
import transformers as hf
from packaging.version import Version
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from sira_cli.core import families
from sira_cli.core.census import BROKEN, EXACT, REFUSED, REFUSED_STACKS, STACKS, UNSETTLED
from sira_cli.core.config import SiraConfig
from sira_cli.core.families import FAMILIES, check_config, find_backbone
from sira_cli.core.fork import attach
from sira_cli.core.image_tokens import ImageTokens
from sira_cli.errors import SiraError, UnsupportedModelError, UntestedModelWarning
from tests.support import census, tiny
from tests.support.helpers import batch_equals_singles, case_of, compared, left_pad, mostly_slow

STEPS = 3
# The version of transformers that brought a type, for those that 5.19 lacks.
SINCE = dict.fromkeys(("molmo2", "muse_spark", "unlimited_ocr"), "5.20") | {"minicpm_ocr": "5.21"}
SINCE |= dict.fromkeys(("apertus1p5", "hy_v4_vl", "inkling2_loop"), "5.24") | {"mistral_large4": "5.22"}
SINCE |= dict.fromkeys(("dots3_note", "granite_docling", "inkling2", "lfm3_vl"), "5.23")
KNOWN = {*EXACT, *REFUSED, *UNSETTLED, *(family.model_type for family in FAMILIES)}
BROKEN_HERE = {kind for kind, version in BROKEN if version == hf.__version__}
BUILT = [kind for kind in EXACT if kind in census.HERE and kind != "shieldgemma2"]


def largest_k(case: tiny.Tiny) -> int:
    backbone = find_backbone(case.model)
    return min(5, len(backbone.decoder_layers) - backbone.first_boundary)


def test_every_type_is_in_one_table_and_every_family_is_tested():
    assert [family.name for family in FAMILIES] == list(tiny.FAMILIES)
    tables = [*EXACT], [*REFUSED], [*UNSETTLED], sorted({family.model_type for family in FAMILIES})
    assert len(KNOWN) == sum(map(len, tables))
    assert census.TYPES["shieldgemma2"] == census.TYPES["gemma3"]
    lacking = {kind for kind, version in SINCE.items() if Version(version) > Version(hf.__version__)}
    assert {*census.TYPES} & KNOWN == KNOWN - lacking


@pytest.mark.parametrize("kind", sorted(BROKEN_HERE) or [None])
def test_types_that_transformers_breaks_fail_without_a_fork_too(kind: str | None):
    if kind is None:
        pytest.skip("none under this version")
    case = case_of(kind)
    with pytest.raises(AttributeError, match="image_outputs"):
        case.model.generate(**case.inputs, max_new_tokens=2)
    with pytest.raises(UnsupportedModelError, match=f"transformers {hf.__version__} breaks it"), attach(case.model):
        pass


# docs/models.md names them.
WITHOUT_BEAMS = ["cohere_compass", "cosmos3_omni", "fuyu", "granite_docling", "qwen3_omni_moe_thinker", "qwen3_vl_moe"]


@pytest.mark.skipif(not hf.__version__.startswith("5.24"), reason="the page tells of transformers 5.24")
@pytest.mark.parametrize("kind", WITHOUT_BEAMS)
def test_types_whose_own_beams_end_in_an_error(kind: str):
    case = case_of(kind)
    with pytest.raises((IndexError, ValueError), match=r"out of range|do not match"):
        case.model.generate(**case.inputs, max_new_tokens=2, num_beams=2)


@pytest.mark.parametrize("kind", BUILT)
def test_exact_types(kind: str):
    """All kinds of layers, and the whole grid of K and alpha, are in test_conformance.py."""
    assert find_backbone(case_of(kind).model).tested
    compared(case_of(kind), SiraConfig(k=3), STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", BUILT)
def test_exact_types_at_the_first_and_last_boundary(kind: str):
    case = case_of(kind)
    for k, alpha in ((1, 1.0), (largest_k(case), 0.5)):
        compared(case, SiraConfig(k=k, alpha=alpha), STEPS, (True,))


# Without a fork, too, a row of HunYuan-VL in a batch differs from the row alone by 4e-3.
@pytest.mark.parametrize("kind", [kind for kind in BUILT if kind != "hunyuan_vl"])
def test_exact_types_in_a_padded_batch(kind: str, monkeypatch: pytest.MonkeyPatch):
    case = case_of(kind)
    for part in case.model.modules() if kind == "llama4" else ():
        if hasattr(part, "floor_scale"):  # it counts padding; in steps of 4 that changes a row without a fork, too
            monkeypatch.setattr(part, "floor_scale", 8192)
    singles = [case.inputs, census.longer(case, 4)]
    k = min(3, largest_k(case))
    batch = census.stacked(kind, left_pad(singles), singles)
    batch_equals_singles(case.model, singles, k, 1e-4, batch, max_new_tokens=2)


# Layers of several kinds, experts, states, norms after attention, attention without sdpa, parallel attention.
TELLING = ("cohere", "gemma2", "gpt_oss", "lfm2", "olmo2", "phi3", "qwen3_next")


@pytest.mark.parametrize("stack", mostly_slow([stack for stack in STACKS if stack in CONFIG_MAPPING_NAMES], *TELLING))
def test_text_stacks_in_llava(stack: str):
    case = census.llava_with(stack)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UntestedModelWarning)
        for k, caches in ((3, (True, False)), (1, (True,)), (5, (True,))):
            compared(case, SiraConfig(k=k), STEPS, caches)


@pytest.mark.parametrize("stack", [stack for stack in REFUSED_STACKS if stack in CONFIG_MAPPING_NAMES])
def test_refused_text_stacks(stack: str):
    model = census.llava_with(stack).model
    with pytest.raises(UnsupportedModelError, match=f"its text stack is {stack}: {REFUSED_STACKS[stack]}"):
        find_backbone(model)


def test_what_was_not_tried_warns(monkeypatch: pytest.MonkeyPatch):
    """A text stack, a type that a newer transformers adds (its structure is right), and what is not settled."""
    monkeypatch.setattr(families, "TESTED_STACKS", families.TESTED_STACKS - {"olmo2"})
    message = "text stack, olmo2, was not compared"
    with pytest.warns(UntestedModelWarning, match=message), attach(census.llava_with("olmo2").model):
        pass
    monkeypatch.setattr(hf.LlavaConfig, "model_type", "llava_next_next")
    message = r"Llava.*llava_next_next is not among the 100 types tried"
    with pytest.warns(UntestedModelWarning, match=message), attach(tiny.llava().model):
        pass
    config = type("Config", (), {"model_type": "gemma3n"})()
    assert families.untested(type("Model", (), {"config": config})()).endswith(f"in full ({UNSETTLED['gemma3n']})")


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_types(kind: str, monkeypatch: pytest.MonkeyPatch):
    """By their config alone; and where a default model is built without weights, by its structure, too."""
    with pytest.raises(UnsupportedModelError) as refusal:
        check_config(type("Config", (), {"model_type": kind})(), "Model")
    assert f"Model is not supported: {REFUSED[kind]}." in str(refusal.value)
    model = census.without_weights(kind) if kind in census.TYPES else None
    if model is None:
        return
    monkeypatch.setattr(families, "REFUSED", {})
    with pytest.raises(UnsupportedModelError):
        find_backbone(model)


@pytest.mark.filterwarnings("ignore::sira_cli.errors.UntestedModelWarning")  # a text model is none of the types
def test_the_text_stack_of_gemma_3n():
    """AltUp keeps several hidden states per row; late layers share keys; its tower is left out."""
    text = {**census.SMALL_TEXT, "num_kv_shared_layers": 2, "laurel_rank": 8, "intermediate_size": [128] * tiny.LAYERS}
    text["layer_types"] = ["sliding_attention", "full_attention"] * 3
    text["activation_sparsity_pattern"] = [0.9] + [0.0] * 5
    config = hf.Gemma3nTextConfig(**{name: text[name] for name in text if hasattr(hf.Gemma3nTextConfig(), name)})
    case = tiny.Tiny(tiny.build(config, hf.Gemma3nForCausalLM, scale=5.0), tiny.with_mask(tiny.prompt()))
    for k in (1, 2, 3, 5):
        compared(case, SiraConfig(k=k, image_tokens=ImageTokens(ids=(tiny.IMAGE,))), STEPS)


@pytest.mark.filterwarnings("ignore::sira_cli.errors.UntestedModelWarning")
@pytest.mark.parametrize("kind", sorted({*census.TYPES} - KNOWN) or [None])
def test_types_that_a_newer_transformers_adds(kind: str | None):
    """They are judged by their structure, and none fails with another error than ours."""
    model = None if kind is None else census.without_weights(kind)
    if model is None:
        pytest.skip("there are none, or their default models cannot be built")
    with contextlib.suppress(SiraError), attach(model, SiraConfig(k=1)):
        pass
