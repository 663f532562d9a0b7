"""Texts of many requests at once: each is that of a single request, whoever comes and goes."""

from __future__ import annotations

import functools
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from sira_cli.models.texts import TextSettings
from sira_cli.serve import Limits
from tests.serve.conftest import running
from tests.serve.helpers import (
    LONG,
    PICTURES,
    PROMPT,
    ask,
    client_of,
    counted,
    rows,
    said,
    streamed,
    streaming,
    text,
    waiting,
)


@functools.cache
def single(lvlm, picture, tokens, method="sira", **settings):
    preset = lvlm.preset.with_settings(max_new_tokens=tokens, **settings)
    return lvlm.under(preset.method(method), preset).caption(picture, PROMPT).text


def test_whoever_waits_longest_begins_first(endless):
    """A method is not overtaken for ever by others. A text that a stop ends in a batch has its own tokens only."""
    words = single(endless, PICTURES[1], 4).split()
    expected = {(method, None): (single(endless, PICTURES[1], 4, method), 4) for method in ("vcd", "sira", "greedy")}
    expected["sira", words[2]] = " ".join(words[:2]), 3
    done = {}

    def one(method: str, stop: str | None) -> None:
        picture, sira = said(picture=PICTURES[1]), {"method": method}
        answer = ask(client_of(address), picture, sira, max_tokens=4, stop=stop)
        done[method, stop] = text(answer), answer.usage.completion_tokens

    with running(endless, limits=Limits(tokens=LONG)) as address, ThreadPoolExecutor(4) as pool, streaming(address):
        for number, request in enumerate(expected):
            sent = pool.submit(one, *request)
            while waiting(address) < number + 1:
                assert not sent.done()
                time.sleep(0.01)
    assert (next(iter(done))[0], done) == ("vcd", expected)


def test_all_kinds_of_requests_at_once(client, lvlm):
    """Of other lengths, with stops, log-probabilities, seeds, second looks, schemas, streamed and not."""
    whole = single(lvlm, PICTURES[0], 24)
    few = {"type": "array", "items": {"enum": ["dog", "tree", "día"]}, "minItems": 1, "maxItems": 2}
    values = {"response_format": {"type": "json_schema", "json_schema": {"name": "few", "schema": few}}}
    stop = whole.split()[5]
    vcd = lvlm.under(lvlm.preset.method("vcd"))
    kinds = [  # the request, and its text
        ({"max_tokens": 5}, single(lvlm, PICTURES[0], 5)),
        ({"max_tokens": 11, "stream": True}, single(lvlm, PICTURES[0], 11)),
        ({"stop": stop, "stream": True}, whole[: whole.index(stop)].strip()),
        ({"logprobs": True, "top_logprobs": 2}, whole),
        ({"temperature": 1.2, "seed": 3}, single(lvlm, PICTURES[0], 24, temperature=1.2, seed=3)),
        ({"temperature": 1.2, "seed": 4, "stream": True}, single(lvlm, PICTURES[0], 24, temperature=1.2, seed=4)),
        ({"sira": {"verify": "flag"}}, whole),
        ({"sira": {"words": True}}, whole),
        ({"sira": {"method": "greedy"}, "logprobs": True}, single(lvlm, PICTURES[0], 24, "greedy")),
        (
            {"sira": {"method": "greedy", "verify": "guide"}},
            lvlm.under("greedy").caption(PICTURES[0], PROMPT, verify="guide").text,
        ),
        (values, lvlm.caption(PICTURES[0], PROMPT, schema=few).text),
        ({"sira": {"method": "vcd"}, **values}, vcd.caption(PICTURES[0], PROMPT, schema=few).text),
    ]
    alone = [row.logprob for row in rows(ask(client, **kinds[3][0]))]

    def one(kind) -> tuple[str, list[float]]:
        answer = ask(client, **kind[0])
        return text(answer), [row.logprob for row in rows(answer)] if "logprobs" in kind[0] else []

    with ThreadPoolExecutor(len(kinds)) as pool:
        found = list(pool.map(one, kinds))
    assert [each for each, _ in found] == [expected for _, expected in kinds]
    assert found[3][1] == pytest.approx(alone, abs=1e-4)
    assert len(alone) > 20


def test_64_clients_at_once_get_the_texts_of_single_requests(client, address, lvlm):
    asked = [(PICTURES[number % 2], 4 + number % 3, ("sira", "greedy")[number // 2 % 2]) for number in range(64)]
    before = [counted(address, f"sira_batch_texts_{name}") for name in ("count", "sum")]
    with ThreadPoolExecutor(64) as pool:
        answers = pool.map(lambda row: ask(client, said(picture=row[0]), {"method": row[2]}, max_tokens=row[1]), asked)
        assert [text(answer) for answer in answers] == [single(lvlm, *row) for row in asked]
    begun, together = (counted(address, f"sira_batch_texts_{name}") for name in ("count", "sum"))
    assert (together - before[1]) / (begun - before[0]) > 4  # of 8


def test_a_pass_that_fails_is_tried_again_for_each_text_alone(endless):
    expected = [single(endless, picture, 24) for picture in PICTURES[:3]]
    passes = []

    def failing(model, arguments, named):
        passes.append(len(named["input_ids"]))
        if passes[-1] == 3 and passes.count(3) == 6:
            raise RuntimeError("out of memory")

    def one(picture) -> str:
        return text(ask(client_of(address), said(picture=picture), stream=True, max_tokens=24))

    hook = endless.model.register_forward_pre_hook(failing, with_kwargs=True)
    try:
        with running(endless, limits=Limits(tokens=LONG)) as address, ThreadPoolExecutor(3) as pool:
            with streaming(address, PICTURES[3]):
                texts = [pool.submit(one, picture) for picture in PICTURES[:3]]
                while waiting(address) < 3:
                    assert not any(each.done() for each in texts)
                    time.sleep(0.01)
                time.sleep(0.5)  # those that are still read also count as waiting
            assert [each.result() for each in texts] == expected
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
