"""The methods that one compares with SIRA: each equals its slow reference, and none has the known mistakes.

Known from published code: both streams share one cache; greedy ignores the method; the image span is that of
the batch's first row; logits processors are skipped; unknown settings vanish.
"""

from __future__ import annotations

import pickle

import pytest
import torch

from sira_cli.core.arguments import CACHE
from sira_cli.core.config import SiraConfig
from sira_cli.core.fork import attach
from sira_cli.errors import AttachError, SettingsError, UnsupportedModelError
from sira_cli.methods import METHODS
from sira_cli.methods.base import Method, TwoPasses
from sira_cli.methods.dola import Dola
from sira_cli.methods.flb import Flb
from sira_cli.methods.greedy_apc import GreedyApc
from sira_cli.methods.icd import Icd
from sira_cli.methods.ict import Ict
from sira_cli.methods.m3id import M3id
from sira_cli.methods.maskcd import MASS, MaskCd
from sira_cli.methods.pai import Pai
from sira_cli.methods.text_only import TextOnly
from sira_cli.methods.vcd import Vcd
from sira_cli.methods.vista import Vista
from tests.support import reference_methods as slow
from tests.support import tiny
from tests.support.calibrations import strong
from tests.support.decoding import attached, branch_of, case_of, decoded, with_role
from tests.support.helpers import generate, hooks, left_pad
from tests.support.prompts import gemma_prompts, llava_prompts, qwen_prompts
from tests.support.reference_methods import Texts
from tests.support.tiny import Tiny

FAMILIES = ["LLaVA-1.5", "Qwen2.5-VL", "InternVL", "Gemma 3", "PaliGemma"]  # those of the less telling tests


def expected_of(method: Method, case: Tiny, **settings: float) -> Texts:
    """The slow reference of a method with its defaults."""
    if isinstance(method, Dola):
        low = [2] if getattr(case.model.config, "tie_word_embeddings", False) else [0, 2]
        return slow.dola(case, [3, 5] if method.bucket == "high" else low)
    if isinstance(method, Ict):
        vectors = slow.ict_vectors(strong(method, case.model), tiny.LAYERS, 8.0, 1, ("image", "object"))
        return slow.ict(case, vectors)
    if isinstance(method, MaskCd):
        return slow.maskcd(case, strong(method, case.model)[MASS].tolist(), 0.7, **settings)
    if isinstance(method, GreedyApc):
        return slow.decode(case, None, lambda z, other, step: slow.cut(z, z, 0.1), **settings)
    if isinstance(method, TextOnly):
        return slow.decode(case, slow.text_only(case), lambda z, other, step: 1.5 * z - 0.5 * other, **settings)
    if isinstance(method, M3id):
        return slow.decode(case, slow.text_only(case), slow.m3id_rule, **settings)
    if isinstance(method, Pai):
        return slow.pai(case, **settings)
    if isinstance(method, Vista):
        return slow.vista(case, **settings)
    if isinstance(method, Flb):
        return slow.decode(case, None, slow.flb_rule(0.3, 0.05, 0.1), **settings)
    assert isinstance(method, TwoPasses), f"{method.name}: write a slow version in tests/support/reference_methods.py"
    branch = branch_of(method, case)  # the noise has tests of its own
    return slow.decode(case, branch, slow.vcd_rule(1.0, 0.1), **settings)


OTHERS = [method for name, method in METHODS.items() if name not in ("sira", "greedy", "sid", "opera")]
each_method = pytest.mark.parametrize(
    "method", [*OTHERS, Dola(bucket="high")], ids=lambda m: getattr(m, "bucket", None) or m.name
)
each_branch = pytest.mark.parametrize("method", [m for m in OTHERS if isinstance(m, TwoPasses)], ids=lambda m: m.name)


@pytest.mark.parametrize("name", tiny.REPRESENTATIVES)
@each_method
def test_equals_its_reference(method: Method, name: str):
    case = case_of(name)
    refusals = [
        (isinstance(method, Ict | MaskCd) and name not in tiny.WITH_HEADS, "no `o_proj` to hook"),
        (isinstance(method, Pai) and name not in tiny.COLUMNS, "every layer must have keys and values of its own"),
        (isinstance(method, Vista) and name == "LFM2-VL", "some layers have no `mlp`"),
    ]
    if reason := next((reason for refused, reason in refusals if refused), None):
        with pytest.raises(UnsupportedModelError, match=reason):
            method.check_model(case.model, SiraConfig())
        return
    expected = expected_of(method, case)
    tokens, scores = decoded(method, case)
    assert tokens[0].tolist() == expected.tokens
    torch.testing.assert_close(scores[:, 0], expected.scores, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("name", tiny.REPRESENTATIVES)
def test_text_only_equals_a_text_stack_that_never_met_an_image(name: str):
    """m3id shares its branch; this one shares neither the branch nor the model's positions and masks."""
    case = case_of(name)
    expected = slow.without_eyes(case, 0.5)
    tokens, scores = decoded(TextOnly(), case)
    assert tokens[0].tolist() == expected.tokens
    torch.testing.assert_close(scores[:, 0], expected.scores, atol=1e-4, rtol=1e-5)


def test_methods_travel_to_other_processes():
    assert pickle.loads(pickle.dumps(METHODS)) == METHODS


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    "method",
    [
        TextOnly(0.0),
        Vcd(0.0),
        Icd(0.0),
        M3id(0.0),
        GreedyApc(),
        Ict(strength=0.0),
        MaskCd(alpha=0.0),
        Vista(strength=0.0, mix=0.0),
        Pai(raised=0.0, gamma=1.0),
    ],
    ids=lambda m: m.name,
)
def test_without_strength_it_is_greedy(method: Method, name: str):
    case = case_of(name)
    assert torch.equal(decoded(method, case)[0], generate(case.model, case.inputs))


@pytest.mark.parametrize("version", ["2", "2.5", "3"])
@each_branch
def test_the_branch_leaves_the_positions_of_the_full_stream_alone(method: TwoPasses, version: str):
    """Qwen-VL models keep how far text positions lag as state of the module."""
    case = tiny.qwen(version)
    with torch.no_grad():
        case.model(**case.inputs)
    own = case.model.model.rope_deltas.clone()
    decoded(method, case)
    assert torch.equal(case.model.model.rope_deltas, own)
    assert int(own) != 0


@each_method
@pytest.mark.parametrize(
    ("name", "prompts"),
    [("LLaVA-1.5", llava_prompts), ("Qwen2.5-VL", qwen_prompts), ("Gemma 3", gemma_prompts)],
    ids=["llava", "qwen2.5-vl", "gemma3"],
)
def test_a_left_padded_batch_equals_its_single_runs(method: Method, name: str, prompts):
    """Prompts of different lengths, with images of different places, and of different sizes in Qwen's case."""
    model = case_of(name).model
    singles = [Tiny(model, inputs) for inputs in prompts()[: 2 if name == "LLaVA-1.5" else 3]]
    together = Tiny(model, left_pad([single.inputs for single in singles]))
    branch = None
    if isinstance(method, Icd):
        branch = left_pad([with_role(single.inputs) for single in singles])
    tokens, scores = decoded(method, together, branch=branch)
    for row, single in enumerate(singles):
        alone, alone_scores = decoded(method, single)
        assert tokens[row].tolist() == alone[0].tolist()
        torch.testing.assert_close(scores[:, row], alone_scores[:, 0], atol=2e-4, rtol=1e-5)


@pytest.mark.parametrize("name", ["LLaVA-1.5", "Qwen2.5-VL"])
@pytest.mark.parametrize("method", [m for m in OTHERS if not isinstance(m, Dola | Ict)], ids=lambda m: m.name)
def test_logits_processors_get_what_the_rule_gave(method: Method, name: str):
    case = case_of(name)
    expected = expected_of(method, case, penalty=1.7)
    assert decoded(method, case, repetition_penalty=1.7)[0][0].tolist() == expected.tokens


@each_method
def test_sampling_draws_from_the_scores_and_a_seed_repeats_it(method: Method):
    case = case_of("LLaVA-1.5")
    settings = {"do_sample": True, "temperature": 2.0, "top_k": 0, "max_new_tokens": 8}
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        tokens, scores = decoded(method, case, **settings)
        drawn.append(tokens[0].tolist())
        assert all(score[0, token].isfinite() for score, token in zip(scores, drawn[-1], strict=True))
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


@each_method
def test_no_hook_remains(method: Method):
    case = case_of("LLaVA-1.5")
    plain, before = generate(case.model, case.inputs), hooks(case.model)
    with attached(method, case):
        assert hooks(case.model) > before
        with pytest.raises(AttachError, match="attached to this model already"), attach(case.model):
            pass
    assert hooks(case.model) == before
    with pytest.raises(ZeroDivisionError), attached(method, case):
        raise ZeroDivisionError
    assert hooks(case.model) == before
    assert torch.equal(generate(case.model, case.inputs), plain)


@each_branch
def test_an_error_in_the_branch_leaves_the_model_as_it_was(method: TwoPasses):
    case = case_of("Qwen2.5-VL")
    plain, before = generate(case.model, case.inputs), hooks(case.model)
    broken = {**branch_of(method, case), "attention_mask": torch.ones(1, 2, 3)}
    with pytest.raises(Exception), attached(method, case, branch=broken):  # noqa: B017, PT011
        generate(case.model, case.inputs)
    assert hooks(case.model) == before
    assert torch.equal(generate(case.model, case.inputs), plain)


@each_branch
def test_two_generations_in_one_context(method: TwoPasses):
    case = case_of("Gemma 3")
    with attached(method, case):
        first, second = generate(case.model, case.inputs), generate(case.model, case.inputs)
    assert torch.equal(first, second)


@each_branch
@pytest.mark.parametrize(
    "settings", [{"num_beams": 2}, {"do_sample": True, "num_return_sequences": 2}, {"use_cache": False}], ids=str
)
def test_what_a_branch_cannot_follow_is_refused(method: TwoPasses, settings):
    case = case_of("LLaVA-1.5")
    with pytest.raises(UnsupportedModelError, match="beams, several returned sequences, use_cache=False"):
        decoded(method, case, **settings)


def test_a_branch_without_inputs_is_refused():
    case = case_of("LLaVA-1.5")
    with pytest.raises(SettingsError, match=r"`Lvlm\.prepare` makes them"), attached(Vcd(), case, branch={"x": 1}):
        pass


def test_another_prompt_and_another_cache_are_refused():
    case = case_of("LLaVA-1.5")
    other = {**case.inputs, "input_ids": case.inputs["input_ids"].clone()}
    other["input_ids"][0, -1] = 7
    cache = case.model(**case.inputs)[CACHE]
    with attached(TextOnly(), case):
        with pytest.raises(UnsupportedModelError, match="not the"):
            generate(case.model, other)
        with pytest.raises(AttachError, match="filled outside"):
            case.model(input_ids=torch.tensor([[5]]), **{CACHE: cache})


@pytest.mark.parametrize("method", [Dola(), GreedyApc(), Ict()], ids=lambda m: m.name)
def test_methods_without_a_branch_take_beams(method: Method):
    case = case_of("Gemma 3")
    tokens, _ = decoded(method, case, num_beams=3)
    assert tokens.shape == (1, 6)


@pytest.mark.parametrize(
    ("layers", "tied", "low", "high"),
    [
        (32, False, range(0, 16, 2), range(16, 32, 2)),
        (28, True, range(2, 14, 2), range(14, 28, 2)),
        (48, False, range(0, 20, 2), range(28, 48, 2)),
    ],
)
def test_candidates_of_dola(layers, tied, low, high):
    assert Dola().candidates(layers, tied) == list(low)
    assert Dola(bucket="high").candidates(layers, tied) == list(high)


@pytest.mark.parametrize(
    ("layers", "tied", "only"), [(2, True, 1), (4, True, 2), (5, True, 2), (2, False, 0), (3, False, 0)]
)
def test_dola_of_few_layers_has_the_candidate_that_transformers_takes(layers, tied, only):
    assert Dola().candidates(layers, tied) == [only]


def test_dola_picks_a_layer_for_each_row():
    """The published code takes one layer for the whole batch."""
    log_p = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]]).log()
    near, far = [0.6, 0.3, 0.1], [0.05, 0.05, 0.9]
    log_q = torch.tensor([[near, near], [far, far]]).log()  # [C, B, V]
    scores = Dola(relative_top=0.01).rule(log_p, log_q)
    torch.testing.assert_close(scores, log_p - torch.tensor([far, near]).log())


def test_dola_has_no_low_candidate_of_three_tied_layers():
    with pytest.raises(SettingsError, match="3 layers are too few for the bucket 'low': use high"):
        Dola().candidates(3, tied=True)
    assert Dola(bucket="high").candidates(3, tied=True) == [1]


def test_flb_refuses_to_run_without_a_cache(llava):
    with attached(Flb(), llava), pytest.raises(UnsupportedModelError, match="leave out use_cache=False"):
        llava.model.generate(**llava.inputs, max_new_tokens=2, do_sample=False, use_cache=False)
