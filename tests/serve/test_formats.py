"""JSON, and reasoning apart from the text, in what the server answers: each is that of the library."""

from __future__ import annotations

import json
from unittest.mock import Mock

import httpx
import ollama
import pytest
from jsonschema import Draft202012Validator
from PIL import Image

from sira_cli import load
from sira_cli.errors import SettingsError
from sira_cli.models.schema import Schema
from sira_cli.run.lvlm import Lvlm
from sira_cli.serve.protocol import closed
from tests.serve.helpers import PICTURES, PROMPT, ask, client_of, data_of, post, posted, refusal, running, said, text
from tests.support.checkpoints import write_qwen
from tests.support.scripted import script, written

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
def test_json_that_cannot_be_used_is_an_error(address, monkeypatch, place, name, problem, status, message):
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
    assert len(message) < 600
    assert "\n" not in message
    assert "--" not in message
    assert message.startswith("response_format: ") or name == "deep"


def test_no_reference_is_fetched(address, tmp_path):
    """The server's own answer and the file are schemas that could be followed."""
    (tmp_path / "number.json").write_text('{"type": "number"}')
    for place in (f"{address}/health", (tmp_path / "number.json").as_uri(), "labels"):
        error = refusal(post(address, response_format=named({"$ref": place})))
        assert "response_format: cannot be followed" in error["message"]


# --- reasoning, whole and in streams

THOUGHT = "There is a cat on the table."
TEXT = "A cat on the table."
THINK = {"sira": {"think": True}}
SWITCHES = ({"enable_thinking": True}, {"enable_thinking": None, "thinking": True})


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    """Qwen3.5, whose template has a switch, and the address of a server with it."""
    lvlm = load(write_qwen(tmp_path_factory.mktemp("qwen") / "x", "3.5"), max_new_tokens=60, dtype="float32")
    with running(lvlm) as address:
        yield lvlm, address


@pytest.fixture
def asked(thinker, monkeypatch):
    """Ask by the official client while the model writes a thought and a text, if its prompt leaves a thought open."""
    lvlm, address = thinker
    thought, text = (
        written(lvlm.processor.tokenizer, f"{before}{TEXT}<|im_end|>") for before in (f"{THOUGHT}\n</think>\n\n", "")
    )
    usual = lvlm.prepare([Image.open(PICTURES[0]).convert("RGB")], [PROMPT])["input_ids"].shape[1]
    script(monkeypatch, lambda length: text if length == usual else thought)
    with client_of(address) as client:
        name = client.models.list().data[0].id
        yield lambda body, **more: client.chat.completions.create(model=name, messages=said(), extra_body=body, **more)


@pytest.mark.parametrize("body", [THINK, *({"chat_template_kwargs": each} for each in SWITCHES)])
def test_reasoning_is_beside_the_content(asked, body):
    answer = asked(body)
    (choice,) = answer.choices
    assert (choice.message.content, choice.message.reasoning_content) == (TEXT, THOUGHT)
    assert choice.finish_reason == "stop"
    chunks = list(asked(body, stream=True, stream_options={"include_usage": True}))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    parts = [(getattr(delta, "reasoning_content", None) or "", delta.content or "") for delta in deltas]
    assert tuple(map("".join, zip(*parts, strict=True))) == (THOUGHT, TEXT)
    assert min(sum(map(bool, column)) for column in zip(*parts, strict=True)) > 3
    assert not any(thought and text for thought, text in parts)
    assert chunks[-1].usage == answer.usage
    assert 0 < answer.usage.completion_tokens_details.reasoning_tokens < answer.usage.completion_tokens


@pytest.mark.parametrize("body", [{}, {"chat_template_kwargs": {"enable_thinking": False}}, {"sira": {"think": False}}])
def test_without_being_asked_to_it_does_not_think(asked, body):
    answer = asked(body)
    assert (answer.choices[0].message.content, answer.usage.completion_tokens_details.reasoning_tokens) == (TEXT, 0)
    assert not hasattr(answer.choices[0].message, "reasoning_content")


def test_log_probabilities_are_those_of_the_text(asked):
    (choice,) = asked(THINK, logprobs=True, stop=[" on the"]).choices
    assert (choice.message.content, choice.message.reasoning_content) == ("A cat", THOUGHT)
    assert "".join(each.token for each in choice.logprobs.content) == "A cat"
    (choice,) = asked(THINK, max_tokens=4).choices
    assert (choice.message.content, choice.finish_reason) == ("", "length")
    assert THOUGHT.startswith(choice.message.reasoning_content or "nothing")
    assert not any(chunk.choices[0].delta.content for chunk in asked(THINK, max_tokens=4, stream=True))


def test_ollamas_clients_get_both(asked, thinker):
    with ollama.Client(host=thinker[1]) as client:
        name, images = client.list().models[0].model, [PICTURES[0].read_bytes()]
        turn = {"role": "user", "content": PROMPT, "images": images}
        message = client.chat(name, [turn], think="high").message
        assert (message.thinking, message.content) == (THOUGHT, TEXT)
        parts = [part.message for part in client.chat(name, [turn], think=True, stream=True)]
        assert "".join(part.thinking or "" for part in parts) == THOUGHT
        assert "".join(part.content for part in parts) == TEXT
        answer = client.generate(name, PROMPT, images=images, think=False)
        assert (answer.thinking, answer.response) == (None, TEXT)
