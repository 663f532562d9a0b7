"""OPERA: its search equals its slow reference, goes back when it must, and ends."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from sira_cli.core.arguments import CACHE
from sira_cli.core.config import SiraConfig
from sira_cli.core.fork import attach as attach_sira
from sira_cli.errors import AttachError, SettingsError, UnsupportedModelError
from sira_cli.methods.attaching import attach
from sira_cli.methods.opera import Opera
from sira_cli.methods.opera_search import Ending, OperaRun, Search
from sira_cli.models.preset import Generation
from sira_cli.models.sampling import processors_of
from tests.support import decoding, tiny
from tests.support.helpers import generate, hooks, left_pad, mostly_slow
from tests.support.prompts import family_prompts, llava_prompts
from tests.support.reference_opera import SlowOpera
from tests.support.tiny import Tiny

FAMILIES = [name for name in tiny.REPRESENTATIVES if name in tiny.COLUMNS]
SMALL = Opera(beams=2, candidates=3, threshold=2)
TRUSTED = 10  # the column that `trusting` makes every row look at


@functools.cache
def case_of(name: str, attention: str = "sdpa") -> Tiny:
    """A tiny model that never says an image token, not even as a candidate: the reference would miss its picture."""
    case = decoding.case_of.__wrapped__(name)
    if attention == "eager":
        case.model.set_attn_implementation(attention)
    silence(case.model)
    return case


def silence(model) -> None:
    dead = torch.tensor(tiny.SUPPRESS)
    model.get_output_embeddings().register_forward_hook(lambda *hook: hook[-1].index_fill(-1, dead, -1e4))


def decoded(method: Opera, case: Tiny, inputs: dict | None = None, **settings) -> tuple[list[list[int]], OperaRun]:
    """New tokens of each row, without an end, and the run."""
    inputs, runs = case.inputs if inputs is None else inputs, []
    settings = {"max_new_tokens": 6, "eos_token_id": None, **settings}
    output = method.generate(case.model, inputs, SiraConfig(), {}, on_attach=runs.append, **settings)
    assert torch.equal(output[:, : inputs["input_ids"].shape[1]], inputs["input_ids"])
    return output[:, inputs["input_ids"].shape[1] :].tolist(), runs[0]


def expected(method: Opera, case: Tiny, steps: int = 6, ends: tuple[int, ...] = ()):
    return SlowOpera(case, asdict(method), ends).decode(steps)


@contextmanager
def trusting(case: Tiny, weight: float = 8.0) -> Iterator[None]:
    """Let every row of the last layer look at one column of a single prompt's text, wherever eager attention runs."""
    last = case.model.get_decoder().layers[-1].self_attn
    module, column = sys.modules[type(last).__module__], case.inputs["input_ids"].shape[1] + TRUSTED
    original = module.eager_attention_forward

    def biased(attention, query, key, value, attention_mask, *args, **kwargs):
        q, n = query.shape[2], key.shape[2]
        place = n - q if q < TRUSTED else n - 1  # of the newest token; several that are looked ahead share it
        if getattr(attention, "layer_idx", None) == last.layer_idx and place >= column:
            attention_mask = attention_mask.clone()
            attention_mask[..., column : None if place == column else column + 1] += weight
        return original(attention, query, key, value, attention_mask, *args, **kwargs)

    module.eager_attention_forward = biased
    try:
        yield
    finally:
        module.eager_attention_forward = original


# --- the rule


@pytest.mark.parametrize("name", mostly_slow(FAMILIES, "LLaVA-1.5", "Qwen2.5-VL", "Gemma 3"))
def test_equals_its_reference(name: str):
    """Past the tenth token the penalty takes the place of the gain; damping 1 would leave the least trusting token."""
    case, method = case_of(name), Opera(damping=0.01)
    slow = expected(method, case, 13)
    assert max(slow.phi[10:]) > 10  # else no penalty would be felt
    assert decoded(method, case, max_new_tokens=13)[0] == [slow.tokens]


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"penalty": 0.0}, {"penalty": 3.0}, {"damping": 1.0}, {"scale": 5.0}])
def test_each_strength_is_felt_and_is_the_reference_s(change: dict):
    others = 0
    for name in ("LLaVA-1.5", "InternVL", "PaliGemma"):
        case, base = case_of(name), Opera(damping=0.01)
        method = base.with_settings(**change)
        found = decoded(method, case, max_new_tokens=13)[0]
        assert found == [expected(method, case, 13).tokens]
        others += found != decoded(base, case, max_new_tokens=13)[0]
    assert others


@pytest.mark.parametrize("name", mostly_slow(FAMILIES, "LLaVA-1.5", "Gemma 3"))
def test_without_strength_and_with_every_token_a_candidate_it_is_beam_search(name: str):
    """Log-probabilities are those among the candidates: with fewer of them beams are weighed in another way."""
    case = case_of(name)
    method = Opera(penalty=0, candidates=tiny.VOCABULARY, attempts=0, length="text")
    for settings in ({}, {"eos_token_id": [150, 145, 45, 35, 117], "length_penalty": 0.5, "early_stopping": True}):
        beams = generate(case.model, case.inputs, num_beams=5, **settings)
        assert decoded(method, case, suppress_tokens=tiny.SUPPRESS, **settings)[0] == beams.tolist()


@pytest.mark.parametrize(
    ("early_stopping", "length_penalty"),
    mostly_slow(itertools.product([False, True, "never"], [0.0, 1.0, 3.0]), (False, 1.0), (True, 3.0), ("never", 0.0)),
)
def test_texts_end_as_in_beam_search(early_stopping, length_penalty: float):
    case, ends = case_of("LLaVA-1.5"), [150, 145, 131, 123, 7]
    settings = {"early_stopping": early_stopping, "length_penalty": length_penalty, "eos_token_id": ends}
    beams = generate(case.model, case.inputs, num_beams=4, max_new_tokens=14, **settings).tolist()
    method = Opera(beams=4, penalty=0, candidates=tiny.VOCABULARY, attempts=0, length="text")
    assert decoded(method, case, max_new_tokens=14, **settings)[0] == beams


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
    assert len(texts["published"]) <= len(texts["text"])
    assert (texts["published"] != texts["text"]) == (150 not in ends)


def test_a_text_that_ended_is_divided_by_prompt_and_text_without_the_end():
    """By hand: two pictures of 2 and 3 tokens among 4 of text count as two; 3 tokens of padding count nothing."""
    image = torch.tensor([False] * 4 + [True] * 2 + [False] * 2 + [True] * 3 + [False])
    rule = Opera(beams=2)
    ending = Ending(lambda ids: ids[:, -1] == 9, torch.tensor([9]), 4, 1.0, False, 5)
    search = Search(rule, torch.ones(12, dtype=torch.long), image, 3, ending)
    scores = torch.full((2, 10), -torch.inf)
    scores[0, 8], scores[0, 9] = -1.0, -2.0
    search.weigh(torch.zeros(2, 10), torch.tensor([[8, 9]] * 2), torch.ones(2, 2, 13))
    search.step(scores)
    [(score, tokens)] = search.beams.finished
    assert (score, tokens.tolist()) == (pytest.approx(-2.0 / (4 + 2), abs=1e-6), [9])
    assert search.beams.open  # -1 by 7 may still be better


def test_a_last_layer_with_a_sliding_window():
    """What lies beyond the window gets no attention there: no gain, and no trust."""
    case = tiny.gemma3()
    text = case.model.config.get_text_config()
    text.layer_types = [*text.layer_types[:-1], "sliding_attention"]
    model = tiny.build(case.model.config, type(case.model))
    assert model.get_decoder().layers[-1].self_attn.is_sliding
    silence(model)
    case, method = Tiny(model, case.inputs, case.grown), Opera(beams=3, candidates=3, damping=0.01)
    assert decoded(method, case, max_new_tokens=16)[0] == [expected(method, case, 16).tokens]


# --- the way back


@pytest.mark.parametrize("name", mostly_slow(FAMILIES, FAMILIES[0]))
def test_goes_back_when_every_beam_trusts_one_column_for_too_long(name: str):
    """Twice behind that column, then twice to it; everything is as the reference has it."""
    case = case_of(name, "eager")
    method = Opera(beams=2, candidates=3, threshold=2, attempts=2, damping=1e-4)
    with trusting(case):
        slow = expected(method, case, 18)
        tokens, run = decoded(method, case, max_new_tokens=18)
    assert slow.back == [TRUSTED + 1] * 2 + [TRUSTED] * 2
    assert run.rollbacks == 4
    assert tokens == [slow.tokens]
    straight = method.with_settings(attempts=0)
    with trusting(case):
        without, run = decoded(straight, case, max_new_tokens=18)
    assert run.rollbacks == 0
    assert without != tokens


@pytest.mark.parametrize(
    ("ends", "more"),
    [
        ((108, 109, 110), {"damping": 1e-4}),
        pytest.param((0, 1, 2), {"length": "text"}, marks=pytest.mark.slow),
        pytest.param((72, 73, 74), {"attempts": 3, "damping": 1e-4}, marks=pytest.mark.slow),
    ],
)
def test_texts_that_ended_after_a_place_are_known_when_it_is_gone_back_to_again(ends: tuple[int, ...], more: dict):
    """The published code takes its stored scorer, not a copy of it: all three end with a text of a branch it left."""
    case = case_of("LLaVA-1.5", "eager")
    method = Opera(**{"beams": 2, "candidates": 3, "threshold": 2, "attempts": 2, "damping": 0.01, **more})
    with trusting(case):
        slow = expected(method, case, 18, ends)
        tokens, _ = decoded(method, case, max_new_tokens=18, eos_token_id=list(ends))
    assert slow.back[:2] == [TRUSTED + 1] * 2
    assert slow.tokens[-1] in ends
    assert tokens == [slow.tokens]


@pytest.mark.parametrize("threshold", mostly_slow([2, 4, 15], 2))
def test_the_threshold_is_the_number_of_steps_that_are_not_yet_too_many(threshold: int):
    """Column 10 exists from the 11th token on: it is trusted more than n times with token 11 + n."""
    case = case_of("LLaVA-1.5", "eager")
    method = Opera(beams=2, candidates=2, threshold=threshold, attempts=1)
    with trusting(case):
        assert decoded(method, case, max_new_tokens=TRUSTED + threshold)[1].rollbacks == 0
        tokens, run = decoded(method, case, max_new_tokens=TRUSTED + threshold + 1)
        slow = expected(method, case, TRUSTED + threshold + 1)
    assert run.rollbacks == len(slow.back) == 2  # behind the column, and to it
    assert tokens == [slow.tokens]


def test_without_being_forced_it_also_goes_back_as_the_reference_does():
    case, method = case_of("Qwen2.5-VL"), Opera(threshold=2, damping=0.01)
    slow = expected(method, case, 24)
    assert slow.back == [11]
    tokens, run = decoded(method, case, max_new_tokens=24)
    assert (tokens, run.rollbacks) == ([slow.tokens], len(slow.back))


def test_what_was_refused_on_a_branch_that_was_left_is_free_on_another():
    never = Ending(lambda ids: ids[:, -1] == 9, torch.tensor([9]), 2, 1.0, False, 9)
    image = torch.tensor([False, True, False])
    search = Search(Opera(beams=1, candidates=1), torch.ones(3, dtype=torch.long), image, 0, never)

    def say(*tokens: int) -> None:
        for token in tokens:
            candidates, attention = torch.tensor([[token]]), torch.ones(1, 1, 3 + search.length + 1)
            search.step(search.weigh(torch.zeros(1, 10), candidates, attention))
            search.settle(attention[:, 0])

    def refused() -> list[int]:
        return search.choose_again(torch.zeros(1, 10))[0].isneginf().nonzero().flatten().tolist()

    say(1, 2, 3)
    search.go_back(2)
    assert refused() == [3]
    say(6)
    search.go_back(1)
    assert refused() == [2]
    say(4, 5)
    search.go_back(2)
    assert refused() == [5]


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


def test_the_cache_holds_each_beam_once_and_a_token_costs_one_pass_of_all_beams():
    case, inputs, shapes = case_of("LLaVA-1.5"), left_pad(llava_prompts()), []
    handle = case.model.register_forward_hook(
        lambda model, args, kwargs, output: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    try:
        _, run = decoded(Opera(beams=2, candidates=3), case, inputs, max_new_tokens=9)
    finally:
        handle.remove()
    prompt = inputs["input_ids"].shape
    assert shapes == [prompt] + [(3 * 2, 3)] * 9  # the prompts once, not for each beam
    for layer in run.passes.cache.layers:
        assert (layer.keys.shape[0], layer.keys.shape[2]) == (3 * 2, prompt[1] + 8)


# --- what `generate` gets


class Forbid(LogitsProcessor):
    """Never the same token twice; it wants a row per prompt, and knows them by their first token."""

    def __init__(self, firsts: list[int]) -> None:
        self.firsts = firsts

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        assert input_ids[:, 0].tolist() == self.firsts
        return scores.scatter(1, input_ids, -torch.inf)


@pytest.mark.parametrize("method", [SMALL, Opera(beams=1, candidates=1, attempts=0)], ids=["back", "none left"])
def test_processors_count_and_see_a_row_per_prompt(method: Opera):
    case, singles = case_of("LLaVA-1.5"), llava_prompts()
    texts = []
    for inputs in (left_pad(singles), *singles):
        forbid = Forbid(inputs["input_ids"][:, 0].tolist())
        rows = decoded(method, case, inputs, max_new_tokens=20, logits_processor=LogitsProcessorList([forbid]))[0]
        texts += rows
        for row, prompt in zip(rows, inputs["input_ids"].tolist(), strict=True):
            assert len(set(row)) == 20
            assert not set(row) & set(prompt)
    assert texts[:3] == texts[3:]


@pytest.mark.parametrize(
    ("penalty", "ngram", "ends"), [(1.7, 0, None), (1.0, 2, [150, 45, 35, 41, 7])], ids=["full", "ends"]
)
def test_settings_against_repetition_work_in_batches(penalty: float, ngram: int, ends):
    """The processors know each row's padding, so they get every row, also of texts that have ended."""
    case, singles = case_of("LLaVA-1.5"), llava_prompts()
    generation = Generation(repetition_penalty=penalty, no_repeat_ngram_size=ngram)

    def texts(inputs: dict, **more) -> list[list[int]]:
        return decoded(Opera(threshold=2, damping=0.01), case, inputs, max_new_tokens=16, eos_token_id=ends, **more)[0]

    def processed(inputs: dict) -> list[list[int]]:
        return texts(inputs, logits_processor=processors_of(generation, inputs["attention_mask"]))

    together, alone = processed(left_pad(singles)), [processed(single)[0] for single in singles]
    assert together == [row + [0] * (len(together[0]) - len(row)) for row in alone]
    assert together != texts(left_pad(singles))
    assert ends is None or len({len(row) for row in alone}) > 1


class AfterThree(StoppingCriteria):
    """Texts end with three new tokens."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs) -> torch.Tensor:
        return torch.full((len(input_ids),), input_ids.shape[1] >= 30 + 3)


class Clock(BaseStreamer):
    def __init__(self) -> None:
        self.sizes: list[int] = []

    def put(self, value: torch.Tensor) -> None:
        self.sizes.append(value.numel())

    def end(self) -> None:
        self.sizes.append(-1)


def test_a_streamer_hears_of_each_length_once_and_stopping_criteria_end_texts():
    tokens, _ = decoded(Opera(), case_of("LLaVA-1.5"), stopping_criteria=StoppingCriteriaList([AfterThree()]))
    assert len(tokens[0]) == 3
    case, clock = case_of("Qwen2.5-VL"), Clock()
    tokens, run = decoded(Opera(threshold=2, damping=0.01), case, max_new_tokens=24, streamer=clock)
    assert run.rollbacks
    assert clock.sizes == [case.inputs["input_ids"].numel()] + [1] * len(tokens[0]) + [-1]


# --- what it refuses, and what it leaves behind


CACHES, SEARCHES = f"leave out {CACHE}, cache_implementation", "beams of its own: leave out do_sample, num_beams"


@pytest.mark.parametrize(
    ("error", "message", "settings"),
    [
        (SettingsError, SEARCHES, {"do_sample": True}),
        (SettingsError, SEARCHES, {"num_beams": 2}),
        (SettingsError, SEARCHES, {"num_return_sequences": 2, "num_beams": 2}),
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


def test_it_ends_however_often_it_is_sent_back():
    """Each place is tried `attempts` times at most, so every search is over at some point."""
    case = case_of("LLaVA-1.5", "eager")
    with trusting(case, 20.0):
        tokens, run = decoded(Opera(beams=2, candidates=2, threshold=2, attempts=7), case, max_new_tokens=30)
    assert len(tokens[0]) == 30
    assert 14 <= run.rollbacks <= 7 * 30
