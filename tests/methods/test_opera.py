"""OPERA: its search equals its slow reference, goes back when it must, and ends."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys

import pytest
import torch
from transformers import LogitsProcessorList, StoppingCriteriaList

from sira_cli.core.arguments import CACHE
from sira_cli.core.config import SiraConfig
from sira_cli.core.fork import attach as attach_sira
from sira_cli.errors import AttachError, SettingsError, UnsupportedModelError
from sira_cli.methods.attaching import attach
from sira_cli.methods.opera import Opera
from sira_cli.methods.opera_search import Ending, OperaRun, Search
from sira_cli.models.preset import Generation
from sira_cli.models.sampling import processors_of
from tests.support import helpers, tiny
from tests.support.helpers import Listener, family_prompts, generate, hooks, left_pad, mostly_slow
from tests.support.reference_opera import SlowOpera
from tests.support.tiny import Tiny

FAMILIES = [name for name in tiny.REPRESENTATIVES if name in tiny.COLUMNS]
TRUSTED = 10  # the column that `trusting` makes every row look at


@functools.cache
def case_of(name: str, attention: str = "sdpa") -> Tiny:
    case = helpers.case_of.__wrapped__(name)
    if name == "Gemma 3":  # as the real one's, its last layer slides: what lies beyond gets no gain and no trust
        case.model.config.text_config.layer_types[-1] = "sliding_attention"
        case = dataclasses.replace(case, model=tiny.build(case.model.config, type(case.model)))
    if attention == "eager":
        case.model.set_attn_implementation(attention)
    return helpers.silenced(case)


def decoded(method: Opera, case: Tiny, inputs: dict | None = None, **settings) -> tuple[list[list[int]], OperaRun]:
    """New tokens of each row, without an end, and the run."""
    inputs, runs = case.inputs if inputs is None else inputs, []
    settings = {"max_new_tokens": 6, "eos_token_id": None, **settings}
    output = method.generate(case.model, inputs, SiraConfig(), {}, on_attach=runs.append, **settings)
    assert torch.equal(output[:, : inputs["input_ids"].shape[1]], inputs["input_ids"])
    return output[:, inputs["input_ids"].shape[1] :].tolist(), runs[0]


def expected(method: Opera, case: Tiny, steps: int = 6, ends: tuple[int, ...] = ()):
    return SlowOpera(case, dataclasses.asdict(method), steps, ends)


def trust_one_column(case: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every row of the last layer look at one column of a single prompt's text, wherever eager attention runs."""
    last = case.model.get_decoder().layers[-1].self_attn
    module, column = sys.modules[type(last).__module__], case.inputs["input_ids"].shape[1] + TRUSTED
    original = module.eager_attention_forward

    def biased(attention, query, key, value, attention_mask, *args, **kwargs):
        q, n = query.shape[2], key.shape[2]
        place = n - q if q < TRUSTED else n - 1  # of the newest token; several that are looked ahead share it
        if getattr(attention, "layer_idx", None) == last.layer_idx and place >= column:
            attention_mask = attention_mask.clone()
            attention_mask[..., column : None if place == column else column + 1] += 8.0
        return original(attention, query, key, value, attention_mask, *args, **kwargs)

    monkeypatch.setattr(module, "eager_attention_forward", biased)


# --- the rule

STRENGTHS = [{"penalty": 0.0}, {"penalty": 3.0}, {"damping": 1.0}, {"scale": 5.0}]
CASES = [*((name, {}) for name in FAMILIES), *itertools.product(["LLaVA-1.5", "InternVL"], STRENGTHS)]
BACK = ("Qwen2.5-VL", {"threshold": 2})  # goes back without being forced to


@pytest.mark.parametrize(("name", "change"), mostly_slow([*CASES, BACK], CASES[0], CASES[1], ("Gemma 3", {}), BACK))
def test_equals_its_reference(name: str, change: dict):
    """Past the tenth token the penalty takes the place of the gain; damping 1 would leave the least trusting token."""
    case, method, steps = case_of(name), Opera(**{"damping": 0.01, **change}), 24 if change == BACK[1] else 13
    slow = expected(method, case, steps)
    assert change or max(slow.phi[10:]) > 10  # else no penalty would be felt
    tokens, run = decoded(method, case, max_new_tokens=steps)
    assert (tokens, run.rollbacks) == ([slow.tokens], len(slow.back))
    assert slow.back == [11] * (change == BACK[1])


ENDINGS = [{}, {"eos_token_id": [150, 145, 45, 35, 117], "length_penalty": 0.5, "early_stopping": True}]
SEARCHES = [*itertools.product(FAMILIES, ENDINGS)]
for early, power in itertools.product([False, True, "never"], [0.0, 1.0, 3.0]):
    ending = {"eos_token_id": [150, 145, 131, 123, 7], "early_stopping": early, "length_penalty": power}
    SEARCHES.append(("LLaVA-1.5", ending | {"max_new_tokens": 14}))
QUICK = [*SEARCHES[:2], ("Gemma 3", {}), SEARCHES[-8], SEARCHES[-4], SEARCHES[-3]]


@pytest.mark.parametrize(("name", "settings"), mostly_slow(SEARCHES, *QUICK))
def test_without_strength_and_with_all_candidates_it_is_beam_search(name: str, settings: dict):
    """Log-probabilities are those among the candidates: with fewer of them beams are weighed in another way."""
    case, method = case_of(name), Opera(penalty=0, candidates=tiny.VOCABULARY, attempts=0, length="text")
    beams = generate(case.model, case.inputs, num_beams=5, **settings)
    assert decoded(method, case, suppress_tokens=tiny.SUPPRESS, **settings)[0] == beams.tolist()


ENDS = [("LLaVA-1.5", (150, 45, 35, 6)), ("LLaVA-1.5", (97, 7, 156, 188)), ("LLaVA-1.5", (123, 183, 97, 131))]
ENDS += [("Pixtral (LLaVA)", (150, 45, 35, 6)), ("Pixtral (LLaVA)", (122, 180, 31, 93))]


@pytest.mark.parametrize(("name", "ends"), mostly_slow(ENDS, *ENDS[:2]))
def test_ends_equal_the_reference_s_by_either_length(name: str, ends: tuple[int, ...]):
    """A published score is divided by more, so that a longer text gains less by its length."""
    case, method, texts = case_of(name), Opera(beams=3, candidates=4, damping=0.01), {}
    for length in ("published", "text"):
        named = method.with_settings(length=length)
        texts[length] = expected(named, case, 12, ends).tokens
        assert decoded(named, case, max_new_tokens=12, eos_token_id=list(ends))[0] == [texts[length]]
    assert texts["published"][-1] in ends
    assert (texts["published"] != texts["text"]) == (150 not in ends)


# --- the way back

ROWS = [(name, {}, (), 18, [11, 11, 10, 10]) for name in FAMILIES]  # twice behind the column, then twice to it
# Column 10 exists from the 11th token on: it is trusted more than n times with token 11 + n.
for threshold, more in itertools.product([2, 4, 15], [0, 1]):
    settings = {"candidates": 2, "threshold": threshold, "attempts": 1}
    ROWS.append(("LLaVA-1.5", settings, (), TRUSTED + threshold + more, [11, 10] * more))
# The published code takes its stored scorer, not a copy of it: these end with a text of a branch that was left.
LEFT = [((108, 109, 110), {}), ((0, 1, 2), {"length": "text", "damping": 0.01}), ((72, 73, 74), {"attempts": 3})]
ROWS += [("LLaVA-1.5", settings, ends, 18, [11, 11]) for ends, settings in LEFT]


@pytest.mark.parametrize(
    ("name", "settings", "ends", "steps", "back"), mostly_slow(ROWS, ROWS[0], *ROWS[-9:-7], ROWS[-3])
)
def test_goes_back_as_the_reference_when_beams_trust_one_column(name, settings, ends, steps, back, monkeypatch):
    case = case_of(name, "eager")
    trust_one_column(case, monkeypatch)
    method = Opera(**{"beams": 2, "candidates": 3, "threshold": 2, "attempts": 2, "damping": 1e-4, **settings})
    slow = expected(method, case, steps, ends)
    tokens, run = decoded(method, case, max_new_tokens=steps, eos_token_id=[*ends] or None)
    assert (slow.back[:2] if ends else slow.back) == back
    assert (tokens, run.rollbacks) == ([slow.tokens], len(slow.back))
    assert not ends or slow.tokens[-1] in ends


def test_what_was_refused_on_a_branch_that_was_left_is_free_on_another():
    never = Ending(lambda ids: ids[:, -1] == 9, torch.tensor([9]), 2, 1.0, False, 9)
    image = torch.tensor([False, True, False])
    search = Search(Opera(beams=1, candidates=1), torch.ones(3, dtype=torch.long), image, 0, never)
    for tokens, back, refused in (((1, 2, 3), 2, [3]), ((6,), 1, [2]), ((4, 5), 2, [5]), ((8,), 2, [5, 8])):
        for token in tokens:
            candidates, attention = torch.tensor([[token]]), torch.ones(1, 1, 3 + search.length + 1)
            search.step(search.weigh(torch.zeros(1, 10), candidates, attention))
            search.settle(attention[:, 0])
        search.go_back(back)
        assert search.choose_again(torch.zeros(1, 10))[0].isneginf().nonzero().flatten().tolist() == refused
    search = Search(Opera(beams=2, threshold=2), torch.ones(3, dtype=torch.long), image, 0, never)
    search._trusted = [[10, 12]] * 3 + [[12, 10]] * 3  # the first of columns that are trusted alike counts
    assert search.way_back() == 11


@pytest.mark.parametrize(("length", "goes_on"), [("published", True), ("text", False)])
def test_the_published_search_hopes_for_a_continuation_that_has_just_ended(length: str, goes_on: bool):
    ending = Ending(lambda ids: ids[:, -1] == 1, torch.tensor([1]), 2, 1.0, False, 9)
    rule, image = Opera(beams=1, candidates=2, length=length), torch.tensor([False, True, False])
    search = Search(rule, torch.ones(3, dtype=torch.long), image, 0, ending)
    search.step(torch.tensor([[-5.0, -1.0, -9.0]]))
    assert search.beams.open == goes_on


# --- batches


@pytest.mark.parametrize("name", ["LLaVA-1.5", "Qwen2.5-VL", "Gemma 3"])
@pytest.mark.parametrize(
    "ends", [None, pytest.param([150, 45, 35, 41, 7], marks=pytest.mark.slow)], ids=["full", "ends"]
)
def test_each_row_of_a_left_padded_batch_is_its_single_run(name: str, ends):
    """Some end early, and some go back while others go on."""
    case, back = case_of(name), []
    singles = family_prompts(name, case)
    method = Opera(threshold=2, damping=0.01)
    together, run = decoded(method, case, left_pad(singles), max_new_tokens=26, eos_token_id=ends)
    for row, single in zip(together, singles, strict=True):
        [alone], of_one = decoded(method, case, single, max_new_tokens=26, eos_token_id=ends)
        assert row == alone + [0] * (len(row) - len(alone))
        back.append(of_one.rollbacks)
    assert run.rollbacks == sum(back)
    if name != "Gemma 3" and ends is None:
        assert len(set(back)) > 1  # else no text would ever be shorter than another


# --- what `generate` gets


@pytest.mark.parametrize(
    ("penalty", "ngram", "ends"), [(1.7, 0, None), (1.0, 2, [150, 45, 35, 41, 7])], ids=["full", "ends"]
)
def test_settings_against_repetition_work_in_batches(penalty: float, ngram: int, ends):
    """The processors know each row's padding, so they get every row, also of texts that have ended."""
    case = case_of("LLaVA-1.5")
    singles = family_prompts("LLaVA-1.5", case)
    generation = Generation(repetition_penalty=penalty, no_repeat_ngram_size=ngram)

    def texts(inputs: dict, **more) -> list[list[int]]:
        return decoded(Opera(threshold=2, damping=0.01), case, inputs, max_new_tokens=16, eos_token_id=ends, **more)[0]

    def processed(inputs: dict) -> list[list[int]]:
        return texts(inputs, logits_processor=processors_of(generation, inputs["attention_mask"]))

    together, alone = processed(left_pad(singles)), [processed(single)[0] for single in singles]
    assert together == [row + [0] * (len(together[0]) - len(row)) for row in alone]
    assert together != texts(left_pad(singles))
    assert ends is None or len({len(row) for row in alone}) > 1


def test_a_beam_whose_candidates_are_all_ruled_out_chooses_from_all_tokens():
    case, once = case_of("LLaVA-1.5"), LogitsProcessorList([lambda ids, scores: scores.scatter(1, ids, -torch.inf)])
    [row], _ = decoded(Opera(beams=1, candidates=1, attempts=0), case, max_new_tokens=20, logits_processor=once)
    assert len({*row}) == 20


def test_a_streamer_hears_of_each_length_once():
    case, listener = case_of("Qwen2.5-VL"), Listener()
    prompt = case.image.shape[1]
    tokens, run = decoded(Opera(threshold=2, damping=0.01), case, max_new_tokens=24, streamer=listener)
    assert run.rollbacks
    assert [*map(len, listener.parts)] == [prompt, *[1] * len(tokens[0]), 0]
    after_three = [lambda ids, scores, **more: torch.full((len(ids),), ids.shape[1] >= prompt + 3)]
    assert len(decoded(Opera(), case, stopping_criteria=StoppingCriteriaList(after_three))[0][0]) == 3


# --- what it refuses, and what it leaves behind

CACHES, SEARCHES = f"leave out {CACHE}, cache_implementation", "beams of its own: leave out do_sample, num_beams"


@pytest.mark.parametrize(
    ("error", "message", "settings"),
    [
        (SettingsError, SEARCHES, {"do_sample": True}),
        (SettingsError, SEARCHES, {"num_beams": 2}),
        (UnsupportedModelError, CACHES, {"use_cache": False}),
        (UnsupportedModelError, CACHES, {"cache_implementation": "static"}),
        (SettingsError, "leave out on_step", {"on_step": print}),
    ],
)
def test_what_the_search_cannot_do_is_refused(error, message: str, settings: dict):
    case = case_of("LLaVA-1.5")
    with pytest.raises(error, match=message):
        decoded(Opera(), case, **settings)
    with pytest.raises(SettingsError, match="method opera has a search of its own"), attach(case.model, method="opera"):
        pass
    with attach_sira(case.model, SiraConfig(k=3)), pytest.raises(AttachError, match="attached to this model already"):
        decoded(Opera(), case)


def test_the_model_is_afterwards_what_it_was_also_after_an_error(monkeypatch: pytest.MonkeyPatch):
    case = case_of("LLaVA-1.5")
    plain, before = generate(case.model, case.inputs), hooks(case.model)
    attention = case.model.get_decoder().layers[-1].self_attn
    decoded(Opera(), case)
    monkeypatch.setattr(Search, "weigh", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        decoded(Opera(), case)
    monkeypatch.setattr(sys.modules[type(attention).__module__], "eager_attention_forward", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # in the middle of what is recomputed
        decoded(Opera(), case)
    assert hooks(case.model) == before
    assert attention.config._attn_implementation == "sdpa"
    assert torch.equal(generate(case.model, case.inputs), plain)


def test_the_defaults_are_the_authors():
    settings = {"beams": 5, "candidates": 5, "scale": 50, "penalty": 1, "damping": 1e-7, "threshold": 15, "attempts": 5}
    assert Opera().settings() == {**settings, "length": "published"}
