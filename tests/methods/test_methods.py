"""Method by property: each method equals its slow reference, and none has the known mistakes.

Known from published code: both streams share one cache; greedy ignores the method; the image span is that of
the batch's first row; logits processors are skipped; unknown settings vanish. OPERA's search is in test_opera.py.
At the end every method meets every exact type of transformers: the reference's texts, or a refusal that a table names.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from typing import Any

import pytest
import torch

from sira_cli.core import rules
from sira_cli.core.arguments import CACHE
from sira_cli.core.census import EXACT
from sira_cli.core.config import SiraConfig
from sira_cli.core.fork import attach
from sira_cli.errors import AttachError, PictureSettingsError, SettingsError, SiraError, UnsupportedModelError
from sira_cli.methods import METHODS
from sira_cli.methods.base import Method, TwoPasses
from sira_cli.methods.deco import Deco
from sira_cli.methods.dola import Dola
from sira_cli.methods.logits_only import LogitsOnly
from sira_cli.methods.maskcd import MASS
from sira_cli.methods.opera import Opera
from sira_cli.methods.resdec import divergence
from sira_cli.methods.sid import Sid, SidAsPublished
from tests.support import census, helpers, tiny
from tests.support import reference_methods as slow
from tests.support.helpers import (
    attached,
    branch_of,
    case_of,
    decoded,
    family_prompts,
    generate,
    hooks,
    left_pad,
    strong,
)
from tests.support.reference_opera import SlowOpera
from tests.support.tiny import Tiny

FAMILIES = ["LLaVA-1.5", "Qwen2.5-VL", "InternVL", "Gemma 3", "PaliGemma"]  # those of the less telling tests


def expected_of(method: Method, case: Tiny, **settings: Any) -> slow.Texts:
    """The slow reference of a method with its defaults (tests/support/reference_methods.py)."""
    name, branch = method.name, None
    if name == "sid":
        return slow.sid(case, method.visible, **settings)[0]
    if name == "dola":
        low = [2] if getattr(case.model.config, "tie_word_embeddings", False) else [0, 2]
        return slow.dola(case, [3, 5] if method.bucket == "high" else low, **settings)
    if name in ("ict", "vti"):
        return getattr(slow, name)(case, strong(method, case.model), **settings)
    if name == "maskcd":
        return slow.maskcd(case, strong(method, case.model)[MASS].tolist(), 0.7, **settings)
    if name in ("pai", "vista", "deco", "vaf"):
        return getattr(slow, name)(case, **settings)
    if name in ("text-only", "m3id"):
        branch = slow.text_only(case)
    elif name in ("vcd", "icd"):
        branch = branch_of(method, case)  # the noise has tests of its own
    after = {"flb": slow.flb_rule(0.3, 0.05, 0.1), "resdec": slow.resdec_rule(0.5, 128, 0.1)}
    if name.startswith("sira+"):
        return slow.after_sira(case, after[name.removeprefix("sira+")], **settings)
    rules = {**after, "greedy+apc": lambda z, other, step: slow.cut(z, z, 0.1)}
    rules |= {"text-only": lambda z, other, step: 1.5 * z - 0.5 * other, "m3id": slow.m3id_rule}
    rules |= dict.fromkeys(("vcd", "icd"), slow.vcd_rule(1.0, 0.1))
    return slow.decode(case, branch, rules[name], **settings)


# Families and exact types that a method cannot follow: `check_model` refuses them with a reason.
OTHER_LAYERS = (*tiny.STATES, "lfm3_vl", "minicpm_ocr", "minicpmv4_6", "minicpmv4_7")  # states and convolutions
NOT_FOLLOWED = dict.fromkeys(("opera", "pai", "vaf"), ("Gemma 4 E", "dots3_note", "llama4", *OTHER_LAYERS))
NOT_FOLLOWED |= dict.fromkeys(("ict", "maskcd"), ("fuyu", *OTHER_LAYERS)) | dict.fromkeys(
    ("vista", "vti"), ("LFM2-VL", "lfm3_vl")
)
DEEPSTACK = ("Qwen3-VL", "cohere_compass", "cosmos3_omni", "granite_docling", "qwen3_omni_moe_thinker", "qwen3_vl_moe")
NOT_FOLLOWED["sid"] = ("Gemma 3", *DEEPSTACK, *NOT_FOLLOWED["opera"])
REASONS = "no `o_proj` to hook|some layers have no `mlp`|keys and values of its own|DeepStack|sliding window"


def refuses(method: Method, name: str) -> bool:
    return name in NOT_FOLLOWED.get(method.name, ())


SID, HIGH = Sid(visible=3), Dola(bucket="high")
OTHERS = [method for name, method in METHODS.items() if name not in ("sira", "greedy", "sid", "opera")] + [SID]
EACH = [*OTHERS, HIGH]
each_method = pytest.mark.parametrize("method", EACH, ids=lambda m: "high" if m is HIGH else m.name)
each_branch = pytest.mark.parametrize("method", [m for m in OTHERS if isinstance(m, TwoPasses)], ids=lambda m: m.name)

FOLLOWED = [(m, name) for m in EACH for name in tiny.REPRESENTATIVES if not refuses(m, name)]
FOLLOWED += [(SID, "InternVL"), (SID, "Gemma 4"), (SID, "PaliGemma 2")]
FOLLOWED += [(METHODS["ict"], "Pixtral (LLaVA)")]  # whose tower has an `o_proj`, too


@pytest.mark.parametrize(("method", "name"), FOLLOWED, ids=lambda each: getattr(each, "name", each))
def test_equals_its_reference(method: Method, name: str):
    case = case_of(name)
    expected = expected_of(method, case)
    tokens, scores = decoded(method, case)
    assert tokens[0].tolist() == expected.tokens
    torch.testing.assert_close(scores[:, 0], expected.scores, atol=2e-4 if method is SID else 1e-4, rtol=1e-5)


POWERLESS = {name: {"alpha": 0.0} for name in ("text-only", "vcd", "icd", "maskcd")}
POWERLESS |= {"greedy+apc": {}, "ict": {"strength": 0.0}, "m3id": {"decay": 0.0}, "flb": {"gamma": 0.0}}
POWERLESS |= {"pai": {"raised": 0.0, "gamma": 1.0}, "vista": {"strength": 0.0, "mix": 0.0}}
POWERLESS |= {"deco": {"alpha": 0.0}, "vaf": {"enhance": 1.0, "suppress": 1.0}}
POWERLESS |= {"vti": {"alpha_text": 0.0, "alpha_image": 0.0}}
POWERLESS |= {"sid": {"alpha": 0.0, "visible": 3}, "resdec": {"weight": 0.0}}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("powerless", POWERLESS)
def test_without_strength_it_is_greedy(powerless: str, name: str):
    method = METHODS[powerless].with_values(**POWERLESS[powerless])
    if not refuses(method, name):
        case = case_of(name)
        assert torch.equal(decoded(method, case)[0], generate(case.model, case.inputs))


@pytest.mark.parametrize("name", ["LLaVA-1.5", "Qwen2.5-VL", "Gemma 3"])
@each_method
def test_a_left_padded_batch_equals_its_single_runs(method: Method, name: str, monkeypatch):
    """Prompts of different lengths, with images of different places, and of different sizes in Qwen's case.

    A batch rounds in another way on some CPUs: a token may be cut off in one run only if its logit is the cut-off.
    """
    if refuses(method, name):
        return
    real = rules.cut_off
    on_the_edge = torch.zeros(tiny.VOCABULARY, dtype=torch.bool)

    def cut_off(scores: torch.Tensor, z: torch.Tensor, beta: float) -> torch.Tensor:
        distance = z - z.max(dim=-1, keepdim=True).values - math.log(beta)
        on_the_edge.logical_or_((distance.abs() < 1e-5).reshape(-1, z.shape[-1]).any(dim=0))
        return real(scores, z, beta)

    monkeypatch.setattr(rules, "cut_off", cut_off)
    model = case_of(name).model
    singles = [Tiny(model, inputs) for inputs in family_prompts(name, case_of(name))]
    if name == "LLaVA-1.5" and method is not SID:  # vcd gets no prompt with two pictures under `attach`
        del singles[2]
    together = Tiny(model, left_pad([single.inputs for single in singles]))
    branch = None
    if method.name == "icd":
        branch = left_pad([helpers.with_role(single.inputs) for single in singles])
    tokens, scores = decoded(method, together, branch=branch)
    for row, single in enumerate(singles):
        alone, alone_scores = decoded(method, single)
        assert tokens[row].tolist() == alone[0].tolist()
        found, expected = scores[:, row], alone_scores[:, 0]
        same = (found.isneginf() == expected.isneginf()) | ~on_the_edge
        torch.testing.assert_close(found[same], expected[same], atol=2e-4, rtol=1e-5)


@pytest.mark.parametrize("name", ["LLaVA-1.5", "Qwen2.5-VL"])
@pytest.mark.parametrize("method", OTHERS, ids=lambda m: m.name)
def test_logits_processors_get_what_the_rule_gave(method: Method, name: str):
    case = case_of(name)
    expected = expected_of(method, case, penalty=1.7)
    assert decoded(method, case, repetition_penalty=1.7)[0][0].tolist() == expected.tokens


NEEDS_CACHE = {
    "flb": "leave out use_cache",
    "resdec": "leave out use_cache",
    "sid": "leave out use_cache",
    "ict": "leave use_cache on",
}


@each_method
def test_sampling_draws_from_the_scores_and_a_seed_repeats_it(method: Method):
    case, drawn = case_of("LLaVA-1.5"), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        tokens, scores = decoded(method, case, do_sample=True, temperature=2.0, top_k=0, max_new_tokens=8)
        drawn.append(tokens[0].tolist())
        assert all(score[0, token].isfinite() for score, token in zip(scores, drawn[-1], strict=True))
    assert drawn[0] == drawn[1] != drawn[2]


@each_method
def test_what_a_branch_cannot_do_is_refused(method: Method):
    case, several = case_of("LLaVA-1.5"), {"do_sample": True, "num_return_sequences": 2}
    before = hooks(case.model)
    for more in ({"num_beams": 2}, several, {"use_cache": False}):
        message = "beams, several returned sequences, use_cache=False" if isinstance(method, TwoPasses) else ""
        if "num_beams" in more and isinstance(method, LogitsOnly):
            message = "follows one text per row: leave out num_beams"
        if "use_cache" in more:
            message = NEEDS_CACHE.get(method.name.removeprefix("sira+"), message)
        if message:
            with pytest.raises(UnsupportedModelError, match=message):
                decoded(method, case, **more)
        elif "use_cache" not in more:
            assert len(decoded(method, case, **more)[0]) == more.get("num_return_sequences", 1)
    assert hooks(case.model) == before


@each_method
def test_the_model_is_given_back(method: Method):
    """After an error, too; inside, nothing else can be attached, and two texts do not meet."""
    case = case_of("LLaVA-1.5")
    plain, before = generate(case.model, case.inputs), hooks(case.model)
    with attached(method, case):
        assert hooks(case.model) > before
        with pytest.raises(AttachError, match="attached to this model already"), attach(case.model):
            pass
        assert torch.equal(generate(case.model, case.inputs), generate(case.model, case.inputs))
    with pytest.raises(ZeroDivisionError), attached(method, case):
        raise ZeroDivisionError
    assert hooks(case.model) == before
    assert case.model.get_decoder().config._attn_implementation == "sdpa"
    assert torch.equal(generate(case.model, case.inputs), plain)


# --- a second pass


@each_branch
def test_a_branch_leaves_the_model_as_it_was(method: TwoPasses):
    """Qwen-VL models keep how far text positions lag as state of the module. An error may come in the branch."""
    case = case_of("Qwen2.5-VL")
    plain, before, own = generate(case.model, case.inputs), hooks(case.model), case.model.model.rope_deltas.clone()
    assert int(own) != 0
    decoded(method, case)
    assert torch.equal(case.model.model.rope_deltas, own)
    broken = {**branch_of(method, case), "attention_mask": torch.ones(1, 2, 3)}
    with pytest.raises(Exception), attached(method, case, branch=broken):  # noqa: B017, PT011
        generate(case.model, case.inputs)
    assert hooks(case.model) == before
    assert torch.equal(generate(case.model, case.inputs), plain)


def test_other_branches_prompts_and_caches_are_refused():
    case = case_of("LLaVA-1.5")
    with pytest.raises(SettingsError, match=r"`Lvlm\.prepare` makes them"):
        decoded(METHODS["vcd"], case, branch={"x": 1})
    other = {**case.inputs, "input_ids": case.inputs["input_ids"].clone()}
    other["input_ids"][0, -1] = 7
    cache = case.model(**case.inputs)[CACHE]
    with attached(METHODS["text-only"], case), pytest.raises(UnsupportedModelError, match="not the"):
        generate(case.model, other)
    for method in (METHODS["text-only"], METHODS["flb"]):
        with attached(method, case):
            for _ in range(2):  # also after a text
                with pytest.raises(AttachError, match="filled outside"):
                    case.model(input_ids=torch.tensor([[5]]), **{CACHE: cache})
                generate(case.model, case.inputs)


def test_steps_whose_candidates_have_no_probability_are_not_stable():
    rows = torch.tensor([[0.0, -200.0], [0.0, -150.0], [-150.0, 0.0]])
    assert divergence(rows[:-1], rows[1:]).tolist() == pytest.approx([0, math.log(2)])


# --- dola


@pytest.mark.parametrize(
    ("layers", "tied", "low", "high"),
    [
        (32, False, range(0, 16, 2), range(16, 32, 2)),
        (28, True, range(2, 14, 2), range(14, 28, 2)),
        (48, False, range(0, 20, 2), range(28, 48, 2)),
        # few layers: the one that transformers takes
        *((2, True, [1], [1]), (4, True, [2], [2]), (5, True, [2], [2, 4]), (2, False, [0], [1]), (3, False, [0], [1])),
    ],
)
def test_candidates_of_dola(layers, tied, low, high):
    assert Dola().candidates(layers, tied) == list(low)
    assert HIGH.candidates(layers, tied) == list(high)
    with pytest.raises(SettingsError, match="3 layers are too few for the bucket 'low': use high"):
        Dola().candidates(3, tied=True)


# --- deco


def published_deco(z: torch.Tensor, early: torch.Tensor, alpha: float, top_p: float, top_k: int) -> torch.Tensor:
    """The lines of `deco_greedy_search` for one row: `z [V]`, `early [C, V]`."""
    likeliest, tokens = z.softmax(0).topk(top_k)
    reached = torch.searchsorted(likeliest.cumsum(0), top_p, right=False)
    tokens = tokens[: min(int(reached) + 1, top_k)]
    among = early.softmax(1)[:, tokens]
    layer = among.argmax() // among.shape[1]
    others = torch.ones_like(z, dtype=torch.bool)
    others[tokens] = False
    return (z + alpha * among.max() * early[layer]).masked_fill(others, -torch.inf)


@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0, 9.0])
def test_deco_is_its_authors_rule_row_by_row(spread):
    """From logits under which `top_k` decides to those of one sure token."""
    generator = torch.Generator().manual_seed(int(spread * 10))
    z = spread * torch.randn(6, 50, generator=generator)
    early = spread * torch.randn(4, 6, 50, generator=generator)
    scores = Deco(top_k=12).rule(z, early)
    for row in range(6):
        torch.testing.assert_close(scores[row], published_deco(z[row], early[:, row], 0.6, 0.9, 12))


# --- vaf


def test_vaf_raises_rows_after_the_last_of_two_pictures():
    case = case_of("LLaVA-1.5")
    both = Tiny(case.model, family_prompts("LLaVA-1.5", case)[2])
    assert both.image[0].int().diff().eq(1).sum() == 2
    expected = slow.vaf(both)
    tokens, scores = decoded(METHODS["vaf"], both)
    assert tokens[0].tolist() == expected.tokens
    torch.testing.assert_close(scores[:, 0], expected.scores, atol=1e-4, rtol=1e-5)


def decoded_beams(case: Tiny) -> torch.Tensor:
    return decoded(METHODS["vaf"], case, num_beams=2)[0]


def test_beams_of_a_batch_under_vaf_equal_single_runs():
    case = case_of("LLaVA-1.5")
    singles = [Tiny(case.model, inputs) for inputs in family_prompts("LLaVA-1.5", case)[:2]]
    assert not torch.equal(singles[0].image, singles[1].image)
    batch = Tiny(case.model, left_pad([each.inputs for each in singles]))
    tokens = decoded_beams(batch)
    assert tokens[0].tolist() == decoded_beams(singles[0])[0].tolist()
    assert tokens[1].tolist() == decoded_beams(singles[1])[0].tolist()


# --- sid


def test_sid_chooses_anew_at_each_step():
    """Else a choice that is fixed at the prompt would equal the reference, too."""
    assert len(set(map(frozenset, slow.sid(case_of("LLaVA-1.5"), 3)[1]))) > 1


def test_how_many_tokens_are_visible():
    captions, questions = Sid().for_task("caption"), Sid().for_task("ask")
    assert (captions.visible, questions.visible) == (50, 100)
    assert Sid(visible=7).for_task("ask").visible == 7
    # More than the authors' number: theirs. No more: 50 or 100 of 576, rounded, and never all.
    expected = {576: (50, 100), 101: (50, 100), 100: (50, 17), 64: (50, 11), 51: (50, 9), 50: (4, 9), 2: (1, 1)}
    for tokens, visible in (expected | {49: (4, 9), 1: (0, 0)}).items():
        assert (captions.visible_of(tokens), questions.visible_of(tokens)) == visible
        assert questions.for_picture(tokens) == Sid(visible=visible[1])
    assert Sid(visible=64).visible_of(65) == 64


def test_each_picture_of_a_batch_shows_a_share_of_its_own_tokens():
    """As if the authors' number were 144, which these pictures do not have: a quarter of their tokens."""
    case = case_of("Qwen2.5-VL")
    singles = [Tiny(case.model, single, case.grown) for single in family_prompts("Qwen2.5-VL", case)]
    inputs = left_pad([single.inputs for single in singles])
    tokens, scores = decoded(SidAsPublished(visible=144), Tiny(case.model, inputs))
    for row, single in enumerate(singles):
        expected, _ = slow.sid(single, round(int(single.image.sum()) / 4))
        assert tokens[row].tolist() == expected.tokens
        torch.testing.assert_close(scores[:, row], expected.scores, atol=2e-4, rtol=1e-5)


# --- every exact type of transformers

KINDS = [kind for kind in EXACT if kind in census.HERE and kind != "shieldgemma2"]  # the class of gemma3
NAMES = [name for name in METHODS if not name.startswith("sira") and name != "greedy"]  # the fork has tests of its own
STEPS = 2
PAIRS = [(name, kind) for name, kind in itertools.product(NAMES, KINDS) if kind not in NOT_FOLLOWED.get(name, ())]
# A type for each way in which pictures are handed over or layers attend.
TELLING = [("opera", "aria"), ("ict", "molmo2"), ("maskcd", "molmo2")]
TELLING += [("vcd", kind) for kind in ("chameleon", "deepseek_vl_hybrid", "fuyu", "kimi_k25", "minicpmv4_6", "molmo2")]
TELLING += [("sid", kind) for kind in ("muse_spark", "llava_onevision", "idefics2", "granite4_vision", "mistral4")]


@functools.cache
def silenced(kind: str) -> Tiny:
    return helpers.silenced(census.case_of(kind))


@pytest.mark.parametrize("kind", [*tiny.FAMILIES, *KINDS])
def test_the_table_names_the_methods_that_refuse_a_model(kind: str):
    case, refused = case_of(kind) if kind in tiny.FAMILIES else silenced(kind), dict[str, str]()
    for name in NAMES:
        try:
            helpers.calibrated_for(METHODS[name], case.model).check_model(case.model, SiraConfig(k=1))
        except SiraError as error:
            refused[name] = str(error)
    assert {*refused} == {name for name, kinds in NOT_FOLLOWED.items() if kind in kinds}
    assert all(re.search(REASONS, reason) for reason in refused.values())


@pytest.mark.parametrize(("name", "kind"), helpers.mostly_slow(PAIRS, *({*TELLING} & {*PAIRS})))
def test_equals_its_reference_on_every_type(name: str, kind: str):
    case = silenced(kind)
    if name == "opera":
        opera, limits = Opera(beams=2, candidates=3, threshold=2), {"max_new_tokens": STEPS, "eos_token_id": None}
        output = opera.generate(case.model, case.inputs, SiraConfig(), {}, **limits)
        assert output[0, case.image.shape[1] :].tolist() == SlowOpera(case, opera.settings(), STEPS).tokens
        return
    method = METHODS[name] if name != "sid" else Sid(visible=min(2, int(case.image.sum()) - 1))
    if (name, kind) == ("sid", "idefics2"):  # the tiny model's windows are shorter than its prompt
        with pytest.raises(PictureSettingsError, match="sees only the last 12 positions"):
            decoded(method, case, max_new_tokens=STEPS)
        return
    tokens, scores = decoded(method, case, max_new_tokens=STEPS)
    expected = expected_of(method, case, steps=STEPS)
    assert tokens[0].tolist() == expected.tokens
    # Chameleon's image tokens have the lowest finite logit, and their contrast may be below it.
    found, wanted = (each.clamp(min=-1e30) for each in (scores[:, 0], expected.scores))
    torch.testing.assert_close(found, wanted, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_no_clean_picture_is_left_in_the_branch_of_vcd(kind: str):
    """Every input of floating point shows the picture; the rest says where it is."""
    case = silenced(kind)
    branch = branch_of(METHODS["vcd"], case)
    shown = [name for name, value in case.inputs.items() if value.is_floating_point()]
    assert shown
    for name in shown:
        assert (branch[name] != case.inputs[name].float()).float().mean() > 0.9, name
