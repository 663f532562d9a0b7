"""Texts of many requests at once: each is that of a single request, whoever comes and goes."""

from __future__ import annotations

import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from sira_cli.models.texts import TextSettings
from sira_cli.serve.limits import Limits
from tests.serve.conftest import running
from tests.serve.helpers import LONG, PICTURES, PROMPT, ask, said, streamed, streaming, waiting


def client_of(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=60)


@functools.cache
def single(lvlm, picture, tokens, method="sira", **settings):
    preset = lvlm.preset.with_settings(max_new_tokens=tokens, **settings)
    return lvlm.under(preset.method(method), preset).caption(picture, PROMPT).text


def test_whoever_waits_longest_begins_first(endless):
    """A method is not overtaken for ever by others."""
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
    """Of other lengths, with stops, log-probabilities, seeds, second looks, schemas, streamed and not."""
    whole = single(lvlm, PICTURES[0], 24)
    few = {"type": "array", "items": {"enum": ["dog", "tree", "día"]}, "minItems": 1, "maxItems": 2}
    values = {"response_format": {"type": "json_schema", "json_schema": {"name": "few", "schema": few}}}
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
        {"sira": {"method": "greedy", "verify": "guide"}},
        values,
        {"sira": {"method": "vcd"}, **values},
    ]
    before = [answered(ask(client, **kind)) for kind in kinds]
    assert before[0][0] == single(lvlm, PICTURES[0], 5)
    assert before[1][0] == single(lvlm, PICTURES[0], 11)
    assert before[2][0] == whole[: whole.index(stop)].strip()
    assert before[3][0] == before[6][0] == before[7][0] == whole
    assert before[4][0] == single(lvlm, PICTURES[0], 24, temperature=1.2, seed=3)
    assert before[5][0] == single(lvlm, PICTURES[0], 24, temperature=1.2, seed=4)
    vcd = lvlm.under(lvlm.preset.method("vcd"))
    assert before[-1][0] == vcd.caption(PICTURES[0], PROMPT, schema=few).text
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


def test_a_pass_that_fails_is_tried_again_for_each_text_alone(endless):
    expected = [single(endless, picture, 24) for picture in PICTURES[:3]]
    passes = []

    def failing(model, arguments, named):
        passes.append(len(named["input_ids"]))
        if passes[-1] == 3 and passes.count(3) == 6:
            raise RuntimeError("out of memory")

    def one(picture: Path) -> str:
        return "".join(streamed(ask(client_of(address), said(picture=picture), stream=True, max_tokens=24)))

    hook = endless.model.register_forward_pre_hook(failing, with_kwargs=True)
    try:
        with running(endless, limits=Limits(tokens=LONG)) as address, ThreadPoolExecutor(3) as pool:
            with streaming(address, PICTURES[3]):
                texts = [pool.submit(one, picture) for picture in PICTURES[:3]]
                while waiting(address) < 3:
                    assert not any(text.done() for text in texts)
            assert [text.result() for text in texts] == expected
    finally:
        hook.remove()
    assert passes.count(3) == 6


def test_a_text_that_is_changed_at_its_end_comes_in_one_piece(lvlm):
    """Its beginnings are not those of what the preset makes of it."""
    changed = lvlm.preset.model_copy(update={"text": TextSettings(prefix="photo: ", max_sentences=1)})
    lvlm = lvlm.under(lvlm.decoder, changed)
    expected = lvlm.caption(PICTURES[0], PROMPT).text
    assert expected.startswith("photo: ")
    with running(lvlm) as address:
        assert streamed(ask(client_of(address), stream=True)) == [expected]
