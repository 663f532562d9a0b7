"""Errors of requests have places as in JSON and reasons in the protocol's words, for odd values at every place."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from sira_cli.models.schema import engine_reason
from sira_cli.serve.ollama import OllamaChat, OllamaGenerate
from sira_cli.serve.protocol import ChatRequest, Options, RequestError, for_clients

ODD = [None, True, 0, -1, 1.5, 10**400, "", "x", [], {}, [1], ["x"], [{}], {"a": 1}, [[]], {"type": "x"}]
ODD += [{"type": "image_url"}, {"type": "image_url", "image_url": 5}, {"role": "user"}, {"role": "x", "content": "y"}]
PICTURE = {"type": "image_url", "image_url": {"url": "data:x"}}
REQUESTS: dict[type[Options], dict[str, Any]] = {
    ChatRequest: {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, PICTURE]}],
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
    ("body", "message"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": 5}}]}]},
         "messages[0].content[0].image_url.url: expected a string"),
        ({"messages": [{"content": "a"}]}, "messages[0].role: is missing"),
        ({"messages": []}, "messages: expected at least 1"),
        ({"messages": "a"}, "messages: expected an array"),
        ({"messages": [{"role": "user", "content": "a"}], "temperature": 3}, "temperature: expected at most 2"),
        ({"messages": [{"role": "user", "content": "a"}], "logprobs": "maybe"}, "logprobs: expected true or false"),
    ],
)  # fmt: skip
def test_reasons(body: dict[str, Any], message: str):
    with pytest.raises(RequestError) as refusal:
        ChatRequest.read(json.dumps(body).encode())
    assert (str(refusal.value), refusal.value.param) == (message, message.partition(":")[0])


def test_reasons_of_the_library_and_the_engine():
    assert "Python" not in for_clients("a.png: is too large; raise PIL.Image.MAX_IMAGE_PIXELS in Python")
    assert engine_reason("oneOf constraints are not supported. Enable 'coerce_one_of' option to approximate") == (
        "oneOf constraints are not supported"
    )
