"""Every method on every exact type of transformers: its slow reference's texts, or a refusal that the table names."""

from __future__ import annotations

import functools

import pytest
import torch

from sira_cli.core.census import EXACT
from sira_cli.core.config import SiraConfig
from sira_cli.errors import PictureSettingsError, SiraError
from sira_cli.methods import METHODS
from sira_cli.methods.base import PromptBatch
from sira_cli.methods.opera import Opera
from sira_cli.methods.sid import Sid
from sira_cli.methods.vcd import Vcd
from tests.methods.test_methods import expected_of
from tests.support import census, decoding, tiny
from tests.support.decoding import calibrated_for
from tests.support.reference_opera import SlowOpera
from tests.support.tiny import Tiny

KINDS = [kind for kind in EXACT if kind in census.HERE and kind != "shieldgemma2"]  # the class of gemma3
NAMES = [name for name in METHODS if not name.startswith("sira") and name != "greedy"]  # the fork has tests of its own
STEPS = 2
# Exact types that a method cannot follow: `check_model` refuses them with the reason.
OTHER_LAYERS = ("lfm3_vl", "minicpm_ocr", "minicpmv4_6", "minicpmv4_7")  # convolutions and recurrent layers
NOT_FOLLOWED = dict.fromkeys(("opera", "pai"), ("dots3_note", "llama4", *OTHER_LAYERS)) | {"vista": ("lfm3_vl",)}
NOT_FOLLOWED |= dict.fromkeys(("ict", "maskcd"), ("fuyu", *OTHER_LAYERS))
DEEPSTACK = ("cohere_compass", "cosmos3_omni", "granite_docling", "qwen3_omni_moe_thinker", "qwen3_vl_moe")
NOT_FOLLOWED["sid"] = (*DEEPSTACK, *NOT_FOLLOWED["opera"])
WINDOWED = ["idefics2"]  # the tiny model's windows are shorter than its prompt
# A type for each way in which pictures are handed over or layers attend; all types are tried in the slow tests.
TELLING = {
    "vcd": ["chameleon", "deepseek_vl_hybrid", "fuyu", "kimi_k25", "minicpmv4_6", "molmo2"],
    "sid": ["muse_spark", "llava_onevision", "idefics2", "granite4_vision", "mistral4"],
    "opera": ["aria"],
    "ict": ["molmo2"],
    "maskcd": ["molmo2"],
}


@functools.cache
def case_of(kind: str) -> Tiny:
    """A tiny model that never says an image token, not even as a candidate of OPERA."""
    case = census.case_of(kind)
    dead = torch.tensor([*tiny.SUPPRESS, *case.silent])
    case.model.get_output_embeddings().register_forward_hook(lambda *hook: hook[-1].index_fill(-1, dead, -1e4))
    return case


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_names_the_methods_that_refuse_a_type(kind: str):
    case, refused = case_of(kind), set()
    for name in NAMES:
        try:
            calibrated_for(METHODS[name], case.model).check_model(case.model, SiraConfig(k=1))
        except SiraError:
            refused.add(name)
    assert refused == {name for name, kinds in NOT_FOLLOWED.items() if kind in kinds}


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name, kinds in TELLING.items() for kind in kinds if kind in census.HERE]
)
def test_telling_types(name: str, kind: str):
    check(name, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_all_types(name: str, kind: str):
    check(name, kind)


def check(name: str, kind: str) -> None:
    case = case_of(kind)
    if kind in NOT_FOLLOWED.get(name, ()):
        return  # held against `check_model` above
    if name == "opera":
        opera, limits = Opera(beams=2, candidates=3, threshold=2), {"max_new_tokens": STEPS, "eos_token_id": None}
        output = opera.generate(case.model, case.inputs, SiraConfig(), {}, **limits)
        assert output[0, case.image.shape[1] :].tolist() == SlowOpera(case, opera.settings(), STEPS).tokens
        return
    method = METHODS[name] if name != "sid" else Sid(visible=min(2, int(case.image.sum()) - 1))
    if name == "sid" and kind in WINDOWED:
        with pytest.raises(PictureSettingsError, match="sees only the last 12 positions"):
            decoding.decoded(method, case, max_new_tokens=STEPS)
        return
    tokens, scores = decoding.decoded(method, case, max_new_tokens=STEPS)
    expected = expected_of(method, case, steps=STEPS)
    assert tokens[0].tolist() == expected.tokens
    # Chameleon's image tokens have the lowest finite logit, and their contrast may be below it.
    found, wanted = (each.clamp(min=-1e30) for each in (scores[:, 0], expected.scores))
    torch.testing.assert_close(found, wanted, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_no_clean_picture_is_left_in_the_branch_of_vcd(kind: str):
    """Every input of floating point shows the picture; the rest says where it is."""
    case = case_of(kind)
    branch = Vcd().branch_inputs(PromptBatch(decoding.stub(case), case.inputs, [0]))
    shown = [name for name, value in case.inputs.items() if value.is_floating_point()]
    assert shown
    for name in shown:
        assert (branch[name] != case.inputs[name].float()).float().mean() > 0.9, name
