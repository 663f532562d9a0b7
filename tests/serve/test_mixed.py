"""What one request asks for decides its own answer and nobody else's: each field, decoded with others or apart."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from sira_cli.serve.app import Server
from tests.serve.helpers import PICTURES, counted, held, post, running, said
from tests.support.asgi import served

FEW = {"type": "array", "items": {"enum": ["dog", "tree"]}, "minItems": 1, "maxItems": 2}
ONE = {"type": "array", "items": {"enum": ["día"]}, "minItems": 1, "maxItems": 1}
WARM = {"temperature": 2, "seed": 6}
LOOK = {"sira": {"verify": "flag"}}
LONGER = "Say nothing of rooms, and be as brief as you can."
STOPS = [{"stop": ["is"]}, {"stop": "room"}]

# Requests of one batch: every field here is a row's own.
TOGETHER = {
    "text": [
        {},
        {"messages": said(picture=PICTURES[1])},
        {"messages": said("Is there a dog?")},
        *STOPS,
        {"seed": 5, "stop": "a"},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": FEW}}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": ONE}}},
    ],
    "drawn": [WARM | {"seed": seed} for seed in (3, 4, 2**63 - 1)] + [WARM | {"messages": said(picture=PICTURES[1])}],
    "scored": [
        *({"logprobs": True, "top_logprobs": top} for top in (0, 1, 3)),
        {"logprobs": True, "stop": "room"},
        {"logprobs": True, "messages": said(picture=PICTURES[1])},
    ],
    "looked at": [LOOK | more for more in ({}, *STOPS, {"messages": said(picture=PICTURES[2])})],
}
# Requests that are decoded one after the other: every field here is a batch's.
APART = [
    *({}, {"max_tokens": 3}, {"max_completion_tokens": 7}, {"repetition_penalty": 1.5}),
    *(WARM, WARM | {"top_p": 0.8}, WARM | {"top_k": 5}, WARM | {"min_p": 0.02}, WARM | {"temperature": 1.8}),
    *({"messages": said(system=system)} for system in ("Be brief.", LONGER)),
    *({"sira": sira} for sira in ({"method": "greedy"}, {"method": "vcd"}, {"k": 2}, {"alpha": 2.0}, {"beta": 0.5})),
    *({"sira": sira} for sira in ({"words": True}, {"verify": "flag"}, {"verify": "flag", "min_support": 0.9})),
    *({"sira": {"verify": "guide"}}, {"logprobs": True}, {"sira": {"method": "vcd"}, "seed": 7}),  # of its noise
]
OWN = ("id", "created")  # of each answer, whatever was asked


def answer_of(response: httpx.Response, **more: Any) -> dict[str, Any]:
    """All that an answer says, but for its number and times."""
    assert response.status_code == 200, response.text
    answer = json.loads(response.text, **more)
    del answer["sira"]["decoding_seconds"]
    return {name: value for name, value in answer.items() if name not in OWN}


def alone(lvlm, request: dict) -> dict[str, Any]:
    """The answer of a server that meets nothing else. Its scores equal any within 0.001."""
    with running(lvlm) as address:
        return answer_of(post(address, **request), parse_float=lambda score: pytest.approx(float(score), abs=1e-3))


def together(lvlm, requests: list[dict]) -> tuple[list[dict], int]:
    """Answers to requests that wait at the same time, and in how many batches they were decoded."""
    server = Server(lvlm, len(requests))
    with served(server.app) as address, ThreadPoolExecutor(len(requests)) as pool:
        with held(server, address) as release:
            answers = [pool.submit(post, address, **each) for each in requests]
            release(len(requests))
            found = [answer_of(each.result()) for each in answers]
        return found, int(counted(address, "sira_batch_texts_count")) - 1


def short(requests: list[dict]) -> list[dict]:
    return [{"max_tokens": 12} | each for each in requests]


@pytest.mark.parametrize("kind", TOGETHER)
def test_what_is_a_rows_own_in_a_batch(lvlm, kind):
    requests = short(TOGETHER[kind])
    found, batches = together(lvlm, requests)
    assert found == [alone(lvlm, each) for each in requests]
    assert len({str(each) for each in found}) == len(found)  # each field changes its answer
    assert batches == 1


def test_what_parts_batches(lvlm):
    """Each twice, once among the first requests and once among the last ones."""
    requests = short(APART)
    found, batches = together(lvlm, 2 * requests)
    assert found == 2 * [alone(lvlm, each) for each in requests]
    assert len({str(each) for each in found}) == len(APART)
    assert batches == len(APART)
