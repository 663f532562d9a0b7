"""What programs send that was written for other servers, or in haste; and what they are told where it is wrong."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

import httpx
import pytest

from sira_cli.serve import Limits
from sira_cli.serve.jobs import picture_data, settings_of
from sira_cli.serve.ollama import OllamaChat
from sira_cli.serve.protocol import REFUSED, ChatRequest, RequestError
from tests.serve.helpers import PICTURES, data_of, post, posted, refusal, said

OPTIONAL = (
    *("model", "max_completion_tokens", "temperature", "top_p", "seed", "stop", "n", "stream", "stream_options"),
    *("logprobs", "top_logprobs", "sira", "tools", "tool_choice", "response_format", "logit_bias", "user", "store"),
)
COUNT = {"count": {"type": "integer", "maximum": 9, "minimum": 0}}
SCHEMA = {"type": "object", "properties": COUNT, "required": ["count"]}
SCHEMA_FORMAT = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
NAMED = "response_format.json_schema.schema"
URL, PLACE = {"type": "image_url", "image_url": {"url": 5}}, "messages[0].content[0].image_url.url"
ANSWER, USER = {"role": "assistant", "content": "A dog."}, {"role": "user", "content": "Where?"}


# Numbers that are too small or too large, each by the least.
BEYOND = [("temperature", -0.001), ("temperature", 2.001), ("top_p", -0.001), ("top_p", 1.001), ("min_p", -0.001)]
BEYOND += [("min_p", 1.001), ("top_k", -2), ("seed", 2**63), ("seed", -(2**63) - 1), ("repetition_penalty", 0)]
BEYOND += [("top_logprobs", -1), ("top_logprobs", 21), ("max_tokens", 0), ("max_completion_tokens", -2)]
WITHIN = [("temperature", 0), ("temperature", 2), ("top_p", 0), ("top_p", 1), ("min_p", 0), ("min_p", 1), ("top_k", -1)]
WITHIN += [("seed", 2**63 - 1), ("seed", -(2**63)), ("repetition_penalty", 0.001), ("top_logprobs", 0)]
WITHIN += [("top_logprobs", 20), ("max_tokens", 1), ("max_completion_tokens", -1)]


def test_numbers_at_the_ends_of_their_ranges_are_taken():
    for name, value in WITHIN:
        ChatRequest.read({"messages": said(), "logprobs": True, name: value})


def test_null_is_a_key_that_is_left_out(address):
    plain = posted(address, max_tokens=4)
    options = dict.fromkeys(("method", "task", "words", "verify", "min_support"))
    for nulls in (dict.fromkeys(OPTIONAL), {"sira": options}):
        assert posted(address, **nulls, max_tokens=4) == plain
    usage = post(address, stream=True, stream_options={"include_usage": None}, max_tokens=4)
    assert usage.status_code == 200
    assert "usage" not in usage.text


def test_numbers_beyond_the_presets_ranges(lvlm):
    """Seeds of any sign, and clients without a limit, who get the server's."""
    seeds = [ChatRequest(messages=said(), seed=seed).seed for seed in (-1, -2, 0, 5)]
    assert len({*seeds}) == 4
    assert all(0 <= seed < 2**63 for seed in seeds)
    chats = [ChatRequest.read({"messages": said(), "max_tokens": -1})]
    turn = {"role": "user", "content": "a", "images": ["aa"]}
    for given in (-2, 7):
        chats += [OllamaChat.read({"model": "demo", "messages": [turn], "options": {"num_predict": given}}).chat()]
    assert [settings_of(chat, lvlm, Limits(tokens=5))[0].generation.max_new_tokens for chat in chats] == [5, 5, 5]
    assert settings_of(chats[-1], lvlm, Limits())[0].generation.max_new_tokens == 7


def test_base64_as_programs_write_it_and_what_is_none():
    data = data_of(PICTURES[2])
    plain = base64.b64encode(data).decode()
    for url in (
        "data:image/png;base64," + base64.encodebytes(data).decode(),
        "data:image/png;base64,\r\n " + plain.replace("A", "A\r\n"),
        *("DATA:Image/PNG;BASE64," + plain, "data:;base64," + plain.rstrip("=")),
        "data:image/png;base64," + quote(plain, safe=""),
        "data:image/png;base64," + base64.urlsafe_b64encode(data).decode(),
    ):
        assert picture_data(url, 10**6) == data
    assert {"+", "/", "="} <= {*plain}  # which the two others write otherwise
    for coded in ("\xe9", "AAAAA", "AA=A", "AA%", "%", "AA.A"):
        with pytest.raises(RequestError, match="is not base64"):
            picture_data(f"data:image/png;base64,{coded}", 10**6)


@pytest.mark.parametrize(
    "more", [{"guided_json": json.dumps(SCHEMA)}, {"structured_outputs": {"json": SCHEMA, "regex": None}}]
)
def test_a_schema_by_any_key_is_followed_and_closed(address, more):
    choice = post(address, max_tokens=24, **more).json()["choices"][0]
    assert (choice["finish_reason"], [*json.loads(choice["message"]["content"])]) == ("stop", ["count"])


# Said a second time: a key that is missing in the table would change a text without a word.
TEXT_CHANGING = """
    tools functions logit_bias frequency_penalty presence_penalty audio use_beam_search no_repeat_ngram_size ignore_eos
    min_tokens stop_token_ids continue_final_message bad_words allowed_token_ids logits_processors prompt_embeds
    guided_regex guided_choice guided_grammar truncate_prompt_tokens num_beams best_of length_penalty tool_choice
    function_call
"""


def test_every_key_that_would_change_a_text_is_known():
    assert sorted(REFUSED) == sorted(TEXT_CHANGING.split())


def test_keys_that_would_change_a_text_are_refused():
    for name, neutral in REFUSED.items():
        with pytest.raises(RequestError, match=name):
            ChatRequest(messages=said(), **{name: ["x"]})
        for value in (None, *neutral):
            ChatRequest(messages=said(), **{name: value})


@pytest.mark.parametrize(
    ("change", "status", "param", "words"),
    [
        ({"messages": [{"role": "user", "content": "a"}]}, 400, "messages", "got none. SIRA is about what a picture"),
        ({"messages": said(picture="https://a.org/a.png")}, 400, "messages", "if it was started with --allow-urls"),
        ({"messages": said(picture="file:///etc/passwd")}, 400, "messages", "opens no files"),
        ({"messages": said("what is <image> here?")}, 400, None, "placeholder"),
        ({"model": "gpt-4o"}, 404, "model", "this server has 'demo'"),
        ({"max_tokens": 0}, 400, "max_tokens", "expected at least 1, or -1 for as many as this server decodes"),
        ({"n": 2}, 400, "n", "one text per request"),
        ({"stop": [""]}, 400, "stop", "none empty"),
        ({"stop": ["x"] * 257}, 400, "stop", "up to 256 strings"),
        ({"tools": [{}]}, 400, "tools", "not supported by this server"),
        ({"structured_outputs": {"regex": "a"}}, 400, "structured_outputs", 'only {"json": SCHEMA}'),
        ({"sira": {"k": 99}}, 400, "sira.k", "out of range"),
        ({"sira": {"k": "high"}}, 400, "sira.k", "sira.k high: expected a whole number from 1"),
        ({"sira": {"noise": 3}}, 400, "sira.noise", "(its settings: k, k_fraction, alpha, beta)"),
        ({"sira": {"metod": "vcd"}}, 400, "sira.metod", "sira.metod: no such key; did you mean `method`?"),
        ({"sira": {"verfy": "flag"}}, 400, "sira.verfy", "did you mean `verify`?"),
        ({"sira": {"method": "vcd", "noise_stp": 5}}, 400, "sira.noise_stp", "did you mean `noise_step`?"),
        ({"sira": {"method": "ict", "calibration": "/etc/passwd"}}, 400, "sira.calibration", "no file is opened"),
        ({"sira": {"method": "vcd"}, "logprobs": True}, 400, None, "logprobs"),
        ({"sira": {"think": True}}, 400, None, "sira.think: the model's chat template has no switch"),
        ({"sira": {"min_support": 0.5}}, 400, "sira.min_support", "is for a second look"),
        ({"sira": {"verify": "mark"}}, 400, "sira.verify", "expected 'flag' or 'guide'"),
        ({"sira": {"verify": "guide"}, "stop": "."}, 400, "stop", "is about a text as it is decoded"),
        ({"sira": {"verify": "guide"}, "logprobs": True}, 400, "logprobs", "is about a text as it is decoded"),
        ({"sira": {"verify": "guide", "words": True}}, 400, None, "sira.words scores a text"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, 400, NAMED, "json_schema.schema: is missing"),
        ({"response_format": {"type": "grammar"}}, 400, "response_format.type", "response_format.type: expected"),
        ({"response_format": SCHEMA_FORMAT, "sira": {"words": True}}, 400, None, "but response_format makes JSON"),
        ({"messages": [*said(), ANSWER]}, 400, "messages", "expected the user's as the last one"),
        ({"messages": [*said(), ANSWER, USER | {"content": ""}]}, 400, "messages", "neither text nor picture"),
        ({"messages": [said()[0] | {"role": "assistant"}, USER]}, 400, "messages", "a message of role assistant"),
        # what pydantic finds, in the words of JSON
        ({"messages": [{"role": "user", "content": [URL]}]}, 400, PLACE, f"{PLACE}: expected a string"),
        ({"messages": [{"content": "a"}]}, 400, "messages[0].role", "messages[0].role: is missing"),
        ({"messages": []}, 400, "messages", "messages: expected at least 1"),
        ({"temperature": 3}, 400, "temperature", "temperature: expected at most 2"),
        *(({name: value}, 400, name, f"{name}: expected ") for name, value in BEYOND),
        ({"top_logprobs": 3}, 400, "top_logprobs", "needs logprobs: true"),
        ({"logprobs": "maybe"}, 400, "logprobs", "logprobs: expected true or false"),
        ({"stop": [1]}, 400, "stop[0]", "stop[0]: expected a string"),
    ],
)
def test_what_cannot_be_answered_as_asked_is_refused(address, change, status, param, words):
    for stream in (False, True):  # before a stream begins
        error = refusal(post(address, **change, stream=stream), status)
        assert error["param"] == param, error
        assert words in error["message"], error


def test_bodies_paths_and_names_that_are_not_here(address, client, lvlm):
    """Long names are not sent back whole."""
    kind = {"content-type": "application/json; charset=utf-8"}
    for body in (b"{", b"[]", b'"text"', b"\xff\xfe", b""):
        answer = httpx.post(f"{address}/v1/chat/completions", content=body, headers=kind)
        assert refusal(answer)["type"] == "invalid_request_error"
    answer = httpx.get(f"{address}/v1/chat/completions")
    assert (refusal(answer, 405)["code"], answer.headers["allow"]) == ("method_not_allowed", "POST")
    for path in ("x" * 50_000, "v1/models/" + "x" * 50_000):
        answer = httpx.get(f"{address}/{path}")
        assert "xxx ... xxx" in refusal(answer, 404)["message"]
        assert len(answer.text) < 400
    assert len(post(address, sira={"x" * 50_000: 1}).text) < 1200
    assert [model.id for model in client.models.list()] == [lvlm.preset.name]
    for name in (lvlm.preset.name, lvlm.preset.model):
        assert client.models.retrieve(name).id == name
    assert refusal(httpx.get(f"{address}/v1/models/gpt-4o"), 404)["code"] == "model_not_found"


def test_ollama_s_clients_need_no_content_type_and_other_sites_pages_do(address):
    picture = base64.b64encode(PICTURES[0].read_bytes()).decode()
    asked = {"model": "demo", "stream": False, "prompt": "Describe.", "options": {"num_predict": 2}}
    body = json.dumps(asked | {"images": [picture]})
    assert httpx.post(f"{address}/api/generate", content=body, timeout=60).status_code == 200
    for kind in ("text/plain; application/json", "application/jsonl", "application/x-www-form-urlencoded", ""):
        answer = httpx.post(f"{address}/api/generate", content=body, headers={"Content-Type": kind})
        assert answer.status_code == 415
        assert "send the header Content-Type: application/json" in answer.text
    for header in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        answer = httpx.post(f"{address}/api/generate", content=body, headers=header)
        assert answer.status_code == 415
        assert "access-control-allow-origin" not in answer.headers
    assert httpx.post(f"{address}/v1/chat/completions", content=body).status_code == 415
    assert httpx.head(address).status_code == 200
