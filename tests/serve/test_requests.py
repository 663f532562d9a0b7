"""What programs send that was written for other servers, or in haste; and what they are told where it is wrong."""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from sira_cli.models.schema import engine_reason
from sira_cli.serve import Limits
from sira_cli.serve.jobs import check_length, picture_data, settings_of
from sira_cli.serve.ollama import OllamaChat, OllamaGenerate
from sira_cli.serve.protocol import REFUSED, ChatRequest, Options, RequestError, for_clients
from tests.serve.helpers import PICTURES, data_of, post, posted, refusal, said

OPTIONAL = (
    *("model", "max_completion_tokens", "temperature", "top_p", "seed", "stop", "n", "stream", "stream_options"),
    *("logprobs", "top_logprobs", "sira", "tools", "tool_choice", "response_format", "logit_bias", "user", "store"),
)
COUNT = {"count": {"type": "integer", "maximum": 9, "minimum": 0}}
SCHEMA = {"type": "object", "properties": COUNT, "required": ["count"]}
SCHEMA_FORMAT = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
NAMED = "response_format.json_schema.schema"
ANSWER, USER = {"role": "assistant", "content": "A dog."}, {"role": "user", "content": "Where?"}


def test_null_is_a_key_that_is_left_out(address):
    plain = posted(address, max_tokens=4)
    assert posted(address, **dict.fromkeys(OPTIONAL), max_tokens=4) == plain
    options = dict.fromkeys(("method", "task", "words", "verify", "min_support"))
    assert posted(address, sira=options, max_tokens=4) == plain
    usage = post(address, stream=True, stream_options={"include_usage": None}, max_tokens=4)
    assert (usage.status_code, "usage" in usage.text) == (200, False)


def test_numbers_beyond_the_presets_ranges(lvlm):
    """Seeds of any sign, and clients without a limit, who get the server's."""
    seeds = [ChatRequest(messages=said(), seed=seed).seed for seed in (-1, -2, 0, 5)]
    assert (len({*seeds}), all(0 <= seed < 2**63 for seed in seeds)) == (4, True)
    for given in ({"max_tokens": -1}, {"max_completion_tokens": 10**9}):
        request = ChatRequest.read({"messages": said(), **given})
        assert settings_of(request, lvlm, Limits(tokens=5))[0].generation.max_new_tokens == 5
    turn = {"role": "user", "content": "a", "images": ["aa"]}
    for given, most in ((-2, sys.maxsize), (0, None), (7, 7)):
        request = OllamaChat.read({"model": "demo", "messages": [turn], "options": {"num_predict": given}})
        assert request.chat().max_tokens == most


def test_base64_as_programs_write_it_and_what_is_none():
    for data in (data_of(PICTURES[0]), b"1", b"12", b"123"):
        plain = base64.b64encode(data).decode()
        for url in (
            "data:image/png;base64," + base64.encodebytes(data).decode(),
            "data:image/png;base64,\r\n " + plain.replace("A", "A\r\n"),
            "DATA:Image/PNG;BASE64," + plain,
            "data:;base64," + plain.rstrip("="),
        ):
            assert picture_data(url, 10**6) == data
    for coded in ("\xe9", "AAAAA", "AA=A", "_-_-"):
        with pytest.raises(RequestError, match="is not base64"):
            picture_data(f"data:image/png;base64,{coded}", 10**6)


def test_the_length_of_a_prompt_is_counted_to_the_token(lvlm):
    chat = ChatRequest(messages=said("umbrella " * 9))
    count = len(lvlm.vocabulary.encode(chat.messages[0].texts()))
    check_length(chat, lvlm.vocabulary, count)
    with pytest.raises(RequestError, match=f"has {count} tokens and more"):
        check_length(chat, lvlm.vocabulary, count - 1)


@pytest.mark.parametrize(
    "more", [{"guided_json": json.dumps(SCHEMA)}, {"structured_outputs": {"json": SCHEMA, "regex": None}}]
)
def test_a_schema_by_any_key_is_followed_and_closed(address, more):
    choice = post(address, max_tokens=24, **more).json()["choices"][0]
    assert (choice["finish_reason"], [*json.loads(choice["message"]["content"])]) == ("stop", ["count"])


def test_keys_that_would_change_a_text_are_refused_and_their_neutral_values_are_not():
    for name, neutral in REFUSED.items():
        with pytest.raises(RequestError) as refused:
            ChatRequest(messages=said(), **{name: ["x"]})
        assert refused.value.param == name
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
    ],
)
def test_what_cannot_be_answered_as_asked_is_refused(address, change, status, param, words):
    for stream in (False, True):  # before a stream begins
        error = refusal(post(address, **change, stream=stream), status)
        assert (error["param"], words in error["message"]) == (param, True), error


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
    assert [model.id for model in client.models.list()] == list(dict.fromkeys([lvlm.preset.name, lvlm.preset.model]))
    assert client.models.retrieve("demo").id == "demo"
    assert refusal(httpx.get(f"{address}/v1/models/gpt-4o"), 404)["code"] == "model_not_found"


def test_ollama_s_clients_need_no_content_type_and_other_sites_pages_do(address):
    picture = base64.b64encode(PICTURES[0].read_bytes()).decode()
    asked = {"model": "demo", "stream": False, "prompt": "Describe.", "options": {"num_predict": 2}}
    body = json.dumps(asked | {"images": [picture]})
    assert httpx.post(f"{address}/api/generate", content=body, timeout=60).status_code == 200
    for kind in ("text/plain; application/json", "application/jsonl", "application/x-www-form-urlencoded", ""):
        answer = httpx.post(f"{address}/api/generate", content=body, headers={"Content-Type": kind})
        assert (answer.status_code, "send the header Content-Type: application/json" in answer.text) == (415, True)
    for header in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        answer = httpx.post(f"{address}/api/generate", content=body, headers=header)
        assert (answer.status_code, "access-control-allow-origin" in answer.headers) == (415, False)
    assert httpx.post(f"{address}/v1/chat/completions", content=body).status_code == 415
    assert httpx.head(address).status_code == 200


# --- the reasons of pydantic, in the words of JSON, for odd values at every place

ODD = [None, True, 0, -1, 1.5, 10**400, "", "x", [], {}, [1], ["x"], [{}], {"a": 1}, [[]], {"type": "x"}]
ODD += [{"type": "image_url"}, {"type": "image_url", "image_url": 5}, {"role": "user"}, {"role": "x", "content": "y"}]
PICTURE = {"type": "image_url", "image_url": {"url": "data:x"}}
TURNS = [{"role": "user", "content": [{"type": "text", "text": "a"}, PICTURE]}]
REQUESTS: dict[type[Options], dict[str, Any]] = {
    ChatRequest: {
        "messages": TURNS,
        "temperature": 1,
        "sira": {"method": "sira", "k": 2, "words": True},
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}},
        "stream_options": {"include_usage": True},
        "stop": ["a"],
        "chat_template_kwargs": {"enable_thinking": True},
    },
    OllamaChat: {
        "model": "demo",
        "messages": [{"role": "user", "content": "a", "images": ["aa"]}],
        "options": {"seed": 1, "stop": ["a"]},
        "format": "json",
        "think": True,
    },
    OllamaGenerate: {"model": "demo", "prompt": "a", "images": ["aa"], "options": {"seed": 1}, "format": {"a": 1}},
}
PLACE = re.compile(r"[a-z_]+(\[\d+\]|\.[a-z_]+)*")
FOREIGN = re.compile(
    r"list\[|union\[|literal\[|function|[a-z][A-Z]|\b(str|int|bool|dict|pydantic|Python|PIL)\b"
    r"|validation|Input should|Field"
)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inside:
        yield (*at, key)
        yield from places(each, (*at, key))


@pytest.mark.parametrize("kind", REQUESTS)
def test_no_error_names_types(kind: type[Options]):
    seen = 0
    for place in places(REQUESTS[kind]):
        for odd in ODD:
            body = json.loads(json.dumps(REQUESTS[kind]))
            inside = body
            for key in place[:-1]:
                inside = inside[key]
            inside[place[-1]] = odd
            try:
                kind.read(json.dumps(body).encode())
            except RequestError as error:
                told = error.to_json()["error"]
                assert PLACE.fullmatch(told["param"]), told
                assert told["message"].startswith(f"{told['param']}: "), told
                assert not FOREIGN.search(told["message"]), told
                seen += 1
    assert seen > 50


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": 5}}]}]},
         "messages[0].content[0].image_url.url: expected a string"),
        ({"messages": [{"content": "a"}]}, "messages[0].role: is missing"),
        ({"messages": []}, "messages: expected at least 1"),
        ({"temperature": 3}, "temperature: expected at most 2"),
        ({"logprobs": "maybe"}, "logprobs: expected true or false"),
    ],
)  # fmt: skip
def test_reasons(change: dict[str, Any], message: str):
    with pytest.raises(RequestError) as refused:
        ChatRequest.read(json.dumps({"messages": TURNS, **change}).encode())
    assert (str(refused.value), refused.value.param) == (message, message.partition(":")[0])


def test_reasons_of_the_library_and_the_engine():
    assert "Python" not in for_clients("a.png: is too large; raise PIL.Image.MAX_IMAGE_PIXELS in Python")
    reason = "oneOf constraints are not supported"
    assert engine_reason(f"{reason}. Enable 'coerce_one_of' option to approximate") == reason
