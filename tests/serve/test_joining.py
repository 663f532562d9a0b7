"""Texts that begin beside others that are under way: each is that of a single request, whoever comes and goes."""

from __future__ import annotations

import functools
import threading
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from sira_cli.models.answering.refilling import RefilledSlots
from sira_cli.models.answering.texts import TextSettings
from sira_cli.serve.limits import Limits
from tests.serve.conftest import running
from tests.serve.helpers import LONG, PICTURES, PROMPT, ask, said, streamed, streaming, waiting


def client_of(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=60)


@functools.cache
def single(lvlm, picture, tokens, method="sira", **settings):
    preset = lvlm.preset.with_settings(max_new_tokens=tokens, **settings)
    return lvlm.under(preset.method(method), preset).caption(picture, PROMPT).text


@pytest.mark.parametrize(
    "methods",
    [("sira", "greedy"), *(pytest.param((each, "sira"), marks=pytest.mark.slow) for each in ("sira", "greedy"))],
)
def test_who_comes_later_is_answered_before_a_text_under_way_ends(endless, methods):
    expected = {each: single(endless, *each, methods[1]) for each in ((PICTURES[1], 9), (PICTURES[2], 4))}
    with (
        running(endless, limits=Limits(tokens=LONG)) as address,
        streaming(address, PICTURES[0], methods[0]) as pieces,
    ):
        for (picture, tokens), text in expected.items():
            later = ask(client_of(address), said(picture=picture), {"method": methods[1]}, max_tokens=tokens)
            assert later.choices[0].message.content == text
        text = ""
        while len(text) < 150:
            text += next(pieces)
    assert single(endless, PICTURES[0], 100, methods[0]).startswith(text.rstrip())


def test_who_goes_makes_place(endless):
    """In the only slots, for others of the same kind and of another."""
    expected = {method: single(endless, PICTURES[2], 5, method) for method in ("sira", "greedy", "vcd")}
    with running(endless, limits=Limits(tokens=LONG), batch_size=2) as address:
        with streaming(address) as pieces:
            with streaming(address, PICTURES[1], "greedy"):
                pass
            for method in ("sira", "greedy"):
                short = ask(client_of(address), said(picture=PICTURES[2]), {"method": method}, max_tokens=5)
                assert short.choices[0].message.content == expected[method]
            assert next(pieces)
        other = ask(client_of(address), said(picture=PICTURES[2]), {"method": "vcd"}, max_tokens=5)  # waits for the end
        assert other.choices[0].message.content == expected["vcd"]


def test_whoever_waits_longest_begins_first(endless):
    """A method that cannot join others is not overtaken for ever by those that can."""
    done = []
    expected = {method: single(endless, PICTURES[1], 4, method) for method in ("vcd", "sira", "greedy")}

    def one(method: str) -> None:
        answer = ask(client_of(address), said(picture=PICTURES[1]), {"method": method}, max_tokens=4)
        done.append((method, answer.choices[0].message.content))

    with running(endless, limits=Limits(tokens=LONG)) as address:
        with streaming(address):
            threads = []
            for number, method in enumerate(["vcd", "sira", "greedy", "sira"]):
                threads.append(threading.Thread(target=one, args=(method,)))
                threads[-1].start()
                while waiting(address) < number + 1:
                    assert threads[-1].is_alive()
        for thread in threads:
            thread.join()
    assert done[0][0] == "vcd"
    assert sorted(done) == sorted((method, expected[method]) for method in ("vcd", "sira", "greedy", "sira"))


def test_all_kinds_of_requests_at_once(client, lvlm):
    """Of other lengths, with stops, log-probabilities, seeds, second looks, streamed and not."""
    whole = single(lvlm, PICTURES[0], 24)
    stop = whole.split()[5]
    kinds = [
        {"max_tokens": 5},
        {"max_tokens": 11, "stream": True},
        {"stop": stop, "stream": True},
        {"logprobs": True, "top_logprobs": 2},
        {"temperature": 1.2, "seed": 3},
        {"temperature": 1.2, "seed": 4, "stream": True},
        {"sira": {"verify": "flag"}},
        {"sira": {"words": True}},
        {"sira": {"method": "greedy"}, "logprobs": True},
    ]
    before = [answered(ask(client, **kind)) for kind in kinds]
    assert before[0][0] == single(lvlm, PICTURES[0], 5)
    assert before[1][0] == single(lvlm, PICTURES[0], 11)
    assert before[2][0] == whole[: whole.index(stop)].strip()
    assert before[3][0] == before[6][0] == before[7][0] == whole
    assert before[4][0] == single(lvlm, PICTURES[0], 24, temperature=1.2, seed=3)
    assert before[5][0] == single(lvlm, PICTURES[0], 24, temperature=1.2, seed=4)
    with ThreadPoolExecutor(len(kinds)) as pool:
        found = list(pool.map(lambda kind: answered(ask(client, **kind)), kinds))
    for (text, scores), (expected, expected_scores) in zip(found, before, strict=True):
        assert text == expected
        assert scores == pytest.approx(expected_scores, abs=1e-4)
    assert len(before[3][1]) > 20


def answered(answer) -> tuple[str, list[float]]:
    """Text and log-probabilities."""
    if not hasattr(answer, "choices"):
        return "".join(streamed(answer)), []
    scores = answer.choices[0].logprobs
    return answer.choices[0].message.content, [row.logprob for row in scores.content] if scores else []


def test_a_pass_that_fails_is_tried_again_for_each_text_alone(lvlm, monkeypatch):
    advance, failed = RefilledSlots.advance, []

    def failing(self, pause=None):
        if self.under_way == 3 and not failed:
            for _ in range(6):
                advance(self, lambda: True)
            failed.append(True)
            raise RuntimeError("out of memory")
        return advance(self, pause)

    monkeypatch.setattr(RefilledSlots, "advance", failing)
    expected = [single(lvlm, picture, 24) for picture in PICTURES[:3]]
    with running(lvlm) as address, ThreadPoolExecutor(3) as pool:
        texts = list(
            pool.map(
                lambda picture: "".join(streamed(ask(client_of(address), said(picture=picture), stream=True))),
                PICTURES[:3],
            )
        )
    assert texts == expected
    assert failed


def test_a_text_that_is_changed_at_its_end_comes_in_one_piece(lvlm):
    """Its beginnings are not those of what the preset makes of it."""
    changed = lvlm.preset.model_copy(update={"text": TextSettings(prefix="photo: ", max_sentences=1)})
    lvlm = lvlm.under(lvlm.decoder, changed)
    expected = lvlm.caption(PICTURES[0], PROMPT).text
    assert expected.startswith("photo: ")
    with running(lvlm) as address:
        assert streamed(ask(client_of(address), stream=True)) == [expected]
