"""JSON in what the server answers: each text is that of the library under the same schema, and valid."""

from __future__ import annotations

import json
from unittest.mock import Mock

import httpx
import pytest
from jsonschema import Draft202012Validator

from sira_cli.errors import SettingsError
from sira_cli.models.schema import Schema
from sira_cli.run.lvlm import Lvlm
from sira_cli.serve.protocol import closed
from tests.serve.helpers import PICTURES, PROMPT, ask, data_of, post, posted, refusal, said, text

SMALL = {  # it says nothing of other keys
    "type": "object",
    "properties": {"thing": {"type": "string", "maxLength": 8}, "seen": {"type": "boolean"}},
    "required": ["thing", "seen"],
}
IMAGES = [data_of(PICTURES[0])]
TOKENS = 400


@pytest.fixture(scope="module")
def long(lvlm):
    """The model, whose texts may be long."""
    return lvlm.under(lvlm.decoder, lvlm.preset.with_settings(max_new_tokens=TOKENS))


def named(schema: dict) -> dict:
    return {"type": "json_schema", "json_schema": {"name": "found", "schema": schema, "strict": True}}


def test_every_protocol_brings_the_same_json(client, friend, long):
    expected = long.caption(PICTURES[0], PROMPT, schema=closed(SMALL))
    Draft202012Validator(closed(SMALL)).validate(expected.data)
    for stream in (False, True):
        answer = ask(client, response_format=named(SMALL), stream=stream, max_tokens=TOKENS)
        assert text(answer) == expected.text
    turn, options = {"role": "user", "content": PROMPT, "images": IMAGES}, {"num_predict": TOKENS}
    assert friend.chat("demo", [turn], format=SMALL, options=options).message.content == expected.text
    pieces = friend.generate("demo", PROMPT, images=IMAGES, format=SMALL, options=options, stream=True)
    assert "".join(piece.response for piece in pieces) == expected.text


def test_any_object(address, friend):
    """`json_object` is of no schema; a schema next to it, as other servers take it, is followed."""
    any_object, options = {"type": "json_object"}, {"num_predict": 9}
    (choice,) = post(address, response_format=any_object, temperature=1.0, max_tokens=60, seed=0).json()["choices"]
    assert choice["message"]["content"].startswith("{")
    assert choice["finish_reason"] == "length" or isinstance(json.loads(choice["message"]["content"]), dict)
    assert friend.generate("demo", PROMPT, images=IMAGES, format="json", options=options).response.startswith("{")
    followed = json.loads(posted(address, response_format=any_object | {"schema": SMALL}, max_tokens=TOKENS))
    Draft202012Validator(closed(SMALL)).validate(followed)


def test_objects_are_closed_where_nothing_else_is_said():
    inner = {"type": "object", "properties": {"properties": {"type": "string"}}}
    shut = {**inner, "additionalProperties": False}
    schema = {"type": "array", "items": {"anyOf": [inner, {"$ref": "#/$defs/a"}]}, "$defs": {"a": inner}}
    assert closed(schema) == {"type": "array", "items": {"anyOf": [shut, {"$ref": "#/$defs/a"}]}, "$defs": {"a": shut}}
    for said_more in (
        {**inner, "additionalProperties": {"type": "string"}},
        {"$defs": {"a": inner}, "allOf": [{"$ref": "#/$defs/a"}, {"properties": {"b": {}}}]},
        *({"$defs": {"a": inner}, "properties": {"b": {}}, "anyOf": [{"$ref": "#/$defs/a"}]}, {"enum": [inner]}, True),
    ):
        assert closed(said_more) == said_more


def test_json_that_is_cut_off_or_stopped(client, friend, long):
    whole = long.caption(PICTURES[0], PROMPT, schema=closed(SMALL)).text
    cut = ask(client, response_format=named(SMALL), max_tokens=4)
    assert (cut.choices[0].finish_reason, text(cut)) == ("length", whole[: len(text(cut))])
    assert 0 < len(text(cut)) < len(whole)
    for stream in (False, True):
        stopped = ask(client, response_format=named(SMALL), stop=['"seen'], stream=stream)
        assert text(stopped) == whole[: whole.index('"seen')].strip()
    answer = friend.generate("demo", PROMPT, images=IMAGES, format=SMALL, options={"num_predict": 4})
    assert (answer.done_reason, answer.response) == ("length", text(cut))


@pytest.mark.parametrize(
    ("place", "name", "problem", "status", "message"),
    [  # a number such as 1e999 is of the schema, and is infinite once it is read; the schema is refused at once
        (Schema, "read", ValueError("Out of range"), 422, "the JSON cannot be used: Out of range"),
        (Lvlm, "following", SettingsError("`schema=`: too many tokens"), 400, "response_format: too many tokens"),
    ],
)
def test_json_that_cannot_be_used_and_a_schema_that_the_models_own_tokens_cannot_follow(
    address, monkeypatch, place, name, problem, status, message
):
    monkeypatch.setattr(place, name, Mock(side_effect=problem))
    assert message in refusal(post(address, response_format=named(SMALL), max_tokens=60), status)["message"]


def nested(depth: int) -> str:
    return '{"type":"array","items":' * depth + '{"type":"string"}' + "}" * depth  # json's writer goes less deep


ABSURD = {
    "deep": nested(5000),
    "deeper than JSON is read": nested(180),
    "long": json.dumps({"enum": ["x" * 70_000]}),
    "an unknown word": '{"not": {}}',
}


@pytest.mark.parametrize("name", ABSURD)
def test_a_schema_that_cannot_be_followed_is_refused_by_one_line(address, name):
    plain = json.dumps({"messages": said(), "max_tokens": 20, "response_format": named({"it": 0})})
    body, headers = plain.replace('{"it": 0}', ABSURD[name]), {"content-type": "application/json"}
    message = refusal(httpx.post(f"{address}/v1/chat/completions", content=body, headers=headers))["message"]
    assert (len(message) < 600, "\n" in message, "--" in message) == (True, False, False)
    assert message.startswith("response_format: ") or name == "deep"


def test_no_reference_is_fetched(address, tmp_path):
    """The server's own answer and the file are schemas that could be followed."""
    (tmp_path / "number.json").write_text('{"type": "number"}')
    for place in (f"{address}/health", (tmp_path / "number.json").as_uri(), "labels"):
        error = refusal(post(address, response_format=named({"$ref": place})))
        assert "response_format: cannot be followed" in error["message"]
