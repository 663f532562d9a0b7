"""JSON in what the server answers: each text is that of the library under the same schema, and valid."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Literal

import httpx
import ollama
import openai
import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field

from sira_cli.errors import SettingsError
from sira_cli.models.schema import Schema
from sira_cli.serve.formats import closed
from tests.serve.conftest import running
from tests.serve.helpers import PICTURES, PROMPT, ask, data_of, data_uri, said, streamed

SMALL = {
    "type": "object",
    "properties": {"thing": {"type": "string", "maxLength": 8}, "seen": {"type": "boolean"}},
    "required": ["thing", "seen"],
    "additionalProperties": False,
}
FEW = {"type": "array", "items": {"enum": ["dog", "tree", "a dog", "día"]}, "minItems": 1, "maxItems": 3}
# PhotoPrism's internal/ai/vision/schema/labels.go, as of November 2025
SHARE = {"type": "number", "minimum": 0, "maximum": 1}
LABEL = {"name": {"type": "string", "minLength": 1}, "confidence": SHARE, "topicality": SHARE}
ITEM = {"type": "object", "properties": LABEL, "required": list(LABEL), "additionalProperties": False}
LABELS = {
    "type": "object",
    "properties": {"labels": {"type": "array", "items": ITEM, "default": []}},
    "required": ["labels"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def long(lvlm):
    """The model, whose texts may be long."""
    return lvlm.under(lvlm.decoder, lvlm.preset.with_settings(max_new_tokens=400))


@pytest.fixture(scope="module")
def address(long):
    with running(long) as address:
        yield address


@pytest.fixture(scope="module")
def client(address):
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


def named(schema: dict) -> dict:
    return {"type": "json_schema", "json_schema": {"name": "found", "schema": schema, "strict": True}}


def expected_of(lvlm, schema: dict) -> str:
    found = lvlm.caption(PICTURES[0], PROMPT, schema=schema)
    Draft202012Validator(schema).validate(found.data)
    return found.text


def ask_all(address: str, schema: dict) -> dict[str, str]:
    """The texts of every protocol, whole and streamed."""
    turn = {"role": "user", "content": PROMPT, "images": [data_of(PICTURES[0])]}
    found = {}
    with (
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client,
        ollama.Client(host=address) as friend,
    ):
        found["chat"] = ask(client, response_format=named(schema)).choices[0].message.content
        found["chat, streamed"] = "".join(streamed(ask(client, response_format=named(schema), stream=True)))
        found["ollama"] = friend.chat("demo", [turn], format=schema).message.content
        pieces = friend.generate("demo", PROMPT, images=turn["images"], format=schema, stream=True)
        found["ollama, streamed"] = "".join(piece.response for piece in pieces)
    return found


# --- texts


@pytest.mark.parametrize("schema", [SMALL, LABELS], ids=["small", "labels"])
def test_every_protocol_brings_the_same_json(address, long, schema):
    assert set(ask_all(address, schema).values()) == {expected_of(long, schema)}


def test_any_object(address, client):
    """`json_object` is of no schema; a schema next to it, as other servers take it, is followed."""
    options = {"temperature": 1.0, "max_tokens": 60}
    texts = [ask(client, response_format={"type": "json_object"}, seed=seed, **options) for seed in range(4)]
    ended = [each.choices[0] for each in texts if each.choices[0].finish_reason == "stop"]
    assert all(isinstance(json.loads(each.message.content), dict) for each in ended)
    assert all(each.choices[0].message.content.startswith("{") for each in texts)
    with ollama.Client(host=address) as friend:
        assert friend.generate(
            "demo", PROMPT, images=[data_of(PICTURES[0])], format="json", options={"num_predict": 9}
        ).response.startswith("{")
    body = {"messages": said(), "response_format": {"type": "json_object", "schema": SMALL}}
    answer = httpx.post(f"{address}/v1/chat/completions", json=body, timeout=60).json()
    Draft202012Validator(SMALL).validate(json.loads(answer["choices"][0]["message"]["content"]))


def test_a_second_look_is_at_the_values(client, lvlm):
    expected = lvlm.caption(PICTURES[0], PROMPT, schema=FEW, verify="flag")
    answer = ask(client, response_format=named(FEW), sira={"verify": "flag"})
    text = answer.choices[0].message.content
    assert text == expected.text
    assert answer.sira["objects"]
    for found, known in zip(answer.sira["objects"], expected.objects, strict=True):
        assert (found["thing"], found["spans"]) == (known["thing"], [list(span) for span in known["spans"]])
        assert found["support"] == pytest.approx(known["support"], abs=1e-4)


def test_the_schema_of_a_class_as_ollamas_clients_send_it(address):
    """Ollama takes it to list all keys."""

    class Thing(BaseModel):
        name: Literal["dog", "tree"]

    class Found(BaseModel):
        thing: Thing | None
        others: list[Thing] = Field(max_length=2)

    with ollama.Client(host=address) as friend:
        text = friend.generate("demo", PROMPT, images=[data_of(PICTURES[0])], format=Found.model_json_schema()).response
    found = json.loads(text)
    assert Found.model_validate(found).model_dump() == found


def test_objects_are_closed_where_nothing_else_is_said():
    inner = {"type": "object", "properties": {"properties": {"type": "string"}}}
    shut = {**inner, "additionalProperties": False}
    schema = {"type": "array", "items": {"anyOf": [inner, {"$ref": "#/$defs/a"}]}, "$defs": {"a": inner}}
    assert closed(schema) == {"type": "array", "items": {"anyOf": [shut, {"$ref": "#/$defs/a"}]}, "$defs": {"a": shut}}
    assert "additionalProperties" not in inner
    for said_more in (
        {**inner, "additionalProperties": {"type": "string"}},
        {"$defs": {"a": inner}, "allOf": [{"$ref": "#/$defs/a"}, {"properties": {"b": {}}}]},
        {"$defs": {"a": inner}, "properties": {"b": {}}, "anyOf": [{"$ref": "#/$defs/a"}]},
        {"enum": [inner]},
        True,
    ):
        assert closed(said_more) == said_more


# --- texts that do not end well


def test_json_that_is_cut_off_says_so(address, client, long):
    whole = expected_of(long, SMALL)
    for stream in (False, True):
        answer = ask(client, response_format=named(SMALL), max_tokens=4, stream=stream)
        chunks = list(answer) if stream else []
        choice = chunks[-1].choices[0] if stream else answer.choices[0]
        text = "".join(streamed(chunks)) if stream else choice.message.content
        assert choice.finish_reason == "length"
        assert whole.startswith(text)
        assert 0 < len(text) < len(whole)
    body = {"model": "demo", "prompt": PROMPT, "images": [data_uri(PICTURES[0]).partition(",")[2]], "stream": False}
    answer = httpx.post(
        f"{address}/api/generate", json={**body, "format": SMALL, "options": {"num_predict": 4}}, timeout=60
    ).json()
    assert (answer["done_reason"], answer["response"]) == ("length", text)


def test_a_value_that_no_program_can_read_is_an_error(address, monkeypatch):
    """A number such as 1e999 is of the schema, and is infinite once it is read."""

    def refuse(self: Schema, text: str) -> None:
        raise ValueError("Out of range float values are not JSON compliant")

    monkeypatch.setattr(Schema, "read", refuse)
    for method in ("sira", "vcd"):
        body = {"messages": said(), "response_format": named(SMALL), "sira": {"method": method}}
        answer = httpx.post(f"{address}/v1/chat/completions", json=body, timeout=60)
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "unprocessable")
        assert "the JSON cannot be used: Out of range" in answer.json()["error"]["message"]


# --- what is refused


def nested(depth: int) -> dict:
    schema: dict = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


ABSURD = {
    "deep": nested(5000),
    "deeper than JSON is read": nested(180),
    "many": {"properties": {f"key {number}": {"type": "integer"} for number in range(2000)}},
    "circles": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
    "products": {"allOf": [{"anyOf": [{"properties": {f"{a}{b}": {}}} for b in range(9)]} for a in range(9)]},
    "an unknown word": {"not": {}},
    "a lax reading": {"not": {}, "x-guidance": {"lenient": True}},
}
# Each is followed as far as 20 tokens go.
ENORMOUS = {
    "items": {"type": "array", "items": {"type": "array", "minItems": 10**9, "items": {}}, "minItems": 10**9},
    "pattern": {"type": "string", "pattern": "^(a|b)*a(a|b){30}$"},
}


def body_of(schema: dict) -> bytes:
    """The body by hand: Python's own writer does not go so deep."""
    depth = 0
    while "items" in schema and schema["type"] == "array" and schema is not None and len(schema) == 2:
        schema, depth = schema["items"], depth + 1
    text = '{"type":"array","items":' * depth + json.dumps(schema) + "}" * depth
    plain = json.dumps({"messages": said(), "max_tokens": 20, "response_format": named({"it": 0})})
    return plain.replace('{"it": 0}', text).encode()


@pytest.mark.parametrize("name", ABSURD)
def test_a_schema_that_cannot_be_followed_is_refused_by_one_line(address, name):
    answer = httpx.post(
        f"{address}/v1/chat/completions",
        content=body_of(ABSURD[name]),
        headers={"content-type": "application/json"},
        timeout=60,
    )
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert len(message) < 600
    assert "\n" not in message
    assert message.startswith("response_format: ") or name == "deep"
    assert "--" not in message


@pytest.mark.parametrize("name", ENORMOUS)
def test_an_enormous_schema_is_followed_as_far_as_a_text_goes(address, name):
    answer = httpx.post(
        f"{address}/v1/chat/completions",
        content=body_of(ENORMOUS[name]),
        headers={"content-type": "application/json"},
        timeout=60,
    )
    assert answer.status_code == 200
    (choice,) = answer.json()["choices"]
    if choice["finish_reason"] == "stop":
        Draft202012Validator(ENORMOUS[name]).validate(json.loads(choice["message"]["content"]))


def test_a_schema_that_the_models_own_tokens_cannot_follow_is_refused(address, long, monkeypatch):
    """Before its text meets others."""

    def fail(self: object, schema: Schema) -> None:
        raise SettingsError("`schema=`: cannot be followed: too many tokens")

    monkeypatch.setattr(type(long.schema_tokens), "begin", fail)
    body = {"messages": said(), "response_format": named(SMALL)}
    answer = httpx.post(f"{address}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "response_format: cannot be followed: too many tokens"


def test_no_reference_is_fetched(address, tmp_path):
    asked = []

    class Kept(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)

    (tmp_path / "number.json").write_text('{"type": "number"}')
    with HTTPServer(("127.0.0.1", 0), Kept) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        for place in (f"http://127.0.0.1:{other.server_port}/a.json", (tmp_path / "number.json").as_uri(), "labels"):
            body = {"messages": said(), "response_format": named({"$ref": place})}
            answer = httpx.post(f"{address}/v1/chat/completions", json=body, timeout=60)
            assert answer.status_code == 400
            assert "response_format: cannot be followed" in answer.json()["error"]["message"]
        other.shutdown()
    assert asked == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "json_schema.schema"),
        ({"response_format": {"type": "grammar", "grammar": "root ::= a"}}, "response_format.type"),
        ({"sira": {"words": True}}, "sira.words scores words of a text, but response_format makes JSON"),
    ],
)
def test_what_does_not_go_with_a_schema_is_refused(address, change, words):
    body = {"messages": said(), "response_format": named(SMALL)} | change
    answer = httpx.post(f"{address}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


def test_the_vocabulary_is_read_once_whatever_the_settings(long):
    """It takes a second to read a large one, and all requests would wait for it."""
    other = long.under(long.preset.method("vcd"), long.preset.with_settings(system="Be brief."))
    assert other.schema_tokens.engine is long.schema_tokens.engine


def test_a_stop_inside_the_json(client, long):
    whole = expected_of(long, SMALL)
    for stream in (False, True):
        answer = ask(client, response_format=named(SMALL), stop=['"seen'], stream=stream)
        text = "".join(streamed(answer)) if stream else answer.choices[0].message.content
        assert text == whole[: whole.index('"seen')].strip()
