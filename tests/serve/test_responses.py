"""`/v1/responses` by the official client, against `/v1/chat/completions`."""

from __future__ import annotations

import httpx
import pytest
from openai.types.responses import Response

from sira_cli.serve.limits import Limits
from tests.serve.conftest import running
from tests.serve.helpers import PICTURES, PROMPT, ask, data_uri, events_of, once, protocol, said, without_times


def asked(prompt: str = PROMPT, picture=PICTURES[0]) -> dict:
    parts = [{"type": "input_text", "text": prompt}, {"type": "input_image", "image_url": data_uri(picture)}]
    return {"role": "user", "content": parts}


@pytest.mark.parametrize("sira", [{}, {"method": "greedy"}, {"method": "vcd", "alpha": 0.5}, {"task": "ask", "k": 3}])
def test_an_answer_is_that_of_a_chat(client, sira):
    expected = ask(client, sira=sira)
    answer = client.responses.create(model="demo", input=[asked()], extra_body={"sira": sira})
    assert answer.output_text == expected.choices[0].message.content
    assert (answer.object, answer.model, answer.error) == ("response", "demo", None)
    assert (answer.status == "completed") == (expected.choices[0].finish_reason == "stop")
    used, known = answer.usage, expected.usage
    assert (used.input_tokens, used.output_tokens) == (known.prompt_tokens, known.completion_tokens)
    assert used.total_tokens == known.total_tokens
    times = [found.sira.pop("decoding_seconds") for found in (answer, expected)]
    assert min(times) > 0
    assert answer.sira == expected.sira


def test_instructions_turns_sampling_and_logprobs(client):
    """The system's message, what was answered before, and settings reach the model as those of a chat do."""
    before = [{"role": "assistant", "content": [{"type": "output_text", "text": "There is a dog.", "annotations": []}]}]
    following = [{"role": "user", "content": PROMPT}]
    answer = client.responses.create(
        model="demo",
        instructions="Be brief.",
        input=[asked(), *before, *following],
        max_output_tokens=5,
        temperature=0.9,
        top_p=0.8,
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        extra_body={"seed": 3},
    )
    told = [*said(system="Be brief."), {"role": "assistant", "content": "There is a dog."}, *following]
    expected = ask(client, told, max_tokens=5, temperature=0.9, top_p=0.8, seed=3, logprobs=True, top_logprobs=2)
    assert answer.output_text == expected.choices[0].message.content
    assert expected.choices[0].finish_reason == "length"
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    found = answer.output[0].content[0].logprobs
    assert [each.logprob for each in found] == [each.logprob for each in expected.choices[0].logprobs.content]
    assert [len(each.top_logprobs) for each in found] == [2] * 5


def test_the_request_that_photoprism_sends(address, client):
    """Its fields, as of November 2025 (internal/ai/vision/openai/transport.go)."""
    system = {"role": "system", "type": "message", "content": [{"type": "input_text", "text": "Be brief."}]}
    user = {**asked(), "type": "message"}
    user["content"][1]["detail"] = "low"
    body = {"model": "demo", "input": [system, user], "reasoning": {"effort": "low"}, "max_output_tokens": 20}
    answer = httpx.post(f"{address}/v1/responses", json=body, timeout=60).json()
    (message,) = answer["output"]
    assert (message["type"], message["role"]) == ("message", "assistant")
    (part,) = message["content"]
    assert part["type"] == "output_text"
    assert part["text"] == ask(client, said(system="Be brief."), max_tokens=20).choices[0].message.content


# --- streams


@pytest.mark.parametrize("more", [{}, {"max_output_tokens": 5}, {"sira": {"method": "opera"}}])
def test_a_stream_brings_the_same_response(address, more):
    expected = httpx.post(f"{address}/v1/responses", json={"input": [asked()], **more}, timeout=60).json()
    events = events_of(address, input=[asked()], **more)
    assert once([event["type"] for event in events]) == protocol(expected)
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    last = events[-1]["response"]
    assert without_times(last) == without_times(expected)
    assert last["sira"].keys() == expected["sira"].keys()
    deltas = [event["delta"] for event in events if event["type"].endswith("output_text.delta")]
    assert "".join(deltas) == expected["output"][0]["content"][0]["text"]
    assert (len(deltas) > 3) == (more.get("sira") is None)
    for event in events:  # all of one response and one item
        assert event.get("response", last)["id"] == last["id"]
        assert event.get("item", last["output"][0])["id"] == event.get("item_id", last["output"][0]["id"])
        assert (event.get("output_index", 0), event.get("content_index", 0)) == (0, 0)
    Response.model_validate(last)


def test_streams_by_the_official_client(client):
    """By both of its ways; the second puts the response together from the events, and compares."""
    request = {"model": "demo", "input": [asked()], "max_output_tokens": 200, "instructions": "Be brief."}
    logprobs = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    expected = client.responses.create(**request, **logprobs)
    events = list(client.responses.create(**request, **logprobs, stream=True))
    found = [row for event in events if event.type == "response.output_text.delta" for row in event.logprobs]
    assert [row.logprob for row in found] == [row.logprob for row in expected.output[0].content[0].logprobs]
    assert events[-1].response.output == [
        item.model_copy(update={"id": events[-1].response.output[0].id}) for item in expected.output
    ]
    with client.responses.stream(**request) as stream:
        texts = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert texts[-1] == final.output_text == expected.output_text
    assert final.usage.output_tokens == expected.usage.output_tokens
    assert final.instructions == "Be brief."


@pytest.mark.slow
def test_a_stream_that_fails_ends_by_saying_so(endless):
    with running(endless, limits=Limits(tokens=10**6, seconds=5.0)) as address:
        events = events_of(address, input=[asked()], max_output_tokens=10**6)
    last = events[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert "took too long" in last["response"]["error"]["message"]
    Response.model_validate(last["response"])


def test_what_clients_send_back_of_earlier_responses(client):
    """Thoughts decide no text, and an answer without words is an empty one."""
    following = [{"role": "user", "content": PROMPT}]
    thoughts = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None}
    silent = {"type": "message", "role": "assistant", "content": None}
    answer = client.responses.create(model="demo", input=[asked(), thoughts, silent, *following], max_output_tokens=5)
    told = [*said(), {"role": "assistant", "content": ""}, *following]
    expected = ask(client, told, max_tokens=5).choices[0].message.content
    assert answer.output_text == expected
    told[1] = {"role": "assistant", "content": None}
    assert ask(client, told, max_tokens=5).choices[0].message.content == expected


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"input": [{"type": "item_reference", "id": "msg_1"}, asked()]}, "send the message itself"),
        ({"input": [{"role": "user", "content": None}]}, "content"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "1"}]}]},
            "expected the picture's URL",
        ),
        ({"background": True}, "wait for the answer"),
        ({"previous_response_id": "resp_1"}, "send the whole conversation"),
        ({"tools": [{"type": "web_search"}]}, "tools: not supported"),
        ({"top_logprobs": 2}, "top_logprobs: needs logprobs"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "1"}]}]}, "input_image"),
        ({"sira": {"method": "sirra"}}, "sirra"),
    ],
)
def test_what_is_not_supported_is_refused(address, change, words):
    answer = httpx.post(f"{address}/v1/responses", json={"input": [asked()], **change}, timeout=60)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("change", "param", "begins"),
    [
        ({"input": PROMPT}, "input", "input: expected a part of type input_image in a message of the user; got none"),
        ({"max_output_tokens": 10**9}, "max_output_tokens", "max_output_tokens: this server decodes up to"),
        ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens: "),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format", "text.format.schema: expected an object"),
    ],
)
def test_errors_name_the_keys_that_were_sent(address, change, param, begins):
    answer = httpx.post(f"{address}/v1/responses", json={"input": [asked()], **change}, timeout=60)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert error["message"].startswith(begins)
